"""Factors that a sum computes again and again are computed once, into a temporary.

`z[i, j] += exp(x[i, k]) * w[k, j]` says the exponential of an element once for each j, and so does a scale, a zero
point, a threshold, or the mirrored half of a symmetric matrix, `where(k <= i, a[i, k], a[k, i])`. Written into a
temporary first, the sum is one of plain products, which a register tile loads and packs like any other.

Exact: each value is computed by the same operations. A factor is taken out where it knows fewer axes than the sum
around it and one of its reads goes to another element for each of its points, so that the temporary is no larger than
what it is computed from; or, for a function of indices or of several operands, as the cosines of a transform of many
rows, where it is no larger than some array of the op; where nothing in it depends on the sum's own tensor, as it may in
a recurrence; and where all its points may be computed whatever the sum visits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, AxisRef, Condition, axes_of, axis, condition_affines, conjunction
from polyopt.dsl.text import expr_text
from polyopt.fusion.axes import assumed_length, condition_axes, length, starts_at_zero
from polyopt.fusion.rewrite import cost, depends_on, nonempty
from polyopt.names import unused

LEAST_SAVED = 64
"""Scalar operations on each element that repay writing and reading it once more."""

FUNCTION = 20
"""Those of a function: fewer are done again rather than read from a table."""


@dataclass(frozen=True, slots=True)
class Factored:
    """The program with its temporaries, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def take_out(program: ir.Program) -> Factored:
    """The program with the factors that its sums repeat in temporaries of their own."""
    taken = {t.name for t in program.tensors} | {e.name for e in program.equations} | set(program.sizes)
    tensors: list[ir.Tensor] = []
    equations: list[ir.Equation] = []
    notes: list[str] = []
    for equation in program.equations:
        if not any(isinstance(node, ir.Op | ir.Where) for node in ir.walk(equation.value)):
            continue
        finder = _Finder(program, equation, taken)
        changed = finder.changed()
        if finder.factors:
            position = len(equations)
            equations += [factor for factor, _ in finder.factors.values()]
            tensors += [tensor for _, tensor in finder.factors.values()]
            notes += finder.notes
            equations.insert(position + len(finder.factors), changed)
    if not equations:
        return Factored(program)
    new = {e.name: e for e in equations}
    kept = [new.pop(e.name, e) for e in program.equations]
    return Factored(
        replace(program, tensors=(*program.tensors, *tensors), equations=(*new.values(), *kept)), tuple(notes)
    )


@dataclass(slots=True)
class _Finder:
    """Takes the factors out of one equation. factors: by what they compute, for which axes, and where"""

    program: ir.Program
    equation: ir.Equation
    taken: set[str]
    factors: dict[tuple[ir.Expr, tuple[ir.Axis, ...], Condition], tuple[ir.Equation, ir.Tensor]] = field(
        default_factory=dict
    )
    notes: list[str] = field(default_factory=list)

    def changed(self) -> ir.Equation:
        equation = self.equation
        axes = equation.all_axes
        names = frozenset(a.name for a in axes)
        value = self.visit(equation.value, axes, equation.guard, names, in_sum=equation.is_accumulation)
        return replace(equation, value=value)

    def visit(
        self, expr: ir.Expr, around: Sequence[ir.Axis], guard: Condition, repeated: frozenset[str], *, in_sum: bool
    ) -> ir.Expr:
        """The expression with its factors read from temporaries.

        around: the axes that it stands in; guard: where; repeated: those of the axes that it is computed for, without
        those that a reduction around it does not know, which then runs once for all of them
        """
        match expr:
            case ir.Reduce(body=body, axes=axes, guard=own):
                if expr is not self.equation.value or self.equation.is_accumulation:
                    repeated = frozenset().union(*(axes_of(affine) for affine in _affines(list(ir.walk(expr)))))
                known = repeated | {a.name for a in axes}
                inside = self.visit(body, (*around, *axes), conjunction(guard, own), known, in_sum=True)
                return replace(expr, body=inside)
            case ir.Op() | ir.Cast() | ir.Where():
                if in_sum:
                    axes = self.axes_of_factor(expr, around, guard, repeated)
                    if axes:
                        return self.temporary(expr, axes, around, guard)
                if isinstance(expr, ir.Where):
                    return expr  # what is in a branch may not be computed where it is not taken
                return ir.rebuild(expr, lambda child: self.visit(child, around, guard, repeated, in_sum=in_sum))
            case _:
                return expr

    def axes_of_factor(
        self, expr: ir.Expr, around: Sequence[ir.Axis], guard: Condition, repeated: frozenset[str]
    ) -> tuple[ir.Axis, ...]:
        """The axes of a temporary for the expression; empty where it is to stay."""
        nodes = list(ir.walk(expr))
        names = frozenset().union(*(axes_of(affine) for affine in _affines(nodes)))
        by_name = {a.name: a for a in around}
        if not names or not names < set(by_name) or len(by_name) != len(around):
            return ()
        plain = all(
            not isinstance(node, ir.Reduce)
            and not (isinstance(node, ir.Read) and not all(isinstance(s, Affine) for s in node.subscripts))
            for node in nodes
        )
        if not plain or not any(isinstance(node, ir.Op | ir.Where) for node in nodes):
            return ()
        repeats = prod(assumed_length(a) for a in around if a.name in repeated - names)
        if repeats < 2 or not all(starts_at_zero(by_name[name]) for name in names):
            return ()
        reads = [node for node in nodes if isinstance(node, ir.Read)]
        order = next((found for read in reads if (found := _scanned(read)) and set(found) == names), None)
        order = order or self.order_of_table(expr, [a for a in around if a.name in names], guard)
        if (
            order is None
            or depends_on(self.program, (r.tensor for r in reads), self.equation.tensor)
            or not self.can_be_computed(expr, reads, by_name, guard, names)
        ):
            return ()
        pays = picks.agreed(f"{expr_text(expr)} of {self.equation.name} once", cost(expr) * repeats >= LEAST_SAVED)
        return tuple(by_name[name] for name in order) if pays else ()

    def order_of_table(self, expr: ir.Expr, axes: Sequence[ir.Axis], guard: Condition) -> tuple[str, ...] | None:
        """The axes of a table of functions, those of the sum outermost.

        None where it is cheap, may be larger than every array of the op, or may be asked for few of its elements: under
        a guard of these axes and others.
        """
        names, asked = {a.name for a in axes}, condition_axes(guard)
        if asked & names and not asked <= names:
            return None
        shapes = [t.shape for t in self.program.tensors if t.shape is not None and t.role != "local"]
        largest = max(
            (prod(e.constant for e in shape) for shape in shapes if all(e.is_constant for e in shape)), default=0
        )
        points = [length(a) for a in axes]
        if cost(expr) < FUNCTION or None in points or prod(n for n in points if n is not None) > largest:
            return None
        own = {a.name for a in self.equation.axes}
        return tuple(sorted((a.name for a in axes), key=lambda name: name in own))

    def can_be_computed(
        self,
        expr: ir.Expr,
        reads: Sequence[ir.Read],
        by_name: dict[str, ir.Axis],
        guard: Condition,
        names: frozenset[str],
    ) -> bool:
        """Whether every point of the factor's axes, under what the guard says of them, has a value."""
        if frozenset().union(*(axes_of(affine) for affine in condition_affines(guard))) <= names:
            return True
        return all(self.reads_whole_dimensions(read, by_name) for read in reads)

    def reads_whole_dimensions(self, read: ir.Read, by_name: dict[str, ir.Axis]) -> bool:
        """Whether the read is of an input, by axes that stay inside it."""
        tensor = self.program.tensor(read.tensor)
        if tensor.role != "input" or tensor.shape is None:
            return False
        for subscript, extent in zip(read.subscripts, tensor.shape, strict=True):
            name = _alone(subscript)
            if name is None or subscript != axis(name) or extent not in by_name[name].upper:
                return False
        return True

    def temporary(
        self, expr: ir.Expr, axes: tuple[ir.Axis, ...], around: Sequence[ir.Axis], guard: Condition
    ) -> ir.Expr:
        """A read of the temporary that holds the expression."""
        subscripts = tuple(axis(a.name) for a in axes)
        names = frozenset(a.name for a in axes)
        others = [a for a in around if a.name not in names]
        known = frozenset().union(*(axes_of(affine) for affine in condition_affines(guard))) <= names
        where = guard if known else TRUE
        reads = [node for node in ir.walk(expr) if isinstance(node, ir.Read)]
        if not all(self.reads_whole_dimensions(read, {a.name: a for a in axes}) for read in reads):
            where = conjunction(where, nonempty(others, names))
        if (expr, axes, where) not in self.factors:
            name = unused(f"{self.equation.tensor}_factor", self.taken)
            self.taken.add(name)
            shape = tuple(a.upper[0] for a in axes)
            tensor = ir.Tensor(name, expr.dtype, shape, "local", len(axes), self.equation.span)
            definition = ir.Equation(name, name, axes, subscripts, expr, where, span=self.equation.span)
            self.factors[expr, axes, where] = definition, tensor
            again = ", ".join(a.name for a in others)
            self.notes.append(f"{name}[{', '.join(a.name for a in axes)}] computed once, not again for each {again}")
        _, tensor = self.factors[expr, axes, where]
        return ir.Read(tensor.name, subscripts, tensor.dtype, span=self.equation.span)


def _affines(nodes: Sequence[ir.Expr]) -> Iterator[Affine]:
    for node in nodes:
        match node:
            case ir.IndexValue(affine):
                yield affine
            case ir.Read(subscripts=subscripts):
                yield from (s for s in subscripts if isinstance(s, Affine))
            case ir.Where(condition) | ir.Reduce(guard=condition):
                yield from condition_affines(condition)
            case _:
                pass


def _scanned(read: ir.Read) -> tuple[str, ...]:
    """The axes of a read that goes to another element for each of their points; empty for any other read."""
    names: list[str] = []
    for subscript in read.subscripts:
        if isinstance(subscript, Affine) and not axes_of(subscript):
            continue
        name = _alone(subscript)
        if name is None or name in names or read.boundary is not None:
            return ()
        names.append(name)
    return tuple(names)


def _alone(subscript: ir.Subscript) -> str | None:
    """The axis that is, with a number, all there is in a subscript."""
    if isinstance(subscript, Affine) and len(subscript.terms) == 1:
        atom, factor = subscript.terms[0]
        if isinstance(atom, AxisRef) and abs(factor) == 1:
            return atom.name
    return None
