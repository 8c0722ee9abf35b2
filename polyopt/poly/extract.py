"""From a resolved program to a scop: every reduction becomes an init and an update statement.

A reduction inside a larger expression accumulates into an array of its own, indexed by the axes that it uses; a
reduction that is the whole value of a definition accumulates into the defined tensor itself. An accumulation
`T[..] += e` starts from T's plain definitions and from the neutral element elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

import islpy as isl
import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    AxisRef,
    Compare,
    Condition,
    Not,
    axes_of,
    axis,
    condition_affines,
    conjunction,
    map_condition,
    substitute,
)
from polyopt.dtypes import DType
from polyopt.errors import DefinitionError, Span
from polyopt.names import unused
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space, coalesced


def extract(program: ir.Program) -> Scop:
    """The scop of a program whose axis ranges and shapes are resolved.

    Raises `DefinitionError` where one tensor is accumulated with different operations.
    """
    builder = _Builder(program)
    for tensor in program.tensors:
        if tensor.role != "input":
            builder.add_tensor(tensor)
    context = Space("", (), program.sizes)
    known = context.universe()
    for condition in program.conditions:
        known = known & context.condition(condition)
    for name in program.sizes:
        known = known & context.condition(_non_negative(name))
    return Scop(program.name, program.sizes, known.params(), tuple(builder.arrays.values()), tuple(builder.statements))


def lowest(dtype: DType) -> ir.Const:
    """The start value of a maximum that has no neutral element: no value of the dtype is less."""
    if dtype.is_float:
        return ir.Const(float("-inf"), dtype)
    return ir.Const(False if dtype.is_bool else int(np.iinfo(dtype.numpy).min), dtype)


def highest(dtype: DType) -> ir.Const:
    """The start value of a minimum that has no neutral element."""
    if dtype.is_float:
        return ir.Const(float("inf"), dtype)
    return ir.Const(True if dtype.is_bool else int(np.iinfo(dtype.numpy).max), dtype)


def start_value(reducer: ir.Reducer) -> ir.Const:
    """What a reduction starts from; where it has no neutral element its domain was proved non-empty."""
    if reducer.neutral is not None:
        return reducer.neutral
    assert reducer.name in ("max", "min"), f"a {reducer.name} always has a neutral element"
    return lowest(reducer.dtype) if reducer.name == "max" else highest(reducer.dtype)


def _non_negative(size: str) -> Condition:
    from polyopt.dsl import affine

    return affine.Compare(affine.size(size), ">=")


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    """Where an expression stands: the axes around it and the condition of the branches it is in.

    within: for a reduction that does not use all axes around it, the points of its leading axes that are left
            when the others are projected out; None for all in their ranges
    """

    axes: tuple[ir.Axis, ...]
    condition: Condition = TRUE
    within: isl.Set | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes)

    def under(self, condition: Condition) -> _Scope:
        return replace(self, condition=conjunction(self.condition, condition))

    def inside(self, axes: tuple[ir.Axis, ...], guard: Condition) -> _Scope:
        return replace(self, axes=self.axes + axes, condition=conjunction(self.condition, guard))


@dataclass(slots=True)
class _Builder:
    program: ir.Program
    arrays: dict[str, Array] = field(init=False)
    statements: list[Statement] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    hoisted: dict[tuple[object, ...], tuple[ir.Read, _Scope]] = field(default_factory=dict)
    alike: dict[object, list[tuple[isl.Set, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = {}
        for tensor in self.program.tensors:
            assert tensor.shape is not None, f"the shape of {tensor.name} is resolved"
            self.arrays[tensor.name] = Array(tensor.name, tensor.dtype, tensor.shape, tensor.role)
        self.used = set(self.arrays)

    # -- tensors -----------------------------------------------------------------------------------------------

    def add_tensor(self, tensor: ir.Tensor) -> None:
        definitions = self.program.definitions(tensor.name)
        plain = [e for e in definitions if not e.is_accumulation]
        accumulations = [e for e in definitions if e.is_accumulation]
        if accumulations:
            self.add_accumulations(tensor, plain, accumulations)
            return
        for equation in plain:
            self.add_definition(equation)

    def add_definition(self, equation: ir.Equation) -> None:
        scope = _Scope(equation.axes, equation.guard)
        match equation.value:
            case ir.Reduce() as whole:
                self.add_reduction(equation.name, equation.tensor, equation.subscripts, whole, scope)
            case value:
                self.add(equation.name, scope, equation.tensor, equation.subscripts, value, span=equation.span)

    def add_accumulations(self, tensor: ir.Tensor, plain: list[ir.Equation], accumulations: list[ir.Equation]) -> None:
        reducer = accumulations[0].reducer
        assert reducer is not None, "an accumulation has a reducer"
        for other in accumulations[1:]:
            if other.reducer is None or replace(other.reducer, is_contraction=reducer.is_contraction) != reducer:
                raise DefinitionError(
                    f"'{tensor.name}' is accumulated with two different operations",
                    where=other.span,
                    why=f"the order of '{reducer.name}' and '{other.reducer and other.reducer.name}' would matter",
                    fix="give one of them a tensor of its own",
                    facts={"tensor": tensor.name},
                )
        target = tensor.name
        if tensor.dtype != reducer.dtype:
            target = self.new_array(f"{tensor.name}_acc", reducer.dtype, self.arrays[tensor.name].shape, of=tensor.name)
        for equation in plain:
            value = equation.value if target == tensor.name else ir.Cast(equation.value, reducer.dtype)
            scope = _Scope(equation.axes, equation.guard)
            self.add(equation.name, scope, target, equation.subscripts, value, span=equation.span)
        covered = self.add_start_values(tensor, target, reducer, plain, accumulations)
        for equation in accumulations:
            scope = _Scope(equation.all_axes, equation.guard)
            name = self.fresh(f"{equation.name}_update")
            self.add(name, scope, target, equation.subscripts, equation.value, reducer, span=equation.span)
        if target != tensor.name:
            self.add_rounding(tensor, target, covered)

    def add_start_values(
        self,
        tensor: ir.Tensor,
        target: str,
        reducer: ir.Reducer,
        plain: list[ir.Equation],
        accumulations: list[ir.Equation],
    ) -> isl.Set:
        """Writes the neutral element wherever an accumulation may add and no plain definition writes; gives all
        elements that end up defined."""
        names = _axis_names(tensor, accumulations[0])
        name = self.fresh(f"{tensor.name}_init")
        space = Space(name, names, self.program.sizes)
        elements = space.empty()
        for equation in accumulations:
            elements = elements | self.covered(equation, space)
        defined = space.empty()
        for equation in plain:
            defined = defined | self.image(equation, _Scope(equation.axes, equation.guard), space)
        open_ = coalesced(elements - defined)
        if not open_.is_empty():
            subscripts = tuple(axis(n) for n in names)
            self.add_on(name, names, open_, target, subscripts, start_value(reducer), role="init", reducer=reducer)
        return elements | defined

    def add_rounding(self, tensor: ir.Tensor, target: str, covered: isl.Set) -> None:
        """`T[d] = cast(T_acc[d])` for a tensor that is narrower than its accumulator."""
        names = tuple(str(covered.get_dim_name(isl.dim_type.set, d)) for d in range(tensor.rank))
        subscripts = tuple(axis(n) for n in names)
        value = ir.Cast(ir.Read(target, subscripts, self.arrays[target].dtype), tensor.dtype)
        name = self.fresh(f"{tensor.name}_round")
        self.add_on(name, names, covered.set_tuple_name(name), tensor.name, subscripts, value)

    def covered(self, equation: ir.Equation, space: Space) -> isl.Set:
        """The elements an accumulation covers: its left side's box, or the whole shape for a scatter."""
        if any(isinstance(s, ir.DataIndex) for s in equation.subscripts):
            return self.whole(equation.tensor, space)
        return self.image(equation, _Scope(equation.axes), space)

    def whole(self, array: str, space: Space) -> isl.Set:
        shape = self.arrays[array].shape
        return space.box([ir.Axis(n, (Affine(0),), (extent,)) for n, extent in zip(space.axes, shape, strict=True)])

    def image(self, equation: ir.Equation, scope: _Scope, space: Space) -> isl.Set:
        domain = self.domain(Space("", scope.names, self.program.sizes), scope)
        written = domain.apply(self.access(Space("", scope.names, self.program.sizes), "", equation.subscripts, None))
        return _renamed(written, space)

    # -- reductions --------------------------------------------------------------------------------------------

    def add_reduction(
        self, name: str, array: str, subscripts: tuple[ir.Subscript, ...], reduce: ir.Reduce, scope: _Scope
    ) -> None:
        """Accumulates `reduce` into `array[subscripts]` for every point of the scope."""
        inner = scope.inside(reduce.axes, reduce.guard)
        if reduce.reducer.neutral is None and reduce.reducer.name == "custom":
            self.add_reduction_from_first(name, array, subscripts, reduce, inner)
            return
        reducer, start = reduce.reducer, start_value(reduce.reducer)
        self.add(self.fresh(f"{name}_init"), scope, array, subscripts, start, role="init", reducer=reducer)
        self.add(self.fresh(f"{name}_update"), inner, array, subscripts, reduce.body, reducer, span=reduce.span)

    def add_reduction_from_first(
        self, name: str, array: str, subscripts: tuple[ir.Subscript, ...], reduce: ir.Reduce, inner: _Scope
    ) -> None:
        """A reduction without a start value begins with its first point, in index order."""
        points = self.domain(Space("", inner.names, self.program.sizes), inner)
        later = isl.Map.lex_gt(points.get_space()).intersect_domain(points).intersect_range(points)
        for position in range(len(inner.axes) - len(reduce.axes)):
            later = later.equate(isl.dim_type.in_, position, isl.dim_type.out, position)
        rest = later.domain()
        for suffix, part, reducer in (("first", points - rest, None), ("update", rest, reduce.reducer)):
            piece = _Scope(inner.axes, TRUE, part)
            role = "update" if reducer else "init"
            own = self.fresh(f"{name}_{suffix}")
            self.add(own, piece, array, subscripts, reduce.body, reducer, role=role, span=reduce.span)

    def hoist(self, reduce: ir.Reduce, scope: _Scope, hint: str) -> ir.Read:
        """Gives a reduction an array over the axes that it uses; returns the read of its result."""
        used = _free_axes(reduce)
        kept = tuple(a for a in scope.axes if a.name in used)
        key = (reduce, scope.condition, scope.axes, id(scope.within))
        if key in self.hoisted:
            return self.hoisted[key][0]
        shape = tuple(a.upper[0] - a.lower[0] for a in kept)
        subscripts = tuple(axis(a.name) - a.lower[0] for a in kept)
        points = self.kept_points(scope, kept)
        alike = self.alike.setdefault(_anonymous(reduce, kept), [])
        for known, array in alike:
            if known.is_equal(points):
                return ir.Read(array, subscripts, reduce.dtype, span=reduce.span)
        array = self.new_array(f"{hint}_{reduce.reducer.name}", reduce.dtype, shape)
        alike.append((points, array))
        self.add_reduction_over(array, subscripts, reduce, scope, kept)
        read = ir.Read(array, subscripts, reduce.dtype, span=reduce.span)
        self.hoisted[key] = read, scope  # the scope lives on: its identity is in the key
        return read

    def add_reduction_over(
        self,
        array: str,
        subscripts: tuple[ir.Subscript, ...],
        reduce: ir.Reduce,
        scope: _Scope,
        kept: tuple[ir.Axis, ...],
    ) -> None:
        """A hoisted reduction on the projection of its surroundings onto the kept axes."""
        if kept != scope.axes:
            scope = _Scope(kept, TRUE, self.kept_points(scope, kept))
        self.add_reduction(array, array, subscripts, reduce, scope)

    def kept_points(self, scope: _Scope, kept: tuple[ir.Axis, ...]) -> isl.Set:
        """The projection of a scope onto some of its axes."""
        around = self.domain(Space("", scope.names, self.program.sizes), scope)
        for position in reversed(range(len(scope.axes))):
            if scope.axes[position] not in kept:
                around = around.project_out(isl.dim_type.set, position, 1)
        return around

    def lowered(self, expr: ir.Expr, scope: _Scope, hint: str) -> ir.Expr:
        """The expression with every reduction hoisted into an array of its own."""
        match expr:
            case ir.Reduce():
                return self.hoist(expr, scope, hint)
            case ir.Where(condition, then, otherwise):
                return replace(
                    expr,
                    then=self.lowered(then, scope.under(condition), hint),
                    otherwise=self.lowered(otherwise, scope.under(Not(condition)), hint),
                )
            case _:
                return ir.rebuild(expr, lambda child: self.lowered(child, scope, hint))

    # -- statements --------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        scope: _Scope,
        array: str,
        subscripts: tuple[ir.Subscript, ...],
        value: ir.Expr,
        reducer: ir.Reducer | None = None,
        *,
        role: str | None = None,
        span: Span | None = None,
    ) -> None:
        """A statement on every point of the scope; an update where there is a reducer and no other role."""
        self.used.add(name)
        value = self.lowered(value, scope, array)
        subscripts = ir.map_data(subscripts, lambda data: self.lowered(data, scope, array))
        domain = self.domain(Space(name, scope.names, self.program.sizes), scope)
        role = role or ("update" if reducer else "define")
        self.add_on(name, scope.names, domain, array, subscripts, value, role=role, reducer=reducer, span=span)

    def add_on(
        self,
        name: str,
        axes: tuple[str, ...],
        domain: isl.Set,
        array: str,
        subscripts: tuple[ir.Subscript, ...],
        value: ir.Expr,
        *,
        role: str = "define",
        reducer: ir.Reducer | None = None,
        span: Span | None = None,
    ) -> None:
        if domain.is_empty():
            return
        space = Space(name, axes, self.program.sizes)
        write = self.access(space, array, subscripts, None).intersect_domain(domain)
        data = [s.value for s in subscripts if isinstance(s, ir.DataIndex)]
        known: dict[ir.Read, isl.Map] = {}
        reads = [a for expr in (*data, value) for a in self.accesses(expr, space, domain, known)]
        self.statements.append(
            Statement(
                name, axes, domain, role, array, subscripts, value, write, tuple(reads),  # type: ignore[arg-type]  # a role
                reducer=reducer if role == "update" else None, span=span,
            )
        )  # fmt: skip

    def domain(self, space: Space, scope: _Scope) -> isl.Set:
        points = space.box(scope.axes) & space.condition(scope.condition)
        if scope.within is None:
            return points
        open_axes = len(scope.axes) - scope.within.dim(isl.dim_type.set)
        return points & _renamed(scope.within.add_dims(isl.dim_type.set, open_axes), space)

    def accesses(self, expr: ir.Expr, space: Space, domain: isl.Set, known: dict[ir.Read, isl.Map]) -> Iterator[Access]:
        """Every read of the expression on the part of the domain where its branches are taken.

        known: the relations of reads so far, wherever they happen; gains more
        """
        match expr:
            case ir.Where(condition, then, otherwise):
                holds = space.condition(condition)
                yield from self.accesses(then, space, domain & holds, known)
                yield from self.accesses(otherwise, space, domain - holds, known)
            case _:
                if isinstance(expr, ir.Read):
                    if expr not in known:
                        known[expr] = self.access(space, expr.tensor, expr.subscripts, expr.boundary)
                    yield Access(expr, known[expr].intersect_domain(domain))
                for child in ir.children(expr):
                    yield from self.accesses(child, space, domain, known)

    def access(
        self, space: Space, array: str, subscripts: tuple[ir.Subscript, ...], boundary: ir.Boundary | None
    ) -> isl.Map:
        """`{ S[i] -> A[subscripts] }`; a data subscript reaches its whole dimension, as does a periodic one of
        symbolic extent where it leaves the box."""
        shape = self.arrays[array].shape if array in self.arrays else ()
        result = isl.Map.from_domain_and_range(space.universe(), _point(self.program.sizes))
        for dimension, subscript in enumerate(subscripts):
            extent = shape[dimension] if shape else None
            result = result.flat_range_product(self.dimension(space, subscript, extent, boundary))
        return result.set_tuple_name(isl.dim_type.out, array) if array else result

    def dimension(
        self, space: Space, subscript: ir.Subscript, extent: Affine | None, boundary: ir.Boundary | None
    ) -> isl.Map:
        if isinstance(subscript, ir.DataIndex):
            return self.any_element(space, extent)
        aff = space.aff(subscript)
        if boundary is None or extent is None:
            return isl.Map.from_aff(aff)
        if isinstance(boundary, ir.Wrap):
            if not extent.is_constant or extent.constant <= 0:
                inside = space.condition(conjunction(Compare(subscript, ">="), Compare(subscript - extent, "<")))
                exact, anywhere = isl.Map.from_aff(aff), self.any_element(space, extent)
                return exact.intersect_domain(inside) | anywhere.subtract_domain(inside)
            return isl.Map.from_aff(space.aff(subscript % extent.constant))
        if isinstance(boundary, ir.Clamp):
            zero, last = isl.PwAff.from_aff(space.aff(Affine(0))), isl.PwAff.from_aff(space.aff(extent - 1))
            return isl.Map.from_pw_aff(isl.PwAff.from_aff(aff).min(last).max(zero))
        return isl.Map.from_aff(aff) & self.any_element(space, extent)

    def any_element(self, space: Space, extent: Affine | None) -> isl.Map:
        line = Space("", ("d",), self.program.sizes)
        upper = () if extent is None else (extent,)
        return isl.Map.from_domain_and_range(space.universe(), line.box([ir.Axis("d", (Affine(0),), upper)]))

    # -- names -------------------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        found = unused(name, self.used)
        self.used.add(found)
        return found

    def new_array(self, name: str, dtype: DType, shape: tuple[Affine, ...], *, of: str = "") -> str:
        name = self.fresh(name)
        self.arrays[name] = Array(name, dtype, shape, "local", of=of)
        return name


def _anonymous(reduce: ir.Reduce, kept: tuple[ir.Axis, ...]) -> object:
    """A reduction and the axes around it without their names: what it computes, wherever it is written down."""
    inner = [a.name for node in ir.walk(reduce) if isinstance(node, ir.Reduce) for a in node.axes]
    at = {name: axis(f"#{n}") for n, name in enumerate(dict.fromkeys([*(a.name for a in kept), *inner]))}

    def moved(value: Affine) -> Affine:
        return substitute(value, lambda atom: at.get(atom.name) if isinstance(atom, AxisRef) else None)

    def one(own: ir.Axis) -> tuple[object, ...]:
        return str(at[own.name]), tuple(map(moved, own.lower)), tuple(map(moved, own.upper))

    def renamed(own: ir.Axis) -> ir.Axis:
        _, lower, upper = one(own)
        return ir.Axis(str(at[own.name]), lower, upper)  # type: ignore[arg-type]  # as made above

    def visit(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, visit)
        match expr:
            case ir.Reduce(axes=axes, guard=guard):
                return replace(expr, axes=tuple(map(renamed, axes)), guard=map_condition(guard, moved))
            case ir.Read(subscripts=subscripts):
                return replace(expr, subscripts=tuple(moved(s) if isinstance(s, Affine) else s for s in subscripts))
            case ir.IndexValue(value):
                return replace(expr, affine=moved(value))
            case ir.Where(condition):
                return replace(expr, condition=map_condition(condition, moved))
            case _:
                return expr

    return visit(reduce), tuple(map(one, kept))


def _axis_names(tensor: ir.Tensor, equation: ir.Equation) -> tuple[str, ...]:
    """Names for a tensor's dimensions: the equation's, where each subscript is an axis alone."""
    names = []
    for subscript in equation.subscripts:
        used = axes_of(subscript) if isinstance(subscript, Affine) else frozenset()
        names.append(next(iter(used)) if len(used) == 1 else "")
    if "" in names or len(set(names)) < len(names):
        return tuple(f"d{d}" for d in range(tensor.rank))
    return tuple(names)


def _point(sizes: tuple[str, ...]) -> isl.Set:
    return Space("", (), sizes).universe()


def _renamed(points: isl.Set, space: Space) -> isl.Set:
    """The same points in another space of the same dimension."""
    for position, name in enumerate(space.axes):
        points = points.set_dim_name(isl.dim_type.set, position, name)
    if space.tuple_name:
        return points.set_tuple_name(space.tuple_name)
    return points.reset_tuple_id() if points.has_tuple_id() else points


def _free_axes(reduce: ir.Reduce) -> frozenset[str]:
    """Axes of the surroundings that a reduction uses."""
    bound = frozenset(a.name for a in reduce.axes)
    used = _condition_axes(reduce.guard) | _axes(reduce.body)
    return used - bound


def _condition_axes(condition: Condition) -> frozenset[str]:
    return frozenset().union(*(axes_of(a) for a in condition_affines(condition)))


def _axes(expr: ir.Expr) -> frozenset[str]:
    match expr:
        case ir.IndexValue(affine):
            return axes_of(affine)
        case ir.Reduce():
            return _free_axes(expr)
        case ir.Read(subscripts=subscripts):
            own = [axes_of(s) for s in subscripts if isinstance(s, Affine)]
        case ir.Where(condition):
            own = [_condition_axes(condition)]
        case _:
            own = []
    return frozenset().union(*own, *(_axes(child) for child in ir.children(expr)))


def shapes(scop: Scop) -> Mapping[str, tuple[Affine, ...]]:
    return {array.name: array.shape for array in scop.arrays}
