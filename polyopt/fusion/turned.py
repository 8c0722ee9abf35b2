"""Operands and results of contractions are turned so that their axes follow one another and can run as one.

`z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]` is a product of matrices with rows `a, b`, columns `c, d` and sums
`e, f`, but no array walks them together: tiles end at each 32 points, and no block of columns is long enough to stay in
the cache while many rows pass by. Copies with the axes of each kind side by side, `y_turned[e, f, c, d]`, take a pass
each, and `joined` makes one long axis of each kind. So it does of a batch of images between whose columns the result
has channels: it is summed as `[channels, batch, place]` and copied to where it belongs.

Exact but for the order of the sum. Worth it where a copy costs less than the lanes that short axes leave empty and
the operand that comes from behind the second cache for each block of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, axes_of, axis
from polyopt.dtypes import DType
from polyopt.fusion.axes import assumed_length, is_range
from polyopt.fusion.margins import is_whole
from polyopt.fusion.rewrite import depends_on
from polyopt.microkernel import speed
from polyopt.names import unused
from polyopt.target import Target

TURN = 2.0
"""Cycles to copy an element to another place."""

BEHIND = 10.0
"""Cycles for a line of the cache from behind the second cache."""

BLOCK = 128
"""Columns that stay in the second cache together, at most."""


@dataclass(frozen=True, slots=True)
class Turned:
    """The program with its copies, and a sentence for each contraction."""

    program: ir.Program
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum of products of two operands, seen as a product of matrices.

    rows, columns: the operands that know the axes of that kind
    batch:         axes that both operands and the result know
    down, along:   axes of the rows and of the columns
    summed:        axes that are summed over
    """

    equation: ir.Equation
    rows: ir.Read
    columns: ir.Read
    batch: tuple[str, ...]
    down: tuple[str, ...]
    along: tuple[str, ...]
    summed: tuple[str, ...]

    def points(self, *kinds: Iterable[str]) -> int:
        extents = {a.name: assumed_length(a) for a in self.equation.all_axes}
        return prod(extents[name] for names in kinds for name in names)

    @property
    def result(self) -> tuple[str, ...]:
        """The axes of the result, as its dimensions have them."""
        return _scanned(self.equation.subscripts)

    def run(self) -> int:
        """Columns that follow one another, in the result and in the operand, as they are."""
        theirs, last = _scanned(self.columns.subscripts), len(self.result) - 1
        first = last
        while first > 0 and self.result[first - 1] in self.along:
            before = theirs.index(self.result[first - 1])
            if before + 1 >= len(theirs) or theirs[before + 1] != self.result[first]:
                break
            first -= 1
        return self.points(self.result[first:])

    def cycles(self, columns: int, target: Target) -> float:
        """Cycles of all multiply-adds, two vectors in each, with so many columns in a row, and of waiting for operands.

        Source: [GotoBLAS08], section 4, for the block of columns that stays in the second cache.
        """
        bits, depth = self.equation.value.dtype.bits, self.points(self.summed)
        width, itemsize = target.lanes(bits), self.columns.dtype.itemsize
        reached = speed(self.points(self.down), columns, depth, bits, target)
        block = max(target.l2_bytes // 2 // (depth * itemsize), width)
        passes = self.points(self.batch, self.along) / columns * -(-columns // min(block, BLOCK))
        passing = self.points(self.down, self.summed) * itemsize
        lines = passes * passing / target.line_bytes if passing > target.l2_bytes // 2 else 0
        return self.points(self.batch, self.down, self.along, self.summed) / (2 * width * reached) + lines * BEHIND


def turn(program: ir.Program, target: Target) -> Turned:
    """The program whose contractions have the axes of each kind side by side, where that pays."""
    turner = _Turner(program, target, {t.name for t in program.tensors} | {e.name for e in program.equations})
    for name in [equation.name for equation in program.equations]:
        turner.visit(name)
    return Turned(turner.program, tuple(turner.notes))


@dataclass(slots=True)
class _Turner:
    """Rewrites one contraction of the program after the other."""

    program: ir.Program
    target: Target
    taken: set[str]
    notes: list[str] = field(default_factory=list)

    def visit(self, name: str) -> None:
        equation = next((e for e in self.program.equations if e.name == name), None)
        product = None if equation is None else self.product(equation)
        if product is not None and self.pays(product):
            self.apply(product)

    def product(self, equation: ir.Equation) -> _Product | None:
        """The equation as a product of matrices whose axes may all change places; None where it is none."""
        reducers = [e.reducer for e in self.program.definitions(equation.tensor) if e is not equation]
        equation = as_accumulation(equation)
        value, reducer = equation.value, equation.reducer
        if any(other is not None and other != reducer for other in reducers):
            return None  # what is added up is not what `*=` multiplies afterwards
        if reducer is None or reducer.name != "sum" or equation.guard != TRUE:
            return None
        if not isinstance(value, ir.Op) or value.name != "mul" or not all(map(is_range, equation.all_axes)):
            return None
        reads = [arg.arg if isinstance(arg, ir.Cast) else arg for arg in value.args]
        found = {read for read in reads if isinstance(read, ir.Read) and read.boundary is None}
        result = _scanned(equation.subscripts)
        if len(found) != 2 or not result or depends_on(self.program, (r.tensor for r in found), equation.tensor):
            return None
        left, right = (read for read in reads if isinstance(read, ir.Read))
        known = {read: _scanned(read.subscripts) for read in (left, right)}
        if not all(known.values()) or not all(self.is_whole(read.tensor) for read in found):
            return None
        rows, columns = (left, right) if result[-1] in known[right] else (right, left)
        others = [a.name for a in equation.all_axes if a.name not in result]
        batch = tuple(n for n in result if n in known[rows] and n in known[columns])
        down = tuple(n for n in result if n in known[rows] and n not in batch)
        along = tuple(n for n in result if n in known[columns] and n not in batch)
        summed = tuple(n for n in known[rows] if n in others and n in known[columns])
        kinds = [*batch, *down, *along, *summed]
        if result[-1] not in along or sorted(kinds) != sorted(a.name for a in equation.all_axes) or not down:
            return None
        if {*known[rows], *known[columns]} != {*kinds}:
            return None
        return _Product(equation, rows, columns, batch, down, along, summed)

    def is_whole(self, name: str) -> bool:
        return is_whole(self.program, name)

    def pays(self, product: _Product) -> bool:
        run, all_columns = product.run(), product.points(product.along)
        if run == all_columns:
            return False
        copied = 0
        for read, order in self.orders(product):
            if order is not None and self.own_writer(read, product.equation) is None:
                copied += product.points(order)
        if self.result_order(product) != product.result:
            if not self.may_turn_result(product):
                return False
            copied += 2 * product.points(product.result)
        gain = product.cycles(run, self.target) - product.cycles(all_columns, self.target) - TURN * copied
        better = gain > 0
        return picks.choose(f"turn {product.equation.name}", better, lambda: (better, not better))

    def result_order(self, product: _Product) -> tuple[str, ...]:
        return (*product.batch, *product.down, *product.along)

    def may_turn_result(self, product: _Product) -> bool:
        equation = product.equation
        return len(self.program.definitions(equation.tensor)) == 1 and is_whole(self.program, equation.tensor)

    def orders(self, product: _Product) -> tuple[tuple[ir.Read, tuple[str, ...] | None], ...]:
        """The order in which each operand is to have its axes; None where it may stay as it is."""
        batch, summed = product.batch, product.summed
        found: list[tuple[ir.Read, tuple[str, ...] | None]] = []
        for read, free in ((product.rows, product.down), (product.columns, product.along)):
            own = _scanned(read.subscripts)
            fits = own in ((*batch, *free, *summed), (*batch, *summed, *free))
            wanted = (*batch, *summed, *free) if read is product.columns else (*batch, *free, *summed)
            found.append((read, None if fits else wanted))
        return tuple(found)

    # --- turning ------------------------------------------------------------------------------------------------------

    def apply(self, product: _Product) -> None:
        equation = product.equation
        changed: dict[ir.Expr, ir.Expr] = {}
        before: list[ir.Equation] = []
        for read, order in self.orders(product):
            if order is not None:
                changed[read], own = self.operand(read, order, equation)
                before.append(own)
        value = ir.rebuild(equation.value, lambda arg: _replaced(arg, changed))
        new = replace(equation, value=value)
        after: list[ir.Equation] = []
        order = self.result_order(product)
        if order != product.result:
            new, copy = self.turned_result(new, order)
            after.append(copy)
        equations = [e for e in self.program.equations if e.name not in {b.name for b in before}]
        at = [e.name for e in equations].index(equation.name)
        equations[at : at + 1] = [*before, new, *after]
        self.program = replace(self.program, equations=tuple(equations))
        kinds = [", ".join(names) for names in (product.along, product.down, product.summed)]
        self.notes.append(
            f"{equation.tensor} is summed from copies in which its columns {kinds[0]} lie side by side, "
            f"so that {product.points(product.along)} of them run as one axis, and not {product.run()}"
        )

    def operand(self, read: ir.Read, order: tuple[str, ...], equation: ir.Equation) -> tuple[ir.Read, ir.Equation]:
        """A read of the operand with its axes in another order, and what defines that."""
        own = _scanned(read.subscripts)
        places = [own.index(name) for name in order]
        source = self.program.tensor(read.tensor)
        assert source.shape is not None, "shapes are resolved"
        shape = tuple(source.shape[place] for place in places)
        subscripts = tuple(axis(name) for name in order)
        writer = self.own_writer(read, equation)
        if writer is not None:
            self.program = replace(
                self.program,
                tensors=tuple(replace(t, shape=shape) if t is source else t for t in self.program.tensors),
            )
            moved = replace(
                writer,
                axes=tuple(writer.axes[place] for place in places),
                subscripts=tuple(writer.subscripts[place] for place in places),
            )
            return replace(read, subscripts=subscripts), moved
        name = self.local(f"{read.tensor}_turned", read.dtype, shape)
        by_name = {a.name: a for a in equation.all_axes}
        axes = tuple(by_name[name] for name in order)
        copy = ir.Equation(name, name, axes, subscripts, read, span=equation.span)
        return replace(read, tensor=name, subscripts=subscripts), copy

    def own_writer(self, read: ir.Read, equation: ir.Equation) -> ir.Equation | None:
        """What defines an operand that this contraction alone reads, if it can as well define it in another order."""
        definitions = self.program.definitions(read.tensor)
        if self.program.tensor(read.tensor).role != "local" or len(definitions) != 1:
            return None
        (writer,) = definitions
        readers = [e.name for e in self.program.equations for r in e.reads() if r.tensor == read.tensor]
        return writer if writer.reducer is None and readers == [equation.name] else None

    def turned_result(self, equation: ir.Equation, order: tuple[str, ...]) -> tuple[ir.Equation, ir.Equation]:
        """The contraction with the axes of its result in another order, and the copy of that to the result."""
        by_name = {a.name: a for a in equation.axes}
        tensor = self.program.tensor(equation.tensor)
        assert tensor.shape is not None, "shapes are resolved"
        extents = dict(zip(_scanned(equation.subscripts), tensor.shape, strict=True))
        name = self.local(f"{tensor.name}_turned", tensor.dtype, tuple(extents[n] for n in order))
        subscripts = tuple(axis(n) for n in order)
        axes = tuple(by_name[n] for n in order)
        turned = replace(equation, name=name, tensor=name, axes=axes, subscripts=subscripts)
        read = ir.Read(name, subscripts, tensor.dtype, span=equation.span)
        copy = replace(equation, value=read, reducer=None, reduce_axes=())
        return turned, copy

    def local(self, wanted: str, dtype: DType, shape: tuple[Affine, ...]) -> str:
        """The name of a new temporary."""
        name = unused(wanted, self.taken)
        self.taken.add(name)
        tensor = ir.Tensor(name, dtype, shape, "local", len(shape))
        self.program = replace(self.program, tensors=(*self.program.tensors, tensor))
        return name


def as_accumulation(equation: ir.Equation) -> ir.Equation:
    """A definition by a sum alone as the accumulation that it is; any other equation as it is."""
    total = equation.value
    if equation.reducer is not None or not isinstance(total, ir.Reduce) or total.guard != TRUE:
        return equation
    return replace(equation, value=total.body, reducer=total.reducer, reduce_axes=total.axes)


def _replaced(expr: ir.Expr, changed: Mapping[ir.Expr, ir.Expr]) -> ir.Expr:
    return ir.rebuild(expr, lambda arg: _replaced(arg, changed)) if expr not in changed else changed[expr]


def _scanned(subscripts: Sequence[ir.Subscript]) -> tuple[str, ...]:
    """The axes that the subscripts are, one each; empty where some is anything else."""
    names: list[str] = []
    for subscript in subscripts:
        found = axes_of(subscript) if isinstance(subscript, Affine) else frozenset[str]()
        if len(found) != 1 or subscript != axis(*found) or {*found} & {*names}:
            return ()
        names += found
    return tuple(names)
