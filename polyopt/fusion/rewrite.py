"""Exact rewrites of a program: what the equations say stays the same, bit for bit.

Constants are folded, equations that no result needs are dropped, and a pointwise producer is written into its
consumers where computing it again costs less than storing and loading it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine, ir
from polyopt.dsl.affine import (
    FALSE,
    TRUE,
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    Not,
    Or,
    axes_of,
    conjunction,
    holds,
    is_nonnegative,
)
from polyopt.dsl.builtins import BUILTINS
from polyopt.dtypes import DType, bf16, converted, f16, f32, i8, i32, i64, u8
from polyopt.fusion import residues
from polyopt.fusion.axes import at_axes, length

REPEATED_COST = 16
"""Scalar operations worth repeating per element rather than storing and loading a temporary."""

LARGEST_VALUE = 400
"""Nodes of an expression beyond which nothing more is written into it."""

KEPT, TOGETHER = 8, 128
"""Results of a thread that use a value once it is computed, and of a block that use an element once it is read."""

WIDE_BYTES = 4
"""Of values that tensor cores sum up; they multiply narrower ones."""

WIDENED = frozenset({(f16, f32), (bf16, f32), (i8, i32), (u8, i32)})
"""What tensor cores multiply, and what they sum up."""

_COSTS = {"truediv": 4, "sqrt": 4, "floordiv": 4, "mod": 4}
_CHEAP = 1
_FUNCTION = 20


def rewrite(
    program: ir.Program, *, numerics: str = "default", ops_per_byte: int = 0, kept: Collection[str] = ()
) -> ir.Program:
    """The program after all exact rewrites; resolved programs stay resolved.

    kept:         tensors that stay tensors
    ops_per_byte: scalar operations in the time that memory takes for a byte, where threads have them to spare
    """
    folded = replace(program, equations=tuple(_map_values(e, fold) for e in program.equations))
    inlined = drop_unused(inline(folded, ops_per_byte, kept))
    return residues.split(inlined, fold, reorder=numerics != "strict")


# --- constant folding -----------------------------------------------------------------------------------------


def fold(expr: ir.Expr) -> ir.Expr:
    """The expression with operations on constants evaluated in their dtype, and decided choices taken."""
    expr = ir.rebuild(expr, fold)
    match expr:
        case ir.Op(name, args, dtype) if all(isinstance(arg, ir.Const) for arg in args):
            values = [np.asarray(arg.value, arg.dtype.numpy) for arg in args if isinstance(arg, ir.Const)]
            with np.errstate(all="ignore"):
                result = np.asarray(BUILTINS[name].numpy(*values)).astype(dtype.numpy)
            exact = dtype.is_integer or dtype.is_bool or BUILTINS[name].ulp == 0
            return ir.Const(result.item(), dtype) if exact else expr
        case ir.Cast(ir.Const(value, source), dtype):
            with np.errstate(all="ignore"):
                return ir.Const(converted(np.asarray(value, source.numpy), dtype).item(), dtype)
        case ir.Where(condition, then, otherwise):
            decided = _decided(condition)
            return expr if decided is None else then if decided else otherwise
        case ir.Op("select", (ir.Const(value), then, otherwise)):
            return then if value else otherwise
        case ir.Reduce(body=ir.Const(1), axes=axes, guard=guard) if (
            expr.reducer.name == "sum" and expr.dtype == i64 and guard == TRUE
        ):
            return _count(axes) or expr
        case _:
            return expr


def _count(axes: Sequence[ir.Axis]) -> ir.Expr | None:
    """How many points there are, which a mean divides by; None where that is no product of extents."""
    number, factors = 1, list[ir.Expr]()
    for one in axes:
        if len(one.lower) != 1 or len(one.upper) != 1:
            return None
        extent = one.upper[0] - one.lower[0]
        if extent.is_constant:
            number *= max(0, extent.constant)
        else:
            value: ir.Expr = ir.IndexValue(extent, i64)
            factors.append(value if is_nonnegative(extent) else ir.Op("maximum", (value, ir.Const(0, i64)), i64))
    if number >= 1 << 63:
        return None
    product: ir.Expr = ir.Const(number, i64)
    for factor in factors:
        product = factor if product == ir.Const(1, i64) else ir.Op("mul", (product, factor), i64)
    return product


def _decided(condition: Condition) -> bool | None:
    """Whether a condition holds everywhere or nowhere by its constants alone."""
    if condition in (TRUE, FALSE):
        return condition == TRUE
    match condition:
        case Compare(left) if left.is_constant:
            return bool(holds(condition, {}, {}))
        case Not(part):
            inner = _decided(part)
            return None if inner is None else not inner
        case And(parts):
            verdicts = [_decided(part) for part in parts]
            return False if False in verdicts else None if None in verdicts else True
        case Or(parts):
            verdicts = [_decided(part) for part in parts]
            return True if True in verdicts else None if None in verdicts else False
        case _:
            return None


# --- dead code ------------------------------------------------------------------------------------------------


def drop_unused(program: ir.Program) -> ir.Program:
    """The program without tensors that no result depends on."""
    reached: set[str] = set()
    work = list(program.results)
    while work:
        name = work.pop()
        if name in reached:
            continue
        reached.add(name)
        for equation in program.definitions(name):
            work.extend(read.tensor for read in equation.reads())
    return replace(
        program,
        tensors=tuple(t for t in program.tensors if t.name in reached or t.role == "input"),
        equations=tuple(e for e in program.equations if e.tensor in reached),
    )


def nonempty(axes: Iterable[ir.Axis], known: frozenset[str]) -> Condition:
    """Whether there is a point of axes that a temporary goes without, as far as sizes and known axes tell: where there
    is none, nothing says that what it reads exists."""
    spans = (upper - lower for one in axes for lower in one.lower for upper in one.upper)
    return conjunction(*(Compare(span, ">") for span in spans if not span.is_constant and axes_of(span) <= known))


def depends_on(program: ir.Program, tensors: Iterable[str], other: str) -> bool:
    """Whether one of the tensors, or what it is computed from, is the other one."""
    seen: set[str] = set()
    work = list(tensors)
    while work:
        name = work.pop()
        if name not in seen:
            seen.add(name)
            work.extend(r.tensor for equation in program.definitions(name) for r in equation.reads())
    return other in seen


# --- inlining -------------------------------------------------------------------------------------------------


def inline(program: ir.Program, ops_per_byte: int = 0, kept: Collection[str] = ()) -> ir.Program:
    """Writes pointwise producers into their consumers, in order, where that pays; those of tensors kept apart stay."""
    for tensor in program.tensors:
        producer = _pointwise(program, tensor) if tensor.name not in kept else None
        if producer is None:
            continue
        readers = [e for e in program.equations if any(read.tensor == tensor.name for read in e.reads())]
        if not _pays(program, producer, readers, ops_per_byte):
            continue
        into = partial(_with, producer=producer)
        rewritten = {e.name: _map_values(e, into) for e in readers}
        if all(sum(1 for _ in ir.walk(e.value)) <= LARGEST_VALUE for e in rewritten.values()):
            equations = tuple(rewritten.get(e.name, e) for e in program.equations if e.tensor != tensor.name)
            tensors = tuple(t for t in program.tensors if t.name != tensor.name)
            program = replace(program, equations=equations, tensors=tensors)
    return program


def _pointwise(program: ir.Program, tensor: ir.Tensor) -> ir.Equation | None:
    """The one definition of a local tensor, if every element is a plain expression of its own indices."""
    definitions = program.definitions(tensor.name)
    if tensor.role != "local" or len(definitions) != 1:
        return None
    equation = definitions[0]
    alone = tuple(Affine(0, ((AxisRef(a.name), 1),)) for a in equation.axes)
    plain = not equation.is_accumulation and equation.guard == TRUE and equation.subscripts == alone
    if not plain or any(isinstance(node, ir.Reduce) for node in ir.walk(equation.value)):
        return None
    if any(read.tensor == tensor.name for read in ir.reads(equation.value)):
        return None
    return equation


@dataclass(frozen=True, slots=True)
class _Use:
    """A read of a producer. consumer: name of the equation; again: axes around it that leave it unchanged."""

    consumer: str
    read: ir.Read
    again: frozenset[ir.Axis]


def _pays(program: ir.Program, producer: ir.Equation, readers: Sequence[ir.Equation], ops_per_byte: int) -> bool:
    """Whether inlining a tensor's one definition into the equations that read it is worth it."""
    uses = [use for e in readers for use in _uses(e, producer.tensor)]
    if any(use.read.boundary is not None for use in uses):
        return False
    if any(not isinstance(s, Affine) for use in uses for s in use.read.subscripts):
        return False
    if _is_checked(producer.value) and not any(_reads_all(e, producer) for e in readers):
        return False
    own = cost(producer.value)
    if own == 0:
        return True
    if any(use.again for use in uses):
        return ops_per_byte > 0 and _repays_again(program, producer, uses, ops_per_byte)
    places = {(use.consumer, use.read) for use in uses}
    return len(places) <= 1 or own * len(places) <= REPEATED_COST


def _is_checked(expr: ir.Expr) -> bool:
    """Whether a value is read at subscripts that are data, each of which is an error where it is out of range."""
    reads = (node for node in ir.walk(expr) if isinstance(node, ir.Read) and node.boundary is None)
    return any(isinstance(subscript, ir.DataIndex) for read in reads for subscript in read.subscripts)


def _reads_all(equation: ir.Equation, producer: ir.Equation) -> bool:
    """Whether an equation plainly reads every element of a producer: at axes that have the ranges of the producer's."""
    wanted = [(axis.lower, axis.upper) for axis in producer.axes]
    unguarded = _unguarded_reads(equation.value, equation.all_axes) if equation.guard == TRUE else ()
    for read, axes in unguarded:
        ranges = {affine.axis(axis.name): (axis.lower, axis.upper) for axis in axes}
        found = [ranges.get(s) if isinstance(s, Affine) else None for s in read.subscripts]
        happens = all(length(axis) != 0 for axis in axes)
        if read.tensor == producer.tensor and found == wanted and len(set(read.subscripts)) == len(wanted) and happens:
            return True
    return False


def _unguarded_reads(value: ir.Expr, axes: tuple[ir.Axis, ...]) -> Iterator[tuple[ir.Read, tuple[ir.Axis, ...]]]:
    """The reads that happen at all points, whatever conditions on indices hold, and the axes around each."""
    match value:
        case ir.Where():
            return
        case ir.Reduce():
            if value.guard == TRUE:
                yield from _unguarded_reads(value.body, (*axes, *value.axes))
            return
        case ir.Read():
            yield value, axes
    for child in ir.children(value):
        yield from _unguarded_reads(child, axes)


def _repays_again(program: ir.Program, producer: ir.Equation, uses: Sequence[_Use], ops_per_byte: int) -> bool:
    """Whether a product that reads a value of one element again and again computes it each time.

    It does where the value is used so seldom that its way to memory and back takes longer, and where two narrow
    elements are widened to be multiplied, which tensor cores do by themselves. Narrow values stay as they are: tensor
    cores take them as stored.
    """
    sources = list(ir.reads(producer.value))
    item = program.tensor(producer.tensor).dtype.itemsize
    if len(sources) != 1 or len({(use.consumer, use.read) for use in uses}) != 1 or item < WIDE_BYTES:
        return False
    if _multiplies_narrow(program, uses[0].consumer):
        return True
    times = 1
    for axis in uses[0].again:
        if not axis.is_resolved or not all(bound.is_constant for bound in (*axis.lower, *axis.upper)):
            return False
        times *= min(b.constant for b in axis.upper) - max(b.constant for b in axis.lower)
    source = sources[0].dtype.itemsize
    moved = source + item + (item - source) * -(-times // TOGETHER)
    return cost(producer.value) * times <= ops_per_byte * moved * KEPT


def _multiplies_narrow(program: ir.Program, consumer: str) -> bool:
    """Whether an equation sums up products of two elements of one narrow dtype, each widened before."""
    equation = next(e for e in program.equations if e.name == consumer)
    value = equation.value
    if not equation.is_accumulation or not isinstance(value, ir.Op) or value.name != "mul":
        return False
    kinds = {_widened_from(program, arg) for arg in value.args}
    return len(kinds) == 1 and None not in kinds


def _widened_from(program: ir.Program, factor: ir.Expr) -> DType | None:
    """The dtype of the narrow element that a factor widens for tensor cores, by itself or as a local tensor."""
    if isinstance(factor, ir.Read):
        definitions = program.definitions(factor.tensor)
        if len(definitions) != 1 or definitions[0].is_accumulation:
            return None
        factor = definitions[0].value
    if not isinstance(factor, ir.Cast) or not isinstance(factor.arg, ir.Read):
        return None
    return factor.arg.dtype if (factor.arg.dtype, factor.dtype) in WIDENED else None


def _uses(equation: ir.Equation, tensor: str) -> Iterator[_Use]:
    """Reads of `tensor` in an equation, data subscripts of its left side included."""
    around = frozenset(equation.all_axes)
    for subscript in equation.subscripts:
        if isinstance(subscript, ir.DataIndex):
            yield from _uses_in(subscript.value, tensor, around, equation.name)
    yield from _uses_in(equation.value, tensor, around, equation.name)


def _uses_in(expr: ir.Expr, tensor: str, around: frozenset[ir.Axis], consumer: str) -> Iterator[_Use]:
    if isinstance(expr, ir.Read) and expr.tensor == tensor:
        used = frozenset().union(*(axes_of(s) for s in expr.subscripts if isinstance(s, Affine)))
        yield _Use(consumer, expr, frozenset(axis for axis in around if axis.name not in used))
    inner = around | frozenset(expr.axes) if isinstance(expr, ir.Reduce) else around
    for child in ir.children(expr):
        yield from _uses_in(child, tensor, inner, consumer)


def cost(expr: ir.Expr) -> int:
    """Scalar operations of an expression; a read, a constant or an index costs nothing."""
    match expr:
        case ir.Op(name):
            own = _FUNCTION if BUILTINS[name].ulp else _COSTS.get(name, _CHEAP)
        case ir.Where() | ir.Cast():
            own = _CHEAP
        case _:
            own = 0
    return own + sum(cost(child) for child in ir.children(expr))


def inlined(equation: ir.Equation, producers: Sequence[ir.Equation]) -> ir.Equation:
    """The equation with reads of pointwise producers replaced by their values, the last producer's first."""
    for producer in reversed(producers):
        equation = _map_values(equation, partial(_with, producer=producer))
    return equation


def _with(expr: ir.Expr, producer: ir.Equation) -> ir.Expr:
    """The expression with reads of the producer's tensor replaced by its value."""
    expr = ir.rebuild(expr, lambda child: _with(child, producer))
    if isinstance(expr, ir.Read) and expr.tensor == producer.tensor:
        at = {a.name: s for a, s in zip(producer.axes, expr.subscripts, strict=True) if isinstance(s, Affine)}
        return at_axes(producer.value, at)
    return expr


def _map_values(equation: ir.Equation, change: Callable[[ir.Expr], ir.Expr]) -> ir.Equation:
    """The equation with its value and its data subscripts changed."""
    subscripts = ir.map_data(equation.subscripts, change)
    return replace(equation, value=change(equation.value), subscripts=subscripts)
