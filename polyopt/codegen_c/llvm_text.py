"""LLVM IR as text: modules, functions and structured control flow.

A function is written once, front to back, with three things done on the way, so that no IR optimiser is needed:

- *value numbering*: a pure instruction that a dominating scope already computed is reused;
- *hoisting*: an instruction is placed in the outermost scope where its operands are known, so loop invariants
  land in the preheader of the outermost loop that does not change them;
- *memory versions*: a load is reused, or hoisted, only while no store to the same buffer lies between.

Loops are `do ... while` behind a guard, which is what makes hoisting a load out of a loop safe. Values that
change across iterations live in `alloca`s of the entry block; the JIT promotes them (SROA).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Literal

from polyopt.classes import dataclass

Motion = Literal["cheap", "pure", "load", "fixed"]
ScopeKind = Literal["entry", "preheader", "body", "branch", "guard", "split"]
Flags = str

# Which scopes an instruction may not be hoisted out of. A "guard" asks whether a loop runs at all, a "branch" whether a
# condition of the program holds, a "split" chooses between versions of one loop: full vectors, which may read past the
# end elsewhere, or masked ones.
_BARRIERS: dict[Motion, frozenset[str]] = {
    "cheap": frozenset(),
    "pure": frozenset({"branch"}),
    "load": frozenset({"branch", "guard", "split"}),
}

_SYMBOL = re.compile(r"@[\w.]+")
_NAME = re.compile(r"%v\d+")
_FLOAT_BITS = {"half": 16, "float": 32, "double": 64}


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or a constant.

    text:     the operand as it is written, without its type
    scalar:   LLVM type of one lane: "i1", "i32", "float", "ptr", ...
    lanes:    1 for a scalar
    level:    depth of the scope that computes it; 0 for constants and arguments
    constant: the number, for a (splat) constant
    """

    text: str
    scalar: str
    lanes: int = 1
    level: int = 0
    constant: int | float | None = None

    @property
    def type(self) -> str:
        return vector_type(self.scalar, self.lanes)

    def __hash__(self) -> int:
        return hash(self.text)  # few values share one; index forms look values up all the time

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def vector_type(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def scalar_bits(scalar: str) -> int:
    """Width of a scalar LLVM type."""
    return _FLOAT_BITS[scalar] if scalar in _FLOAT_BITS else 64 if scalar == "ptr" else int(scalar[1:])


def float_text(value: float, scalar: str) -> str:
    """A float constant in LLVM's exact notation: the bits of the value, rounded to `scalar`, as a double."""
    if scalar == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:  # struct refuses to round a finite double to infinity
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def signature_suffix(value: Value) -> str:
    """The type as intrinsic names spell it: `v16f32`, `i64`."""
    scalar = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(value.scalar, value.scalar)
    return scalar if value.lanes == 1 else f"v{value.lanes}{scalar}"


# A line, or a list of lines that is still growing (a preheader).
Lines = list["str | Lines"]


@dataclass(slots=True, eq=False)
class _Scope:
    kind: ScopeKind
    lines: Lines
    stores: frozenset[str] = frozenset()
    known: dict[str, Value] = field(default_factory=dict)


MOST_LINES_OF_ALL = 4
"""Times what one function may have: LLVM's work grows faster than a function does, and as their number does."""


class TooLong(Exception):
    """A function or a module has more lines than its writer wants to have compiled."""


class Module:
    """A module under construction: declarations are collected as they are used."""

    def __init__(self, vector_bits: int, most_lines: int | None = None, registers: Sequence[str] = ()) -> None:
        """most_lines: of instructions in one function, beyond which `TooLong` is raised
        registers:  of vectors, as LLVM calls them; none where that is not known
        """
        self._most_lines = most_lines
        self.registers = registers
        self._lines = 0
        self._attributes = f'attributes #0 = {{ nounwind "prefer-vector-width"="{vector_bits}" }}'
        self.has_half = vector_bits >= 256  # every machine with AVX2 converts f16 in hardware
        self.vector_bits = vector_bits
        self.has_past = False
        self._functions: list[str] = []
        self._declarations: dict[str, str] = {}
        self._names = 0

    def fresh(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def count(self, of_function: int) -> None:
        """Note one more line, and how many its function has. Raises `TooLong` where either is too many."""
        self._lines += 1
        most = self._most_lines
        if most is not None and (of_function > most or self._lines > MOST_LINES_OF_ALL * most):
            raise TooLong

    def declare(self, text: str) -> None:
        """Remember a declaration or a global; one of each name."""
        self._declarations[_SYMBOL.search(text)[0]] = text  # type: ignore[index]  # every declaration names a symbol

    def add(self, function: Function) -> None:
        self._functions.append(function.text())

    def uses(self, symbol: str) -> bool:
        """Whether some function mentions the symbol."""
        return any(symbol in function for function in self._functions)

    def text(self, declarations: Iterable[str] = (), helpers: str = "") -> str:
        """The module, with further declarations and functions."""
        for declaration in declarations:
            self.declare(declaration)
        metadata = ["!0 = !{i32 1}"] if self.has_past else []
        declared = sorted(self._declarations.values())
        return "\n".join([*declared, "", *self._functions, helpers, self._attributes, *metadata, ""])


class Function:
    """One function, written front to back. Must be closed with `finish`."""

    def __init__(self, module: Module, name: str, parameters: Iterable[tuple[str, str]], linkage: str = "") -> None:
        """parameters: (LLVM type, name) pairs. Returns void."""
        self.module = module
        self.flags: Flags = ""
        self.orders_zeros = False
        self.has_half = module.has_half
        declared = ", ".join(f"{kind} %{parameter}" for kind, parameter in parameters)
        self._header = f"define {linkage}{' ' if linkage else ''}void @{name}({declared}) #0 {{"
        self._allocas: list[str] = []
        self._root: Lines = []
        self._scopes = [_Scope("entry", self._root)]
        self._count = 0
        self._lines = 0
        self._versions: dict[str, int] = {}
        self._levels: dict[str, int] = {}

    # --- text ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        assert len(self._scopes) == 1, "a scope is still open"
        self._root.append("  ret void")
        self.module.add(self)

    def text(self) -> str:
        lines = [self._header, "entry:", *self._allocas]
        _flatten(self._root, lines)
        return "\n".join([*lines, "}", ""])

    # --- instructions --------------------------------------------------------------------------------------

    def name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _note_line(self) -> None:
        self._lines += 1
        self.module.count(self._lines)

    def line(self, text: str) -> None:
        """A line at the current place."""
        self._note_line()
        self._scopes[-1].lines.append(f"  {text}")

    def instruction(
        self, text: str, scalar: str, lanes: int, operands: Iterable[Value], motion: Motion = "pure", buffer: str = ""
    ) -> Value:
        """The value of the instruction, from an earlier equal one if there is one.

        buffer: for a load, the buffer it reads
        """
        if motion == "fixed":
            return self._append(self._scopes[-1], len(self._scopes) - 1, text, scalar, lanes)
        key = f"{text} @{buffer}.{self._versions.get(buffer, 0)}" if motion == "load" else text
        lowest = 0
        for operand in operands:
            lowest = max(lowest, operand.level)
        for level in range(len(self._scopes) - 1, lowest - 1, -1):
            known = self._scopes[level].known.get(key)
            if known is not None:  # its type is unknown where `pure_text` computed it
                return known if known.scalar else Value(known.text, scalar, lanes, known.level)
        level = self._placement(lowest, motion, buffer)
        value = self._append(self._scopes[level], level, text, scalar, lanes)
        self._scopes[level].known[key] = value
        return value

    def pure_text(self, text: str) -> str:
        """The name of the value of a pure instruction; its operands are read off the text."""
        lowest = max((self._levels.get(name, 0) for name in _NAME.findall(text)), default=0)
        return self.instruction(text, "", 1, [Value("", "", 1, lowest)]).text

    def named(self, text: str, scalar: str, lanes: int) -> Value:
        """The value behind an operand text."""
        return Value(text, scalar, lanes, self._levels.get(text, 0))

    def _append(self, scope: _Scope, level: int, text: str, scalar: str, lanes: int) -> Value:
        self._note_line()
        name = self.name()
        scope.lines.append(f"  {name} = {text}")
        self._levels[name] = level
        return Value(name, scalar, lanes, level)

    def _placement(self, lowest: int, motion: Motion, buffer: str) -> int:
        """The outermost scope at or below `lowest` whose insertion point comes before everything deeper."""
        barriers = _BARRIERS[motion]
        best = level = len(self._scopes) - 1
        while level > lowest:
            scope = self._scopes[level]
            if scope.kind in barriers or (motion == "load" and buffer in scope.stores):
                break
            level -= 1
            if self._scopes[level].kind == "preheader":
                best = level
        return best

    @property
    def level(self) -> int:
        return len(self._scopes) - 1

    # --- control flow --------------------------------------------------------------------------------------

    def region(self, write: Callable[[], None], stores: frozenset[str] = frozenset()) -> None:
        """Runs `write` behind a place where what it computes without change can be hoisted to."""
        lines: Lines = []
        self._scopes[-1].lines.append(lines)
        rest: Lines = []
        self._scopes[-1].lines.append(rest)
        self._touch(stores)
        self._scopes.append(_Scope("preheader", lines, stores))
        self._scopes.append(_Scope("body", rest, stores))
        write()
        del self._scopes[-2:]
        self._touch(stores)

    def loop(
        self,
        lower: Value,
        upper: Value,
        step: int,
        write: Callable[[Value], None],
        stores: frozenset[str] = frozenset(),
    ) -> None:
        """`do { write(i) } while ((i += step) < upper)`; the caller has made sure that lower < upper.

        stores: every buffer that the body stores to
        """
        outer = self._scopes[-1].lines
        preheader, body, latch, done = (self.module.fresh(prefix) for prefix in ("pre", "body", "latch", "done"))
        index, following, again = self.name(), self.name(), self.name()
        before: Lines = []
        inside: Lines = []
        outer.extend([f"  br label %{preheader}", f"{preheader}:", before, f"  br label %{body}", f"{body}:"])
        outer.append(f"  {index} = phi i64 [ {lower.text}, %{preheader} ], [ {following}, %{latch} ]")
        outer.append(inside)
        outer.extend([f"  br label %{latch}", f"{latch}:", f"  {following} = add i64 {index}, {step}"])
        outer.append(f"  {again} = icmp slt i64 {following}, {upper.text}")
        outer.extend([f"  br i1 {again}, label %{body}, label %{done}", f"{done}:"])
        self._touch(stores)
        self._scopes.append(_Scope("preheader", before, stores))
        self._scopes.append(_Scope("body", inside, stores))
        self._levels[index] = self.level
        write(Value(index, "i64", 1, self.level))
        del self._scopes[-2:]
        self._touch(stores)

    def branch(
        self,
        condition: Value,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        kind: ScopeKind = "branch",
    ) -> None:
        """`if (condition) then() else otherwise()`. A constant condition leaves one of them."""
        if condition.constant is not None:
            chosen = then if condition.constant else otherwise
            if chosen is not None:
                chosen()
            return
        yes, no, done = (self.module.fresh(prefix) for prefix in ("then", "else", "end"))
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no if otherwise else done}")
        self._arm(yes, done, then, kind)
        if otherwise is not None:
            self._arm(no, done, otherwise, kind)
        self._scopes[-1].lines.append(f"{done}:")

    def _arm(self, label: str, done: str, write: Callable[[], None], kind: ScopeKind) -> None:
        inside: Lines = []
        self._scopes[-1].lines.extend([f"{label}:", inside, f"  br label %{done}"])
        self._scopes.append(_Scope(kind, inside))
        write()
        self._scopes.pop()

    # --- memory --------------------------------------------------------------------------------------------

    def _touch(self, buffers: Iterable[str]) -> None:
        for buffer in buffers:
            self._versions[buffer] = self._versions.get(buffer, 0) + 1

    def alloca(self, kind: str, alignment: int) -> Value:
        """Stack storage that lives as long as the function."""
        name = self.name()
        self._allocas.append(f"  {name} = alloca {kind}, align {alignment}")
        return Value(name, "ptr")

    def load(self, scalar: str, lanes: int, pointer: Value, alignment: int, buffer: str) -> Value:
        """A whole (vector) load; all of it must be accessible."""
        text = f"load {vector_type(scalar, lanes)}, ptr {pointer.text}, align {alignment}"
        return self.instruction(text, scalar, lanes, [pointer], "load", buffer)

    def store(self, value: Value, pointer: Value, alignment: int, buffer: str) -> None:
        """Stores, and remembers the value for a load of the same place."""
        self._touch([buffer])
        self.line(f"store {value}, ptr {pointer.text}, align {alignment}")
        self.remember(value, pointer, alignment, buffer)

    def remember(self, value: Value, pointer: Value, alignment: int, buffer: str) -> None:
        """A load of this place gives this value, until the next store to the buffer."""
        key = f"load {value.type}, ptr {pointer.text}, align {alignment} @{buffer}.{self._versions[buffer]}"
        self._scopes[-1].known[key] = value

    def store_past(self, value: Value, pointer: Value, alignment: int, buffer: str) -> None:
        """Stores past the caches. On x86 other threads see it in order only after a fence."""
        self._touch([buffer])
        self.module.has_past = True
        self.line(f"store {value}, ptr {pointer.text}, align {alignment}, !nontemporal !0")

    def prefetch(self, pointer: Value, *, is_near: bool) -> None:
        """Asks for the line at an address: in the first cache, to be read soon, or in the second. Any address will
        do."""
        self.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0({pointer}, i32 0, i32 {3 if is_near else 2}, i32 1)")

    def read(self, slot: Value, scalar: str, lanes: int = 1) -> Value:
        """The present value of an alloca that is promoted to a register."""
        return self.instruction(f"load {vector_type(scalar, lanes)}, ptr {slot.text}", scalar, lanes, [], "fixed")

    def write(self, slot: Value, value: Value) -> None:
        self.line(f"store {value}, ptr {slot.text}")

    def clobber(self, buffers: Iterable[str]) -> None:
        """Forgets what is known about the buffers (somebody else stored to them)."""
        self._touch(buffers)

    # --- calls ---------------------------------------------------------------------------------------------

    def intrinsic(
        self,
        name: str,
        scalar: str,
        lanes: int,
        operands: list[Value],
        flags: Flags = "",
        motion: Motion = "pure",
        buffer: str = "",
    ) -> Value:
        """A call of the LLVM intrinsic `name` (complete with its type suffix)."""
        result = vector_type(scalar, lanes)
        self.module.declare(f"declare {result} @{name}({', '.join(operand.type for operand in operands)})")
        text = f"call {flags}{result} @{name}({', '.join(map(str, operands))})"
        return self.instruction(text, scalar, lanes, operands, motion, buffer)

    def landmark(self, *, is_alone: bool = False) -> None:
        """Nothing at all, which LLVM leaves where it is: so the block that it stands in stays, and with it what only
        this block sets up. LLVM 22 else sets up two loops in front of the branch between them, registers and all.

        is_alone: nothing stays in a register of vectors across it. What the loops around need, such as masks, would
                  else keep its registers, and those of the loop behind the landmark go to the stack at each turn.
        """
        lost = ",".join(f"~{{{name}}}" for name in self.module.registers) if is_alone else ""
        self.line(f'call void asm sideeffect "", "{lost}"()')

    def effect(self, name: str, operands: list[Value]) -> None:
        """A call for its effect."""
        self.module.declare(f"declare void @{name}({', '.join(operand.type for operand in operands)})")
        self.line(f"call void @{name}({', '.join(map(str, operands))})")


def _flatten(lines: Lines, into: list[str]) -> None:
    for line in lines:
        if isinstance(line, list):
            _flatten(line, into)
        else:
            into.append(line)
