"""A cascade written as recurrences over blocks of the reduced axis.

With `T` for the block and `t` for the point in it, what is written for `m[i] = max(x[i, j], j)` and
`s[i] = sum(exp(x[i, j] - m[i]) * v[j], j)` is

    here[T, i]      = max(x[T, t, i], t)                          the block's maximum
    running[T, i]   = max(running[T-1, i], here[T, i])
    level[T, i]     = running[T, i], and 0 while that is -inf     what summands are taken relative to
    weight[T, t, i] = exp(x[T, t, i] - level[T, i])
    part[T, i]      = part[T-1, i] * exp(running[T-1, i] - level[T, i]) + sum(weight[T, t, i] * v[T*B + t], t)

with `m` and `s` read from the last block of their row. While all points so far are -inf their summands are taken as 0,
which they are as soon as a greater point follows; where none does, the last step multiplies by `exp(0 - -inf)`, which
gives the NaN of the definition. Local arrays with an element per row and point keep rows innermost, so that lanes run
over rows and a block's maximum and sums need no step across lanes. A block holds all points from its first to its last
one for each row, whether or not a guard excludes some of them, wherever their reads are in bounds; what is excluded is
-inf for the maximum, 0 for a sum of weights, and no instance at all where a weight is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    Not,
    Or,
    axes_of,
    axis,
    conjunction,
    map_condition,
    substitute,
)
from polyopt.dtypes import bool_
from polyopt.fusion import rescale
from polyopt.fusion.axes import at_axes, axes_in
from polyopt.fusion.cascade import WEIGHT, Cascade, Consumer, RunningSum, leaf_equation
from polyopt.fusion.inside import conditions, reads_inside
from polyopt.fusion.rescale import Rescale
from polyopt.fusion.rewrite import drop_unused
from polyopt.names import unused
from polyopt.poly.extract import highest, lowest
from polyopt.poly.scop import Scop
from polyopt.poly.space import Space


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the statements of a cascade share loops.

    rows:    axes of rows, `row` the one of them that is cut into blocks of `row_points`
    block:   the axis of blocks of points, which run in order
    tensors: those that are made by block or read from blocks
    """

    rows: tuple[str, ...]
    row: str
    block: str
    row_points: int
    tensors: frozenset[str]

    def shared_rows(
        self, scop: Scop, taken: Mapping[str, tuple[tuple[str, Affine], ...]]
    ) -> dict[str, tuple[tuple[str, Affine], ...]]:
        """For each statement of the cascade, the names and rows of the loops that it shares, outermost first.

        taken: the rows of other cascades, whose loops have other names
        """
        names = {loop for rows in taken.values() for loop, _ in rows}
        rest = [name for name in self.rows if name != self.row]
        axes = {name for statement in scop.statements for name in statement.axes}
        row_block = unused(f"{self.row}_block", names | axes)  # which is no statement's axis
        loops = {name: unused(name, names) for name in (*rest, self.block)}
        found: dict[str, tuple[tuple[str, Affine], ...]] = {}
        for statement in scop.statements:
            touched = {statement.array, *(access.read.tensor for access in statement.reads)}
            in_block = self.block in statement.axes
            if in_block and any(row == axis(self.block) for _, row in taken.get(statement.name, ())):
                continue  # the blocks of another cascade, whose axis has this name too
            if not set(self.rows) <= set(statement.axes) or not (in_block or touched & self.tensors):
                continue
            rows = [(loops[name], axis(name)) for name in rest]
            rows.append((row_block, axis(self.row) // self.row_points))
            found[statement.name] = (*rows, (loops[self.block], axis(self.block))) if in_block else tuple(rows)
        return found


def apply(program: ir.Program, cascade: Cascade) -> tuple[ir.Program, Blocks]:
    """The program with the cascade in one pass, and what its loops share."""
    writer = _Writer(program, cascade)
    return writer.written()


@dataclass(slots=True)
class _Writer:
    """Collects the new tensors and equations.

    in_blocks: what has a tensor of its own in a block, and the read of it
    turned:    reads that stride along the rows, with the axes of a copy, and what is read instead
    around:    the axes of the reductions around what is being written
    weights:   the part of a summand that moves, and the read of its value in a block
    """

    program: ir.Program
    cascade: Cascade
    tensors: list[ir.Tensor] = field(default_factory=list)
    equations: list[ir.Equation] = field(default_factory=list)
    in_blocks: dict[ir.Expr, ir.Read] = field(default_factory=dict)
    turned: dict[tuple[ir.Read, tuple[ir.Axis, ...]], ir.Read] = field(default_factory=dict)
    around: tuple[ir.Axis, ...] = ()
    weights: dict[ir.Expr, ir.Read] = field(default_factory=dict)
    scales: dict[Rescale, ir.Read] = field(default_factory=dict)
    corrections: dict[Rescale, ir.Read] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    maximum: ir.Equation = field(init=False)
    reduce: ir.Reduce = field(init=False)
    loose: bool = field(init=False)

    def __post_init__(self) -> None:
        self.used = {t.name for t in self.program.tensors} | {e.name for e in self.program.equations}
        self.maximum = self.program.definitions(self.cascade.maximum)[0]
        assert isinstance(self.maximum.value, ir.Reduce), "a cascade starts from a reduction"
        self.reduce = self.maximum.value
        self.loose = self.is_loose()

    def written(self) -> tuple[ir.Program, Blocks]:
        cascade = self.cascade
        for leaf in cascade.leaves:
            self.add_leaf(leaf)
        body = self.in_block(self.reduce.body)
        if not isinstance(body, ir.Read):
            guard = self.guard_of_points(exact=not self.loose)
            body = self.define(f"{cascade.maximum}_of", self.point_axes, body, guard)
            self.in_blocks[self.reduce.body] = body
        running = self.running_maximum(body)
        level = self.level(running)
        self.equations.append(replace(self.maximum, value=self.last(running)))
        for consumer in cascade.consumers:
            self.add_consumer(consumer, running, level)
        replaced = {c.was for c in cascade.consumers} | {self.maximum.name}
        kept = tuple(e for e in self.program.equations if e.name not in replaced)
        program = replace(
            self.program,
            tensors=(*self.program.tensors, *self.tensors),
            equations=(*kept, *self.equations),
        )
        blocks = Blocks(
            cascade.rows, cascade.row, cascade.block, cascade.tile[0], frozenset(t.name for t in self.tensors)
        )
        return drop_unused(program), blocks

    @property
    def points(self) -> int:
        """Points of a block."""
        return self.cascade.tile[1]

    # -- axes and positions ------------------------------------------------------------------------------------

    @property
    def extent(self) -> Affine:
        return self.reduce.axes[0].upper[0]

    @property
    def block(self) -> ir.Axis:
        return ir.Axis(self.cascade.block, (Affine(0),), ((self.extent + (self.points - 1)) // self.points,))

    @property
    def point(self) -> ir.Axis:
        return ir.Axis(self.cascade.point, (Affine(0),), (Affine(self.points),))

    @property
    def other_rows(self) -> tuple[ir.Axis, ...]:
        return tuple(a for a in self.maximum.axes if a.name != self.cascade.row)

    @property
    def row(self) -> ir.Axis:
        return next(a for a in self.maximum.axes if a.name == self.cascade.row)

    @property
    def row_axes(self) -> tuple[ir.Axis, ...]:
        """Of what a block has one of per row."""
        return (*self.other_rows, self.block, self.row)

    @property
    def point_axes(self) -> tuple[ir.Axis, ...]:
        """Of what a block has one of per row and point."""
        return (*self.other_rows, self.block, self.point, self.row)

    @property
    def position(self) -> Affine:
        """The point that the reduction is at, in a block."""
        return axis(self.cascade.block) * self.points + axis(self.cascade.point)

    def at(self, affine: Affine, position: Affine) -> Affine:
        return substitute(affine, lambda atom: position if atom == AxisRef(self.cascade.point) else None)

    def in_block(self, expr: ir.Expr) -> ir.Expr:
        """An expression over rows and points at a point of a block; leaves are read from the block."""
        if expr in self.in_blocks:
            return self.in_blocks[expr]
        around = self.around
        self.around = (*around, *expr.axes) if isinstance(expr, ir.Reduce) else around
        moved = at_axes(ir.rebuild(expr, self.in_block), {self.cascade.point: self.position}, deep=False)
        self.around = around
        return self.lanewise(moved) if isinstance(moved, ir.Read) else moved

    # -- rows innermost ----------------------------------------------------------------------------------------

    def lanewise(self, read: ir.Read) -> ir.Read:
        """The read, or where it strides along the rows that of a copy in which they lie side by side."""
        row = axis(self.cascade.row)
        across = [s for s in read.subscripts if not isinstance(s, Affine) or self.cascade.row in axes_of(s)]
        if read.boundary is not None or across != [row] or read.subscripts[-1] == row:
            return read
        used = axes_in(read)
        by_block = bool({self.cascade.block, self.cascade.point} & used)
        own = (self.block, self.point) if by_block else ()
        axes = (*self.other_rows, *own, *(a for a in self.around if a.name in used), self.row)
        guard = self.guard_of_points(exact=not self.loose) if by_block else TRUE
        if not used <= {a.name for a in axes} or not reads_inside(self.program, read, axes, guard):
            return read
        if (read, axes) not in self.turned:
            self.turned[read, axes] = self.define(f"{read.tensor}_turned", axes, read, guard)
        return self.turned[read, axes]

    # -- guards ------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Condition, ...]:
        guard = self.reduce.guard
        return guard.parts if isinstance(guard, And) else (guard,)

    def bounds(self, sign: int) -> list[Affine]:
        """The affine expressions that the guard keeps from being negative, those in which the point has this sign."""
        found = []
        for part in self.parts:
            if isinstance(part, Compare) and part.op in (">=", ">", "<=", "<"):
                left = part.left if part.op[0] == ">" else -part.left
                left = left - 1 if len(part.op) == 1 else left
                rest = left - axis(self.cascade.point) * sign
                if self.cascade.point not in axes_of(rest):
                    found.append(left)
        return found

    def guard_of_rows(self) -> Condition:
        """Whether a block lies between the first and the last point of a row."""
        first = axis(self.cascade.block) * self.points
        lower = [Compare(self.at(b, first + (self.points - 1)), ">=") for b in self.bounds(1)]
        upper = [Compare(self.at(b, first), ">=") for b in self.bounds(-1)]
        return conjunction(*lower, *upper)

    def guard_of_points(self, *, exact: bool) -> Condition:
        """Whether a point is one of the reduction's; without `exact`, one of a block that may have any."""
        return conjunction(self.guard_of_rows(), self.inside(), self.guard() if exact else None)

    def inside(self) -> Condition | None:
        """Whether a point of the last block is in range; None where all are."""
        if self.extent.is_constant and self.extent.constant % self.points == 0:
            return None
        return Compare(self.extent - self.position - 1, ">=")

    def guard(self) -> Condition:
        """The reduction's own guard, at a point of a block."""
        return map_condition(self.reduce.guard, lambda a: self.at(a, self.position))

    def is_loose(self) -> bool:
        """Whether what a guard excludes may be computed all the same: no read leaves its array."""
        bodies = [self.reduce.body, *(self.leaf_equation(leaf).value for leaf in self.cascade.leaves)]
        if any(isinstance(s, ir.DataIndex) for body in bodies for r in ir.reads(body) for s in r.subscripts):
            return False  # the data may say anything where it is not used
        axes = (*self.maximum.axes, self.reduce.axes[0])
        return all(reads_inside(self.program, body, axes, choices=False) for body in bodies)

    def is_first(self) -> Condition:
        """Whether no block before has points of the row."""
        before = axis(self.cascade.block) * self.points - 1
        starts = [Compare(axis(self.cascade.block), "<="), *(Compare(self.at(b, before), "<") for b in self.bounds(1))]
        return Or(tuple(starts)) if len(starts) > 1 else starts[0]

    def last(self, read: ir.Read) -> ir.Expr:
        """The element of each row's last block."""
        ends = self.ends()

        def taken(end: Affine) -> ir.Expr:
            return at_axes(read, {self.cascade.block: end // self.points})

        result = taken(ends[0])
        for number, end in enumerate(ends[1:], 1):
            least = conjunction(*(Compare(other - end, ">=") for other in ends[:number]))
            result = ir.Where(least, taken(end), result, result.dtype)
        return result

    def ends(self) -> list[Affine]:
        """The last point of each row is the least of these."""
        ends = [self.extent - 1, *(bound + axis(self.cascade.point) for bound in self.bounds(-1))]
        space = Space("", tuple(a.name for a in self.maximum.axes), self.program.sizes)
        domain = space.box(self.maximum.axes) & conditions(self.program, space)
        kept: list[Affine] = []
        for number, end in enumerate(ends):
            others = [*kept, *ends[number + 1 :]]
            if not any((domain & space.condition(Compare(end - o, "<"))).is_empty() for o in others):
                kept.append(end)
        return kept

    # -- equations ---------------------------------------------------------------------------------------------

    def define(self, hint: str, axes: Sequence[ir.Axis], value: ir.Expr, guard: Condition) -> ir.Read:
        """A new local tensor over the axes; gives the read of its element."""
        name = unused(hint, self.used)
        self.used.add(name)
        subscripts = tuple(axis(a.name) for a in axes)
        shape = tuple(a.upper[0] for a in axes)
        span = self.maximum.span
        self.tensors.append(ir.Tensor(name, value.dtype, shape, "local", len(shape), span))
        self.equations.append(ir.Equation(name, name, tuple(axes), subscripts, value, guard, span=span))
        return ir.Read(name, subscripts, value.dtype, span=span)

    def recurrence(
        self, hint: str, axes: Sequence[ir.Axis], first: ir.Expr, later: Callable[[ir.Read], ir.Expr]
    ) -> ir.Read:
        """A tensor that is `first` in a row's first block, and `later` of the block before from then on."""
        name = unused(hint, self.used)
        before = self.before(ir.Read(name, tuple(axis(a.name) for a in axes), first.dtype))
        return self.define(
            name, axes, ir.Where(self.is_first(), first, later(before), first.dtype), self.guard_of_rows()
        )

    def before(self, read: ir.Read) -> ir.Read:
        """The element of the block before."""
        moved = at_axes(read, {self.cascade.block: axis(self.cascade.block) - 1})
        assert isinstance(moved, ir.Read), "a read stays one"
        return moved

    def leaf_equation(self, leaf: ir.Read) -> ir.Equation:
        return leaf_equation(self.program, self.cascade, leaf)

    def add_leaf(self, leaf: ir.Read) -> None:
        guard = self.guard_of_points(exact=not self.loose)

        def lifted(expr: ir.Expr, in_branch: bool) -> ir.Expr:
            """With reductions that only one branch needs in a tensor of their own, so that lanes need no test."""
            if isinstance(expr, ir.Reduce) and in_branch:
                return self.define(f"{leaf.tensor}_{expr.reducer.name}", self.point_axes, expr, guard)
            in_branch = in_branch or isinstance(expr, ir.Where)
            return ir.rebuild(expr, lambda child: lifted(child, in_branch))

        value = self.in_block(self.leaf_equation(leaf).value)
        value = lifted(value, False) if self.loose else value
        self.in_blocks[leaf] = self.define(f"{leaf.tensor}_block", self.point_axes, value, guard)

    def running_maximum(self, body: ir.Read) -> ir.Read:
        reducer, dtype = self.reduce.reducer, self.reduce.dtype
        start = self.start()
        value: ir.Expr = body
        if self.loose and self.reduce.guard != TRUE:
            value = ir.Where(self.guard(), body, start, dtype)
        guard = conjunction(self.inside(), None if self.loose else self.guard())
        whole = replace(reducer, neutral=start)
        here = ir.Reduce(whole, value, (self.point,), dtype, guard, self.maximum.span)
        name = self.cascade.maximum
        found = self.define(f"{name}_here", self.row_axes, here, self.guard_of_rows())
        combine = "maximum" if reducer.name == "max" else "minimum"
        return self.recurrence(
            f"{name}_running", self.row_axes, found, lambda before: ir.Op(combine, (before, found), dtype)
        )

    def start(self) -> ir.Const:
        """The maximum of nothing."""
        return lowest(self.reduce.dtype) if self.reduce.reducer.name == "max" else highest(self.reduce.dtype)

    def level(self, running: ir.Read) -> ir.Read:
        """What summands are taken relative to."""
        nothing: ir.Expr = ir.Op("eq", (running, self.start()), bool_)
        value: ir.Expr = ir.Op("select", (nothing, ir.Const(0.0, running.dtype), running), running.dtype)
        return self.define(f"{self.cascade.maximum}_level", self.row_axes, value, self.guard_of_rows())

    def weight(self, running: RunningSum, level: ir.Read) -> ir.Read:
        """The part of a summand that moves, at a point of a block."""
        if running.weight not in self.weights:
            maximum = ir.Read(self.cascade.maximum, tuple(axis(n) for n in self.cascade.rows), level.dtype)
            self.in_blocks[maximum] = level
            value = self.in_block(running.weight)
            if self.loose and self.reduce.guard != TRUE:
                value = ir.Where(self.guard(), value, ir.Const(0.0, value.dtype), value.dtype)
            guard = self.guard_of_points(exact=not self.loose)
            hint = f"{self.cascade.maximum}_weight"
            self.weights[running.weight] = self.define(hint, self.point_axes, value, guard)
        return self.weights[running.weight]

    def add_consumer(self, consumer: Consumer, maximum: ir.Read, level: ir.Read) -> None:
        equation = consumer.equation
        results = {s.node: self.running_sum(s, equation, maximum, level) for s in consumer.sums}

        def visit(expr: ir.Expr) -> ir.Expr:
            if isinstance(expr, ir.Reduce) and expr in results:
                return results[expr]
            return ir.rebuild(expr, visit)

        self.equations.append(replace(equation, value=visit(equation.value)))

    def running_sum(self, sum_: RunningSum, equation: ir.Equation, maximum: ir.Read, level: ir.Read) -> ir.Expr:
        """The finished sum, read from each row's last block."""
        weight = self.weight(sum_, level)
        dtype = sum_.node.dtype

        def weighted(expr: ir.Expr) -> ir.Expr:
            return weight if isinstance(expr, ir.Var) and expr.name == WEIGHT else ir.rebuild(expr, weighted)

        summand = weight if sum_.rest is None else weighted(self.in_block(sum_.rest))
        exact = not self.loose or sum_.rest is not None
        guard = conjunction(self.inside(), self.guard() if exact else None)
        inner = set() if sum_.rest is None else axes_in(sum_.rest)
        columns = tuple(a for a in equation.axes if a.name in inner and a.name not in self.cascade.rows)
        axes = (*self.row_axes, *columns)
        part = ir.Reduce(sum_.node.reducer, summand, (self.point,), dtype, guard, sum_.node.span)
        here = self.define(f"{equation.tensor}_here", axes, part, self.guard_of_rows())
        scale = self.scale(sum_.rescale, maximum, level)
        running = self.recurrence(
            f"{equation.tensor}_running",
            axes,
            here,
            lambda before: ir.Op("add", (ir.Op("mul", (before, scale), dtype), here), dtype),
        )
        finished = ir.Op("mul", (self.last(running), self.correction(sum_.rescale, maximum, level)), dtype)
        return rescale.product([(finished, False), *sum_.outside]) or finished

    def scale(self, rule: Rescale, maximum: ir.Read, level: ir.Read) -> ir.Read:
        """What the sums so far are multiplied by in a block that is not a row's first."""
        if rule not in self.scales:
            later = conjunction(self.guard_of_rows(), Not(self.is_first()))
            value = rule.of(self.before(maximum), level)
            self.scales[rule] = self.define(f"{self.cascade.maximum}_rescale", self.row_axes, value, later)
        return self.scales[rule]

    def correction(self, rule: Rescale, maximum: ir.Read, level: ir.Read) -> ir.Read:
        """1, and where a row's maximum is none what the definition makes of it."""
        if rule not in self.corrections:
            last, used = self.last(maximum), self.last(level)
            same = ir.Op("eq", (last, used), bool_)
            one = ir.Const(1.0, level.dtype)
            value = ir.Op("select", (same, one, rule.of(used, last)), level.dtype)
            hint = f"{self.cascade.maximum}_correction"
            self.corrections[rule] = self.define(hint, self.maximum.axes, value, TRUE)
        return self.corrections[rule]
