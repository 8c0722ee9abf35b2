"""Cascades of reductions that can run in one pass: which sums follow a running maximum.

A sum over an axis whose summand depends on the maximum over the same axis seems to need the finished maximum, and so a
second pass over everything that led to it. Where the summand moves with the maximum by a factor of its own (see
`rescale`), both run in one loop over blocks of the axis: each block has its maximum, the running maximum follows, and
the running sums are multiplied by the factor. What the blocks compute on the way lives for one block: attention by its
definition needs no array of scores. An identity in exact arithmetic, so not for strict numerics.

`decide` looks at the program and gives the cascades that pay; `running` writes them as recurrences over the blocks.
Sources: [OnlineSoftmax18], [FlashAttention22].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    And,
    Condition,
    axis,
)
from polyopt.fusion import rescale
from polyopt.fusion.axes import apart, assumed_length, axes_in, plain_axes, renamed
from polyopt.fusion.inside import conditions, reads_inside
from polyopt.fusion.rescale import Rescale
from polyopt.fusion.rewrite import inlined
from polyopt.names import unused
from polyopt.poly.space import Space

ROWS = POINTS = 96
"""Rows and points of a block: every usual register tile divides them."""

LEAST_ROWS = 16
"""Rows that must share what a block reads for blocks to pay."""

KEPT_BYTES = 1 << 17
"""Bytes between the reductions that stay in a cache anyway."""


WEIGHT = "weight"
"""The variable of a running sum's `rest`."""

HARMLESS = 2.0**32
"""The most that may be added to a sum of weights, or that it may be raised to, for the result to divide another sum."""


@dataclass(frozen=True, slots=True)
class RunningSum:
    """A sum that runs with the maximum.

    node:    the reduction, as it stands in its consumer
    weight:  the part of the summand that moves with the maximum
    rest:    the summand, with a variable `WEIGHT` for the weight; None where that is all of it
    outside: factors that the axis leaves alone and that leave the sum; each with whether it divides
    rescale: how the weight moves
    """

    node: ir.Reduce
    weight: ir.Expr
    rest: ir.Expr | None
    outside: tuple[tuple[ir.Expr, bool], ...]
    rescale: Rescale


@dataclass(frozen=True, slots=True)
class Consumer:
    """An equation with running sums: all that moves with the maximum written into it, its axes named as the maximum's.

    was: the name of the equation it replaces
    """

    was: str
    equation: ir.Equation
    sums: tuple[RunningSum, ...]


@dataclass(frozen=True, slots=True)
class Cascade:
    """A maximum and the sums that run with it.

    maximum:   its tensor
    rows, row: the axes of its elements; the one of them that is cut into blocks of rows
    point:     the axis that is reduced over, cut into blocks of points
    leaves:    reads of local tensors with an element for every row and point, producers first
    tile:      rows and points of a block
    """

    maximum: str
    rows: tuple[str, ...]
    row: str
    point: str
    leaves: tuple[ir.Read, ...]
    consumers: tuple[Consumer, ...]
    tile: tuple[int, int]

    @property
    def block(self) -> str:
        """The axis over blocks of points."""
        return _block(self.point, self.rows)

    def __str__(self) -> str:
        sums = ", ".join(dict.fromkeys(c.equation.tensor for c in self.consumers))
        moves = ", ".join(dict.fromkeys(str(s.rescale) for c in self.consumers for s in c.sums))
        leaves = ", ".join(leaf.tensor for leaf in self.leaves)
        kept = f"; {leaves} exist for {self.tile[0]} x {self.tile[1]} points at a time"
        return f"{self.maximum} and the sums of {sums} in one pass over {self.point}, rescaled by {moves}{kept}"


def decide(
    program: ir.Program, maximum: str, *, tile: tuple[int, int] = (ROWS, POINTS), kept_bytes: int = KEPT_BYTES
) -> Cascade | None:
    """The cascade that starts from a tensor; None where there is none, none that pays, or no such tensor any more.

    tile:       rows and points of a block
    kept_bytes: bytes between the reductions that stay in a cache without blocks
    """
    tensors = [tensor for tensor in program.tensors if tensor.name == maximum]
    return _Finder(program, tile, kept_bytes).cascade(tensors[0]) if tensors else None


def has_points(program: ir.Program, equation: ir.Equation, axes: tuple[ir.Axis, ...], guard: Condition = TRUE) -> bool:
    """Whether every row of an equation has a point to reduce over, of some axes and where a guard holds."""
    space = Space("", tuple(a.name for a in (*equation.axes, *axes)), program.sizes)
    rows = Space("", tuple(a.name for a in equation.axes), program.sizes)
    points = space.box((*equation.axes, *axes)) & space.condition(guard)
    reached = points.project_out(isl.dim_type.set, len(equation.axes), len(axes))
    return bool((rows.box(equation.axes) & conditions(program, rows)).is_subset(reached))


@dataclass(frozen=True, slots=True)
class _Frame:
    """The maximum: its equation, its reduction and the names of its axes."""

    equation: ir.Equation
    reduce: ir.Reduce
    rows: tuple[str, ...]
    point: str

    @property
    def read(self) -> ir.Read:
        """The maximum at the row at hand."""
        subscripts = tuple(axis(name) for name in self.rows)
        return ir.Read(self.equation.tensor, subscripts, self.reduce.dtype)


@dataclass(slots=True)
class _Finder:
    program: ir.Program
    tile: tuple[int, int]
    kept_bytes: int
    moved: Mapping[str, ir.Equation] = field(default_factory=dict)

    def cascade(self, tensor: ir.Tensor) -> Cascade | None:
        frame = self.frame(tensor)
        if frame is None:
            return None
        leaves = self.leaves(frame)
        row = None if leaves is None else self.row(frame, leaves)
        if leaves is None or row is None or not self.pays(frame):
            return None
        consumers = self.consumers(frame, leaves)
        if not consumers or self.is_interrupted(frame, consumers):
            return None
        return Cascade(tensor.name, frame.rows, row, frame.point, leaves, consumers, self.tile)

    # -- the maximum -------------------------------------------------------------------------------------------

    def frame(self, tensor: ir.Tensor) -> _Frame | None:
        equation = _alone(self.program, tensor.name)
        if equation is None or equation.is_accumulation or not isinstance(equation.value, ir.Reduce):
            return None
        if equation.guard != TRUE:
            return None
        reduce = equation.value
        if reduce.reducer.name not in ("max", "min") or not reduce.dtype.is_float or len(reduce.axes) != 1:
            return None
        point = reduce.axes[0]
        if point.lower != (Affine(0),) or len(point.upper) != 1 or not equation.axes:
            return None
        if reduce.reducer.neutral is not None or not has_points(self.program, equation, reduce.axes, reduce.guard):
            return None  # the maximum over nothing would need its start value
        return _Frame(equation, reduce, tuple(a.name for a in equation.axes), point.name)

    def leaves(self, frame: _Frame) -> tuple[ir.Read, ...] | None:
        """Local tensors with an element per row and point that the maximum is over, producers first; None where one
        is read otherwise than row by row and point by point."""
        found: dict[str, ir.Read] = {}

        def visit(expr: ir.Expr) -> bool:
            for read in ir.reads(expr):
                if self.program.tensor(read.tensor).role != "local" or not {frame.point, *frame.rows} <= axes_in(read):
                    continue
                if read.tensor in found:
                    if found[read.tensor] != read:
                        return False
                    continue
                own = _alone(self.program, read.tensor)
                if own is None or len(plain_axes(read) or ()) != len(frame.rows) + 1:
                    return False
                equation = _leaf_equation(own, read, frame.rows, frame.point)
                if equation is None or _parts(equation.guard) not in (frozenset(), _parts(frame.reduce.guard)):
                    return False
                if not visit(equation.value):
                    return False
                found[read.tensor] = read
            return True

        return tuple(found.values()) if visit(frame.reduce.body) else None

    def pays(self, frame: _Frame) -> bool:
        """Whether arrays with an element per row and point outgrow the cache."""
        points = prod(map(assumed_length, (*frame.equation.axes, *frame.reduce.axes)))
        return points * frame.reduce.dtype.itemsize > self.kept_bytes

    def row(self, frame: _Frame, leaves: tuple[ir.Read, ...]) -> str | None:
        """The axis of rows to cut into blocks: the last one long enough whose rows share what the reductions that make
        the leaves read at a point; None where there is none."""
        operands = [axes_in(read) for term in self.terms(frame, leaves) for read in ir.reads(term)]
        shared = [axes for axes in operands if frame.point in axes]
        long = (a.name for a in reversed(frame.equation.axes) if assumed_length(a) >= LEAST_ROWS)
        return next((name for name in long if any(name not in axes for axes in shared)), None)

    def terms(self, frame: _Frame, leaves: tuple[ir.Read, ...]) -> Iterator[ir.Expr]:
        """What is reduced in the definitions of leaves, axes named as the maximum's."""
        for leaf in leaves:
            own = _alone(self.program, leaf.tensor)
            equation = None if own is None else _leaf_equation(own, leaf, frame.rows, frame.point)
            if equation is not None and equation.is_accumulation:
                yield equation.value
            elif equation is not None:
                yield from (node.body for node in ir.walk(equation.value) if isinstance(node, ir.Reduce))

    # -- the sums ----------------------------------------------------------------------------------------------

    def consumers(self, frame: _Frame, leaves: tuple[ir.Read, ...]) -> tuple[Consumer, ...]:
        """The equations with running sums; none where something else needs a leaf as a whole."""
        own = {frame.equation.tensor, *(leaf.tensor for leaf in leaves)}
        self.moved = moving = self.moving(frame, leaves)
        found: list[Consumer] = []
        for equation in self.program.equations:
            if equation.tensor in own or equation.tensor in moving:
                continue
            if not any(read.tensor in own or read.tensor in moving for read in equation.reads()):
                continue
            whole = inlined(equation, [e for name, e in moving.items()])
            consumer = self.consumer(frame, leaves, whole)
            if consumer is None:
                return ()
            if consumer.sums:
                found.append(consumer)
        return tuple(found)

    def moving(self, frame: _Frame, leaves: tuple[ir.Read, ...]) -> dict[str, ir.Equation]:
        """Local tensors that are plain expressions of the maximum or of leaves; a producer comes before its readers."""
        found: dict[str, ir.Equation] = {}
        known = {frame.equation.tensor, *(leaf.tensor for leaf in leaves)}
        kept = {read.tensor for equation in self.program.equations for read in equation.reads() if not _is_plain(read)}
        for _ in self.program.tensors:
            for tensor in self.program.tensors:
                equation = _alone(self.program, tensor.name)
                if tensor.role != "local" or equation is None or tensor.name in known or equation.is_accumulation:
                    continue
                if tensor.name in kept:
                    continue
                if _has_reduce(equation.value) or not any(r.tensor in known for r in equation.reads()):
                    continue
                found[tensor.name] = inlined(equation, list(found.values()))
                known.add(tensor.name)
        return found

    def consumer(self, frame: _Frame, leaves: tuple[ir.Read, ...], equation: ir.Equation) -> Consumer | None:
        """The equation with its running sums named as the maximum names its axes; None where it needs a leaf
        outside of them."""
        equation = as_definition(self.program, equation)
        names: dict[str, str] = {}
        for node in self.touching(equation.value, frame, leaves):
            own = self.names(node, frame)
            if own is None or any(names.get(name, own[name]) != own[name] for name in own):
                return None
            names |= own
        tensors = {leaf.tensor for leaf in leaves}
        if not names:
            needs = any(read.tensor in tensors for read in equation.reads())
            return None if needs else Consumer(equation.name, equation, ())
        if equation.is_accumulation or equation.guard != TRUE or len(set(names.values())) != len(names):
            return None
        equation = renamed(equation, apart(equation, names, _taken(frame.rows, frame.point)))
        nodes = list(self.touching(equation.value, frame, leaves))
        sums = [self.running(node, frame) for node in nodes]
        stripped = without(equation.value, nodes)
        if any(read.tensor in tensors and read not in leaves for node in nodes for read in ir.reads(node)):
            return None
        if any(read.tensor in tensors for read in ir.reads(stripped)):
            return None
        if not set(frame.rows) <= {a.name for a in equation.axes} or not self.is_for_all_rows(frame, equation, nodes):
            return None
        found = tuple(s for s in dict.fromkeys(sums) if s is not None)
        return None if None in sums else Consumer(equation.name, equation, found)

    def is_for_all_rows(self, frame: _Frame, equation: ir.Equation, nodes: list[ir.Reduce]) -> bool:
        """Whether sums may run in every row of the maximum, which has all rows that they have."""
        rows = [a for a in equation.axes if a.name in frame.rows]
        space = Space("", tuple(a.name for a in rows), self.program.sizes)
        if not (space.box(rows) & conditions(self.program, space)).is_subset(space.box(frame.equation.axes)):
            return False
        axes = (*frame.equation.axes, *(a for a in equation.axes if a.name not in frame.rows))
        return all(reads_inside(self.program, node, axes) for node in nodes)

    @staticmethod
    def touching(expr: ir.Expr, frame: _Frame, leaves: tuple[ir.Read, ...]) -> Iterator[ir.Reduce]:
        """The reductions that need a leaf, or the maximum at each of the points that they reduce over."""
        tensors = {leaf.tensor for leaf in leaves}
        for node in ir.walk(expr):
            if isinstance(node, ir.Reduce):
                mine = {a.name for a in node.axes}
                for read in ir.reads(node.body):
                    same = read.tensor == frame.equation.tensor and not mine & axes_in(read)
                    if read.tensor in tensors or same:
                        yield node
                        break

    def names(self, node: ir.Reduce, frame: _Frame) -> dict[str, str] | None:
        """What the maximum calls the axes that a sum reads it with; None where it reads it otherwise."""
        if node.reducer.name != "sum" or len(node.axes) != 1:
            return None
        reads = {r.subscripts for r in ir.reads(node.body) if r.tensor == frame.equation.tensor}
        if len(reads) != 1:
            return None
        axes = plain_axes(ir.Read(frame.equation.tensor, reads.pop(), node.dtype))
        if axes is None:
            return None
        return {**dict(zip(axes, frame.rows, strict=True)), node.axes[0].name: frame.point}

    def running(self, node: ir.Reduce, frame: _Frame) -> RunningSum | None:
        """A sum, its axes named as the maximum's, taken apart; None where it does not move as it should."""
        own, theirs = node.axes[0], frame.reduce.axes[0]
        if (
            (own.lower, own.upper) != (theirs.lower, theirs.upper)
            or _parts(node.guard) != _parts(frame.reduce.guard)
            or node.dtype != frame.reduce.dtype
        ):
            return None
        moving, rest, outside = [], [], []
        for part, inverted in rescale.factors(node.body):
            if any(self.is_maximum(n, frame) for n in ir.walk(part)):
                moving.append((part, inverted))
            elif self.is_harmless(part, frame):
                outside.append((part, inverted))
            else:
                rest.append((part, inverted))
        weight = rescale.product(moving)
        if weight is None or any(frame.point not in axes_in(part) for part, _ in moving):
            return None
        found = rescale.solve(weight, lambda n: self.is_maximum(n, frame))
        rising = frame.reduce.reducer.name == "max"
        if found is None or (found.factor > 0) != rising:
            return None
        if not rescale.is_bounded(weight, frame.reduce.body, lambda n: self.is_maximum(n, frame), found.factor):
            return None  # a weight may overflow, or differ from 0 where there is no maximum yet
        variable = ir.Var(WEIGHT, weight.dtype)
        if not rest:
            summand = None
        elif len(moving) == 1 and not moving[0][1]:
            summand = rescale.without(node.body, {part for part, _ in outside}, {weight: variable})
        elif len(rest) == 1 and not rest[0][1]:
            summand = ir.Op("mul", (variable, rest[0][0]), node.dtype)
        else:
            return None
        return RunningSum(node, weight, summand, tuple(outside), found)

    def is_harmless(self, part: ir.Expr, frame: _Frame) -> bool:
        """Whether a factor may multiply or divide a sum instead of its terms: a sum of weights, which is at least 1, or
        one a little larger. Of others, terms may overflow or be NaN where the sum is not, and the other way."""
        match part:
            case ir.Op("add" | "maximum", (inner, ir.Const(value))) | ir.Op(
                "add" | "maximum", (ir.Const(value), inner)
            ):
                return 0 <= value <= HARMLESS and self.is_harmless(inner, frame)
            case ir.Read():
                return self.is_sum_of_weights(part, frame)
            case _:
                return False

    def is_sum_of_weights(self, read: ir.Read, frame: _Frame) -> bool:
        equation = _alone(self.program, read.tensor)
        if equation is None:
            return False
        equation = inlined(as_definition(self.program, equation), list(self.moved.values()))
        names = self.names(equation.value, frame) if isinstance(equation.value, ir.Reduce) else None
        if names is None or equation.guard != TRUE:
            return False
        equation = renamed(equation, apart(equation, names, _taken(frame.rows, frame.point)))
        if equation.subscripts != read.subscripts or not isinstance(equation.value, ir.Reduce):
            return False
        found = self.running(equation.value, frame)
        return found is not None and found.rest is None and not found.outside

    @staticmethod
    def is_maximum(expr: ir.Expr, frame: _Frame) -> bool:
        return expr == frame.read

    # -- what stands between -----------------------------------------------------------------------------------

    def is_interrupted(self, frame: _Frame, consumers: tuple[Consumer, ...]) -> bool:
        """Whether something else must run between two parts of the cascade: its loop could not hold both."""
        inside = {frame.equation.tensor, *(c.equation.tensor for c in consumers)}
        known = {c.equation.tensor: c.equation for c in consumers}
        behind: set[str] = set()
        for _ in self.program.tensors:
            for equation in self.program.equations:
                reads = {r.tensor for r in known.get(equation.tensor, equation).reads()}
                if reads & (inside | behind) and equation.tensor not in inside:
                    behind.add(equation.tensor)
        return any(r.tensor in behind for c in consumers for r in c.equation.reads())


# --- expressions ------------------------------------------------------------------------------------------------


def _alone(program: ir.Program, tensor: str) -> ir.Equation | None:
    """The only definition of a tensor, if it covers it index by index."""
    definitions = program.definitions(tensor)
    if len(definitions) != 1:
        return None
    equation = definitions[0]
    alone = tuple(axis(a.name) for a in equation.axes)
    return equation if equation.subscripts == alone else None


def _is_plain(read: ir.Read) -> bool:
    """Whether a read is of the element that affine subscripts say, so that the element's value can stand for it."""
    return read.boundary is None and all(isinstance(s, Affine) for s in read.subscripts)


def _has_reduce(expr: ir.Expr) -> bool:
    return any(isinstance(node, ir.Reduce) for node in ir.walk(expr))


def _parts(condition: Condition) -> frozenset[Condition]:
    return frozenset(condition.parts) if isinstance(condition, And) else frozenset({condition})


def as_definition(program: ir.Program, equation: ir.Equation) -> ir.Equation:
    """An accumulation that is its tensor's only definition, as a plain one; others as they are."""
    reducer = equation.reducer
    if reducer is None or _alone(program, equation.tensor) is None or not equation.reduce_axes:
        return equation
    value: ir.Expr = ir.Reduce(
        reducer, equation.value, equation.reduce_axes, reducer.dtype, equation.guard, equation.span
    )
    dtype = program.tensor(equation.tensor).dtype
    value = value if dtype == reducer.dtype else ir.Cast(value, dtype)
    return replace(equation, value=value, guard=TRUE, reducer=None, reduce_axes=())


def leaf_equation(program: ir.Program, cascade: Cascade, leaf: ir.Read) -> ir.Equation:
    """The definition of a leaf, its axes named as the maximum's."""
    own = _alone(program, leaf.tensor)
    found = None if own is None else _leaf_equation(as_definition(program, own), leaf, cascade.rows, cascade.point)
    assert found is not None, "a leaf is defined element by element"
    return found


def _leaf_equation(own: ir.Equation, leaf: ir.Read, rows: tuple[str, ...], point: str) -> ir.Equation | None:
    axes = plain_axes(leaf)
    if axes is None:
        return None
    names = dict(zip((a.name for a in own.axes), axes, strict=True))
    return renamed(own, apart(own, names, _taken(rows, point)))


def _block(point: str, rows: Sequence[str]) -> str:
    return unused(f"{point}_block", rows)


def _taken(rows: Sequence[str], point: str) -> set[str]:
    """The names that the maximum and its blocks have."""
    return {*rows, point, _block(point, rows)}


def without(expr: ir.Expr, nodes: list[ir.Reduce]) -> ir.Expr:
    """The expression with reductions left out."""
    if isinstance(expr, ir.Reduce) and expr in nodes:
        return ir.Const(0.0, expr.dtype)
    return ir.rebuild(expr, lambda child: without(child, nodes))
