"""What tuning found, as text: a database of this user that compiles read, and that can be given to others.

One JSON line a record, in `tuning.jsonl` beside the compiled kernels. A record holds picks, never code: a compile that
uses one proves its schedule as every compile does, and goes without the picks where the proof fails.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from polyopt import cache
from polyopt.classes import dataclass
from polyopt.errors import ArgumentError
from polyopt.picks import Pick

FILE = "tuning.jsonl"
FORMAT = 1
MOST_RECORDS = 20_000
_LONGEST_TEXT = 500
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """The best plan that was found for one problem.

    key:     of the problem: its program, sizes, layouts, numerics and kind of target
    op:      its name, for people
    machine: where it was measured
    picks:   where the plan differs from the cost models'; none: they were right
    ms, model_ms: milliseconds with the picks and without
    """

    key: str
    op: str
    machine: str
    picks: tuple[Pick, ...]
    ms: float
    model_ms: float

    def __str__(self) -> str:
        found = "; ".join(map(str, self.picks)) or "the cost model's plan"
        return f"{self.op}: {self.ms:.4g} ms ({self.model_ms:.4g} by the model), {found}"


def exist() -> bool:
    """Whether anything was recorded at all."""
    return bool(_by_key(cache.read_text(FILE) or ""))


def picks_for(key: str, machine: str) -> tuple[Pick, ...]:
    """The recorded picks for a problem: those measured on this machine, else those that came from another."""
    found = _by_key(cache.read_text(FILE) or "").get(key)
    if found is None:
        return ()
    record = found.get(machine) or next(iter(found.values()))
    return record.picks


def known(key: str, machine: str) -> Record | None:
    """The record for a problem on this machine."""
    return _by_key(cache.read_text(FILE) or "").get(key, {}).get(machine)


def add(records: Iterable[Record]) -> bool:
    """Keep records; a new one replaces that of the same problem and machine. Whether that was possible."""
    kept = {(record.key, record.machine): record for record in all_records()}
    for record in records:
        kept.pop((record.key, record.machine), None)
        kept[record.key, record.machine] = record
    lines = [_as_line(record) for record in list(kept.values())[-MOST_RECORDS:]]
    return cache.write_text(FILE, "".join(line + "\n" for line in lines))


def all_records() -> tuple[Record, ...]:
    """Every record, the oldest first."""
    return _read(cache.read_text(FILE) or "")


def write_file(path: Path) -> int:
    """Write all records to a file for others; how many. Raises `ArgumentError` where that cannot be."""
    found = all_records()
    try:
        path.write_text("".join(_as_line(record) + "\n" for record in found), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"cannot write tuning records to '{path}'",
            why=error.strerror or str(error),
            fix="name a file in a folder that can be written",
            facts={"path": str(path)},
        ) from None
    return len(found)


def read_file(path: Path) -> tuple[Record, ...]:
    """The records of a file that `write_file` wrote. Raises `ArgumentError` for anything else, with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"cannot read tuning records from '{path}'",
            why=getattr(error, "strerror", None) or str(error),
            fix="give a file that `polyopt tune --export` wrote",
            facts={"path": str(path)},
        ) from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_from_line(line))
        except _DAMAGES as error:
            raise ArgumentError(
                f"line {number} of '{path}' is no tuning record",
                why=str(error),
                fix="give a file that `polyopt tune --export` wrote",
                facts={"line": number},
            ) from None
    return tuple(found)


@lru_cache(maxsize=4)
def _by_key(text: str) -> Mapping[str, Mapping[str, Record]]:
    found: dict[str, dict[str, Record]] = {}
    for record in _read(text):
        found.setdefault(record.key, {})[record.machine] = record
    return found


_DAMAGES = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What reading a line raises that is no record: the last two come of huge numbers and of a thousand brackets."""


def _read(text: str) -> tuple[Record, ...]:
    """The records of a text; what is damaged is left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(_from_line(line))
        except _DAMAGES as error:
            _log.warning("ignoring a damaged tuning record: %s", error)
    return tuple(found)


def _as_line(record: Record) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "op": record.op,
            "key": record.key,
            "machine": record.machine,
            "picks": [[pick.question, pick.answer] for pick in record.picks],
            "ms": record.ms,
            "model_ms": record.model_ms,
        }
    )


def _from_line(line: str) -> Record:
    data = json.loads(line)
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']} is not {FORMAT}")
    texts = [data["key"], data["op"], data["machine"], *(part for pick in data["picks"] for part in pick)]
    if any(not isinstance(text, str) or len(text) > _LONGEST_TEXT for text in texts):
        raise ValueError("a text is missing or too long")
    picks = tuple(Pick(question, answer) for question, answer in data["picks"])
    times = float(data["ms"]), float(data["model_ms"])
    if not all(0 < time < float("inf") for time in times):
        raise ValueError("a time is not positive")
    return Record(data["key"], data["op"], data["machine"], picks, *times)
