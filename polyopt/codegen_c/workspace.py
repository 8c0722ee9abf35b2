"""Where workspace buffers lie: offsets into the block that all threads share and into each thread's private one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polyopt.codegen_c.abi import ALIGNMENT, SLACK_BYTES
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import i64
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, If, Stmt, integer


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
    result: Expr = integer(0)
    for part in parts:
        result = calculated("add", result, part)
    return result


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


def offsets(buffers: Sequence[Buffer]) -> tuple[dict[str, Expr], Expr]:
    """The offset of each buffer, one after the other, and the bytes of all, with room behind them."""
    result: dict[str, Expr] = {}
    used: Expr = integer(0)
    for buffer in buffers:
        result[buffer.name] = used
        used = calculated("add", used, size_bytes(buffer))
    return result, calculated("add", used, integer(SLACK_BYTES)) if buffers else used


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
