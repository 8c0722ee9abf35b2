"""The benchmark itself: its rows are right, a peer that fails never ends a run, and what is published adds up."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import aligned, child, publish, run
from benchmarks.cases import QUICK, Case, all_cases, expected, inputs
from benchmarks.peers import PEERS, numpy_peer, polyopt_peer
from polyopt.runtime import rates
from polyopt.target import Rates

SMALL = {"m": 6, "n": 7, "k": 5, "b": 2, "c": 3, "o": 4, "h": 6, "r": 3, "i": 4, "j": 5, "s": 9, "d": 4}
RATES = Rates(100, 50, 100, 160, 200, 100, 40, 20, 18, 28, 27, 5.0, 2)


def small(case: Case) -> Case:
    """The same operator at a size that compiles and runs in no time."""
    sizes = {name: min(SMALL[name], value) for name, value in case.sizes.items()}
    if case.kind == "conv":
        sizes["r"] = case.sizes["r"]
    return replace(case, sizes=sizes, tolerance=max(case.tolerance, 1e-4) if case.tolerance else 0.0)


KINDS = {(case.kind, case.dtype): small(case) for case in all_cases()}


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_definitions_mean_what_the_rows_say(kind: tuple[str, str]) -> None:
    case = KINDS[kind]
    arrays = inputs(case)
    wanted = expected(case, arrays)
    found = child.as_arrays(polyopt_peer.operator_for(case)(*arrays))
    assert child.worst_error(case, found, wanted, 1) <= case.tolerance
    plain = numpy_peer.prepare(case, arrays)
    if plain is not None:
        assert child.worst_error(case, child.as_arrays(plain()), wanted, 1) <= case.tolerance


def test_every_peer_has_inputs_that_start_at_a_cache_line(tmp_path: Path) -> None:
    for extent in (1, 7, 1000):
        array = np.arange(3 * extent, dtype=np.float32).reshape(3, extent)
        np.save(tmp_path / "x.npy", array)
        loaded = child.load(str(tmp_path / "x.npy"))
        np.testing.assert_array_equal(loaded, array)
        assert loaded.ctypes.data % 64 == 0
        assert aligned.empty((extent, 3), np.int8).ctypes.data % 64 == 0


def test_rows_have_names_of_their_own_and_the_quick_ones_exist() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
    assert set(names) >= QUICK
    assert all(case.flops > 0 and case.traffic > 0 for case in all_cases())


def test_a_wrong_result_is_noticed() -> None:
    case = KINDS["softmax", "f32"]
    wanted = expected(case, inputs(case))
    assert child.worst_error(case, [wanted[0] + 1], wanted, 1) > case.tolerance
    assert child.worst_error(case, [wanted[0][1:]], wanted, 1) == float("inf")
    assert child.worst_error(case, [np.full_like(wanted[0], np.nan)], wanted, 1) == float("inf")
    assert child.worst_error(case, [], wanted, 1) == float("inf")


class Scripted(run.Child):
    """A process that runs a few lines instead of a peer."""

    script = ""

    def command(self) -> list[str]:
        return [sys.executable, "-u", "-c", self.script]


READY = 'import json, sys\nprint(json.dumps({"status": "ready", "version": "1"}))\n'
OK = 'json.dumps({"status": "ok", "ms": 2.0, "once_ms": 2.0, "prepare_ms": 1.0, "error": 0})'
ANSWER = f"for line in sys.stdin:\n    print({OK})\n"


def scripted(name: str, script: str) -> Scripted:
    made = Scripted(name, 1, sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0])
    made.script = script
    return made


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells the state of a process")
def test_a_peer_that_waits_takes_no_processor_from_the_one_at_turn() -> None:
    """Workers of some runtimes spin for long when they have nothing to do."""
    spins = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n"
    peer = scripted("spinning", READY + spins + ANSWER)
    try:
        assert peer.ask(5.0, do="time")["ms"] == peer.ask(5.0, do="time")["ms"] == 2.0
        assert peer._process is not None
        stat = Path(f"/proc/{peer._process.pid}/stat")
        until = time.monotonic() + 5
        while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert state == "T", "stopped"
    finally:
        peer.end()


def test_a_peer_that_crashes_hangs_or_is_absent_costs_its_own_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PREPARE_LIMIT_S", 5.0)
    monkeypatch.setattr(run, "TIME_LIMIT_S", 1.0)
    peers = [
        scripted("polyopt", READY + ANSWER),
        scripted("numpy", READY + ANSWER.replace("2.0", "3.0")),
        scripted("crashing", READY + "sys.stdin.readline()\nsys.exit(3)"),
        scripted("late", READY + f"sys.stdin.readline()\nprint({OK})\nimport time\ntime.sleep(600)"),
        scripted("missing", 'import json\nprint(json.dumps({"status": "absent: no such module"}))'),
    ]
    case = next(case for case in all_cases() if case.name == "gemm_16")
    try:
        row = run.measure_row(case, peers, tmp_path, 3)
        again = run.measure_row(case, peers[:2], tmp_path, 2)
    finally:
        for peer in peers:
            peer.end()
    assert row.times == {"polyopt": [2.0] * 3, "numpy": [3.0] * 3}
    assert row.missing == {"crashing": "crashed", "late": "no answer in 1 s", "missing": "absent"}
    assert row.ratio() == 1.5 and row.best_peer() == "numpy"
    assert len(again.times["polyopt"]) == 2
    record = run.as_record(case, row, 1, RATES)
    assert record["ratio"] == 1.5 and record["missing"] == {"crashing": "crashed", "late": "no answer in 1 s"}


def test_a_row_is_measured_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(rates, "measure", lambda: RATES)
    command = "run --only gemm_16$ --threads 1 --rounds 2 --peers polyopt,numpy,unknown"
    monkeypatch.setattr(sys, "argv", command.split())
    run.main()
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("gemm_16 ") and "polyopt" in line and "numpy" in line and "unknown" not in line
    (partial,) = (tmp_path / "results").iterdir()
    assert json.loads(partial.read_text())["row"] == "gemm_16"
    monkeypatch.setattr(run, "measure_row", lambda *_: pytest.fail("measured before"))
    monkeypatch.setattr(sys, "argv", [*command.split(), "--resume"])
    run.main()
    assert "below" in capsys.readouterr().out


def record(row: str, family: str, threads: int, ratio: float | None, **changes: Any) -> dict[str, Any]:
    ms = {"polyopt": 1.0} if ratio is None else {"polyopt": 1.0, "numpy": ratio}
    plain = {"gops": 1.0, "gbytes": 1.0, "share": 0.5, "missing": {}, "best": None if ratio is None else "numpy"}
    return {"row": row, "family": family, "threads": threads, "ms": ms, "ratio": ratio, **plain, **changes}


def test_families_weigh_alike_in_the_mean() -> None:
    records = [
        record("a", "one", 1, 4.0),
        record("b", "one", 1, 4.0),
        record("c", "two", 1, 0.25),
        record("d", "x", 1, None),
    ]
    assert publish.mean_over_families(records, 1) == pytest.approx(1.0)
    assert "1 of 3 rows below 0.95" in publish.summary(records)
    assert publish.mean_over_families(records, 2) is None


def test_the_page_is_made_from_the_newest_run_of_each_machine(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    header = {
        "machine": "m", "cores": 2, "caches": [1, 2, 3], "commit": "c", "python": "3", "left_out": ["chain_1e8 on 1"],
        "versions": dict.fromkeys(PEERS, "1"), "rates": RATES.as_json(),
    }  # fmt: skip
    lines = [header, record("a", "one", 1, 1.5), record("a", "one", 2, 0.5, missing={"jax": "crashed"})]
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    newer = [{**header, "machine": "a", "when": "2026-11-22 19:39"}, record("b", "one", 1, 1.5)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, newer)))
    newest = [{**header, "machine": "b", "when": "2026-11-23 08:00"}, record("c", "one", 1, 1.5)]
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, newest)))
    (folder / "m.partial.jsonl").write_text("")
    (folder / "compile_time.jsonl").write_text('{"commit": "c"}\n')
    publish.write(folder)
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.index("## b") < page.index("## a") < page.index("## m")
    assert "| a | 1 | 1 | **1.5** | 1.50 |" in page and "jax, crashed: a" in page and "chain_1e8 on 1" in page
