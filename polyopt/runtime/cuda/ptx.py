"""Faults of NVIDIA's compilers that show in the PTX of a kernel: code that is known to come out wrong.

Random programs on an H100 and an H200 found them, in every version from 13.0 to 13.5 (decision 50 has an example of
each). `compilers` looks at the PTX of all that it compiles, and compiles again with the remedies where it finds one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

from polyopt.classes import dataclass

Kind = Literal["stale load", "lost sign", "negated half", "zero without sign"]

REMEDIES: dict[Kind, str] = {
    "stale load": "without __restrict__",
    "lost sign": "by ptxas -O0",
    "negated half": "by ptxas -O0",
    "zero without sign": "by ptxas -O0",
}
"""What is compiled otherwise, in words.

stale load:        NVVM makes one load of two, from a pointer that it selects, and takes it for one of memory that the
                   kernel never writes though one of the two arrays is written: it may give what was there before
lost sign:         ptxas makes one instruction of two signed minima or maxima and drops the negation of an operand
negated half:      ptxas takes the negation of a 16-bit integer for one that cannot overflow
zero without sign: ptxas makes 0.0 of a -0.0 that is selected, or another constant
"""

_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\}\n", re.DOTALL)
_LINE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*)\s+(.*);\s*$", re.MULTILINE)
_REGISTER = re.compile(r"%[a-z]+\d+")
_ADDRESS = re.compile(r"\[(%\w+)")
_EXTREMA = ("min.s32", "max.s32")
_WRITES = ("st.", "atom.", "red.")
_MINUS_ZERO = "0f80000000"
_ONES = {"0f3F800000", "0fBF800000"}
_UNITS = _ONES | {_MINUS_ZERO, "0f00000000"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A line of a kernel that will come out wrong."""

    kind: Kind
    kernel: str
    line: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.kernel}: {self.line}"


def faults(text: str) -> list[Fault]:
    """What is known to come out wrong of a text in PTX."""
    return [Fault(kind, match[1], line) for match in _ENTRY.finditer(text) for kind, line in _of_kernel(match[0])]


def _of_kernel(text: str) -> Iterator[tuple[Kind, str]]:
    lines = [(line[1], line[2]) for line in _LINE.finditer(text)]
    made = _Registers(lines)
    arrays = made.reach(_parameters_of_pointers(lines, made))
    written: set[str] = set()
    for operation, operands in lines:
        address = _ADDRESS.search(operands)
        if address and operation.startswith(_WRITES) and ".shared" not in operation:
            written |= arrays[address[1]]
    negated = made.copies(target for operation, target, sources in made if _negates(operation, sources, made))
    lost = made.with_lost_zero()
    chained = {operation: made.chained(operation) for operation in _EXTREMA}
    for operation, operands in lines:
        text_of_line = f"{operation} {operands}"
        registers = _REGISTER.findall(operands)
        if operation.startswith("ld.global.nc"):
            address = _ADDRESS.search(operands)
            if address and arrays[address[1]] & written:
                yield "stale load", text_of_line
        elif operation in chained and registers[0] in chained[operation] and negated.intersection(registers[1:]):
            yield "lost sign", text_of_line
        elif operation in ("neg.s16", "abs.s16") and not made.is_small(registers[1]):
            yield "negated half", text_of_line
        elif operation in ("selp.f32", "mov.f32") and registers[0] in lost:
            yield "zero without sign", text_of_line


class _Registers:
    """What is put into each register of a kernel, by which operation, from which operands."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._made: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for operation, operands in lines:
            if operation.startswith(("st.", "red.", "bra", "bar", "ret", "call")):
                continue
            targets, _, sources = _split(operands)
            for target in targets:
                self._made[target].append((operation, sources))
        self._moved: defaultdict[str, list[str]] = defaultdict(list)
        for operation, target, sources in self:
            for source in _REGISTER.findall(sources) if operation.startswith("mov.") else ():
                self._moved[source].append(target)

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        return ((operation, target, sources) for target, made in self._made.items() for operation, sources in made)

    def reach(self, first: dict[str, str]) -> defaultdict[str, set[str]]:
        """Of each register, the names among those of `first`, by register, that its 64 bits may be made of."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for register, name in first.items():
            found[register].add(name)
        users: defaultdict[str, set[str]] = defaultdict(set)
        for operation, target, sources in self:
            if not operation.startswith(("ld.", "atom.", "setp")) and target.startswith("%rd"):
                for source in _REGISTER.findall(sources):
                    users[source].add(target)
        waiting = list(first)
        while waiting:
            register = waiting.pop()
            for user in users[register]:
                if not found[register] <= found[user]:
                    found[user] |= found[register]
                    waiting.append(user)
        return found

    def copies(self, registers: Iterable[str]) -> set[str]:
        """The registers, and those that one of them is moved to."""
        found, waiting = set(), list(registers)
        while waiting:
            register = waiting.pop()
            if register not in found:
                found.add(register)
                waiting += self._moved[register]
        return found

    def chained(self, operation: str) -> set[str]:
        """The results of an operation that are operands of another one like it, or have operands that are results."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        for made, target, sources in self:
            for source in _REGISTER.findall(sources) if made == operation else ():
                users[source].add(target)
        found: set[str] = set()
        for result in set().union(*users.values()):
            used = set().union(*(users[copy] for copy in self.copies([result]) if copy in users))
            found |= used | ({result} if used else set())
        return found

    def is_constant(self, operand: str, value: str) -> bool:
        """Whether an operand is a constant, or a register that holds nothing else."""
        if operand == value:
            return True
        return {sources for _, sources in self._made.get(operand, ())} == {value}

    def is_small(self, register: str) -> bool:
        """Whether 16 bits hold less than they could: a byte, or a number shifted to the right."""
        return all(operation in ("cvt.s16.s8", "shr.s16") for operation, _ in self._made[register])

    def with_lost_zero(self) -> set[str]:
        """The registers that get -0.0, or else 1.0 or -1.0, which ptxas then makes of a mask or an integer."""
        values: defaultdict[str, set[str]] = defaultdict(set)  # that moves and selections put there
        users: defaultdict[str, set[str]] = defaultdict(set)
        for operation, target, sources in self:
            if not operation.startswith(("mov.", "selp.")):
                values[target].add("another")
                continue
            for source in sources.split(",")[: 2 if operation.startswith("selp.") else 1]:
                users[source.strip()].add(target)
        for source in [one for one in users if one not in self._made]:
            values[source].add(source if source in _UNITS else "another")
        waiting = list(values)
        while waiting:
            source = waiting.pop()
            for target in users[source]:
                if not values[source] <= values[target]:
                    values[target] |= values[source]
                    waiting.append(target)
        return {one for one, got in values.items() if _MINUS_ZERO in got and got & _ONES and got <= _UNITS}


def _split(operands: str) -> tuple[list[str], str, str]:
    """The registers that an instruction writes, a comma, and the rest."""
    if operands.startswith("{"):
        targets, brace, rest = operands.partition("}")
        return _REGISTER.findall(targets), brace, rest.lstrip(", ")
    first, comma, rest = operands.partition(",")
    return _REGISTER.findall(first), comma, rest.strip()


def _parameters_of_pointers(lines: Iterable[tuple[str, str]], made: _Registers) -> dict[str, str]:
    """The parameters that are arrays, by the register that they are loaded to: addresses of global memory are made of
    them."""
    loaded = {target: sources for operation, target, sources in made if operation.startswith("ld.param")}
    all_of_them = made.reach(loaded)
    names = {
        name
        for operation, operands in lines
        if operation.startswith("cvta.to.global")
        for name in all_of_them[_split(operands)[2]]
    }
    return {register: name for register, name in loaded.items() if name in names}


def _negates(operation: str, sources: str, made: _Registers) -> bool:
    if operation == "neg.s32":
        return True
    return operation in ("sub.s32", "sub.u32") and made.is_constant(sources.split(",")[0].strip(), "0")
