"""Where workspace buffers lie: offsets into the block that all threads share and into each thread's private one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_c.abi import ALIGNMENT, SLACK_BYTES
from polyopt.codegen_c.flatten import stretches
from polyopt.codegen_c.registers import hands_on
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import i64
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, If, Stmt, buffers_used, integer


def calculated(name: str, left: Expr, right: Expr) -> Expr:
    """`left <name> right` for i64 sizes, folded where both are constants."""
    if isinstance(left, Const) and isinstance(right, Const):
        return integer(_FOLD[name](int(left.value), int(right.value)))
    return Op(name, (left, right), i64)


_FOLD: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "maximum": max,
}


def total(parts: Sequence[Expr]) -> Expr:
    return _folded("add", parts, integer(0))


def product(parts: Sequence[Expr]) -> Expr:
    return _folded("mul", parts, integer(1))


def _folded(name: str, parts: Sequence[Expr], first: Expr) -> Expr:
    for part in parts:
        first = calculated(name, first, part)
    return first


def byte_strides(buffer: Buffer) -> tuple[Expr, ...]:
    """Bytes per step of each dimension."""
    if buffer.strides is not None:
        return buffer.strides
    strides: list[Expr] = []
    step: Expr = integer(buffer.dtype.itemsize)
    for extent in reversed(buffer.shape):
        strides.append(step)
        step = calculated("mul", step, extent)
    return tuple(reversed(strides))


def size_bytes(buffer: Buffer) -> Expr:
    """Bytes of a workspace buffer, rounded up to the alignment."""
    last: Expr = integer(buffer.dtype.itemsize)
    for extent, stride in zip(buffer.shape, byte_strides(buffer), strict=True):
        last = calculated("add", last, calculated("mul", calculated("sub", extent, integer(1)), stride))
    positive = calculated("maximum", last, integer(0))
    units = calculated("floordiv", calculated("add", positive, integer(ALIGNMENT - 1)), integer(ALIGNMENT))
    return calculated("mul", units, integer(ALIGNMENT))


@dataclass(frozen=True, slots=True)
class _Slot:
    """Room for buffers that are needed one after the other. until: the last step that needs it"""

    size: Expr
    until: int
    buffers: tuple[str, ...]

    def holds(self, size: Expr) -> bool:
        """Whether it has the size; of sizes that only a call gives the same ones are known to."""
        own, wanted = _known(self.size), _known(size)
        return self.size == size or (own is not None and wanted is not None and own >= wanted)


def offsets(buffers: Sequence[Buffer], body: Stmt, calls: Collection[int]) -> tuple[dict[str, Expr], Expr]:
    """The offset of each buffer that is used, and the bytes of all, with room behind them.

    Buffers of which one is needed last before the other is needed first share their room; the one that was used last is
    taken first, as it is in the caches. calls: loops that are called, by identity
    """
    needed = _lifetimes(body, calls)
    slots: list[_Slot] = []
    for buffer in sorted((b for b in buffers if b.name in needed), key=lambda b: needed[b.name]):
        first, last = needed[buffer.name]
        size = size_bytes(buffer)
        free = sorted((slot for slot in slots if slot.until < first), key=lambda slot: -slot.until)
        fitting = [slot for slot in free if slot.holds(size)]
        growing = [slot for slot in free if _known(slot.size) is not None and _known(size) is not None]
        taken = min(fitting, key=_least, default=None) or max(growing, key=_least, default=None)
        held = () if taken is None else taken.buffers
        room = size if taken is None or not taken.holds(size) else taken.size
        slots = [*(slot for slot in slots if slot is not taken), _Slot(room, last, (*held, buffer.name))]
    result: dict[str, Expr] = {}
    used: Expr = integer(0)
    for slot in slots:
        result |= dict.fromkeys(slot.buffers, used)
        used = calculated("add", used, slot.size)
    return result, calculated("add", used, integer(SLACK_BYTES)) if slots else used


def _known(size: Expr) -> int | None:
    return int(size.value) if isinstance(size, Const) else None


def _least(slot: _Slot) -> int:
    return _known(slot.size) or 0


def _lifetimes(body: Stmt, calls: Collection[int]) -> dict[str, tuple[int, int]]:
    """For each buffer the steps of the kernel that use it first and last. What registers may keep is of one step."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(_steps(body, calls)):
        for name in buffers_used(step):
            found[name] = found.get(name, (number, number))[0], number
    return found


def _steps(statement: Stmt, calls: Collection[int]) -> Iterator[Stmt]:
    """What runs one after the other, or not at all: statements, or those together that keep elements in registers."""
    match statement:
        case Block():
            for stretch in stretches(statement, calls):
                if hands_on(stretch):
                    yield stretch
                    continue
                for part in stretch.body:
                    yield from _steps(part, calls)
        case If(_, then, otherwise):
            yield replace(statement, then=Block(()), otherwise=None)
            yield from _steps(then, calls)
            yield from _steps(otherwise, calls) if otherwise is not None else ()
        case _:
            yield statement


def private_bytes(statement: Stmt) -> Expr:
    """Bytes that the workspace `Alloc`s of a statement need at once, and the room behind them; 0 for none."""
    used = _private_bytes(statement)
    return used if used == integer(0) else calculated("add", used, integer(SLACK_BYTES))


def _private_bytes(statement: Stmt) -> Expr:
    """Those in sequence share their space."""
    match statement:
        case Block(body):
            return _most([_private_bytes(inner) for inner in body])
        case For(body=body):
            return _private_bytes(body)
        case If(then=then, otherwise=otherwise):
            return _most([_private_bytes(inner) for inner in (then, otherwise) if inner is not None])
        case Alloc(buffer, body):
            own = size_bytes(buffer) if buffer.space == "workspace" else integer(0)
            return calculated("add", own, _private_bytes(body))
        case _:
            return integer(0)


def _most(parts: Sequence[Expr]) -> Expr:
    result: Expr = integer(0)
    for part in parts:
        result = calculated("maximum", result, part)
    return result
