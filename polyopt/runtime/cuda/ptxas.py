"""What ptxas says of the kernels that it made: registers, spills, stack, shared memory, and warnings of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from polyopt.classes import dataclass

REMARKS = range(7508, 7521)
"""Remarks that tell of lost speed: ignored register limits, matrix operations made serial or waited for."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread, or one block, of a kernel takes. Bytes, but for the registers of a thread and barriers."""

    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0
    constants: int = 0
    barriers: int = 0

    @property
    def spills(self) -> bool:
        return bool(self.spill_stores or self.spill_loads)

    def __str__(self) -> str:
        text = f"{self.registers} registers, {self.shared} bytes of static shared memory"
        if self.stack or self.spills:
            text += f", {self.stack} bytes of stack, spills {self.spill_stores} out and {self.spill_loads} in"
        return text


_ENTRY = re.compile(r"(?:Compiling entry function|Function properties for) '?([^'\s]+)'?")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_REMARK = re.compile(r"\(C(\d{4})\)")


def resources(log: str) -> Mapping[str, Resources]:
    """The resources of each kernel in the output of `ptxas -v`."""
    found: dict[str, Resources] = {}
    name = ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
            found.setdefault(name, Resources())
        elif frame := _FRAME.search(line):
            stack, stores, loads = map(int, frame.groups())
            found[name] = replace(found[name], stack=stack, spill_stores=stores, spill_loads=loads)
        elif used := _USED.search(line):
            found[name] = replace(
                found[name],
                registers=int(used[1]),
                shared=_amount(r"(\d+)(?:\+\d+)? bytes smem", used[2]),
                constants=_amount(r"(\d+) bytes cmem\[0\]", used[2]),
                barriers=_amount(r"used (\d+) barriers", used[2]),
            )
    return found


def _amount(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def remarks(log: str) -> tuple[str, ...]:
    """The lines in which ptxas says that it gave up speed."""
    return tuple(
        line.strip() for line in log.splitlines() if any(int(number) in REMARKS for number in _REMARK.findall(line))
    )
