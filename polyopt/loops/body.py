"""Statement bodies: a scop's expressions over axes as loop expressions over loop variables and buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.dsl import affine, ir
from polyopt.dsl.affine import Affine, AxisRef, Compare, Condition, FloorDiv, conjunction, constant, map_condition
from polyopt.dtypes import bool_, i64, u64
from polyopt.errors import Span
from polyopt.loops.affine import tidy
from polyopt.loops.ir import Check, Expr, Load, Site, Store
from polyopt.loops.scan import affine_expr, both, condition_expr
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import Space
from polyopt.poly.storage import Storage


@dataclass(slots=True)
class Bodies:
    """Turns instances into stores; collects the run-time checks on the way.

    storage: of the local arrays, by name; arguments are stored whole
    """

    scop: Scop
    storage: Mapping[str, Storage]
    sites: list[Site] = field(default_factory=list)
    _shapes: dict[str, tuple[Affine, ...]] = field(default_factory=dict)
    _users: dict[str, str] = field(default_factory=dict)
    _never: dict[tuple[str, Condition], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._shapes = {array.name: array.shape for array in self.scop.arrays}
        self._users = {array.name: array.of or array.name for array in self.scop.arrays}

    def store(
        self,
        statement: Statement,
        instance: Mapping[str, Affine],
        loops: Callable[[str], Affine],
        floors: Mapping[FloorDiv, Affine],
    ) -> Store:
        """The store of one instance.

        instance: value of each axis, affine in loop variables
        loops:    value of a loop by its name, affine in loop variables
        floors:   quotients of axes that an open loop scans, as affine expressions of loop variables
        """
        body = _Body(self, statement, dict(instance), loops, floors)
        indices, checks = body.element(statement.array, statement.subscripts, None, statement.span)
        return Store(
            statement.name,
            tuple(affine_expr(instance[axis]) for axis in statement.axes),
            statement.array,
            indices,
            body.value(statement.value, None),
            statement.reducer,
            checks,
        )

    def never(self, statement: Statement, condition: Condition) -> bool:
        """Whether a condition of a statement's axes holds at none of its instances."""
        key = (statement.name, condition)
        if key not in self._never:
            space = Space(statement.name, statement.axes, self.scop.sizes)
            points = (statement.domain & space.condition(condition)).intersect_params(self.scop.context)
            self._never[key] = bool(points.is_empty())
        return self._never[key]

    def shape(self, array: str) -> tuple[Affine, ...]:
        return self._shapes[array]

    def new_site(self, array: str, dimension: int, span: Span | None) -> int:
        site = Site(self._users[array], dimension, span)
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


@dataclass(slots=True)
class _Body:
    owner: Bodies
    statement: Statement
    instance: dict[str, Affine]
    loops: Callable[[str], Affine]
    floors: Mapping[FloorDiv, Affine]
    loads: dict[tuple[object, ...], tuple[Expr | None, Load]] = field(default_factory=dict)

    def at(self, expression: Affine) -> Affine:
        """An expression of axes as one of loop variables."""
        scanned = Affine(0)
        rest = Affine(expression.constant)
        for atom, coefficient in expression.terms:
            if isinstance(atom, FloorDiv) and atom in self.floors:
                scanned = scanned + self.floors[atom] * coefficient
            else:
                rest = rest + Affine(0, ((atom, coefficient),))
        return scanned + affine.substitute(
            rest, lambda atom: self.instance.get(atom.name) if isinstance(atom, AxisRef) else None
        )

    def condition(self, condition: Condition) -> Expr:
        return condition_expr(map_condition(condition, self.at))

    def value(self, expr: ir.Expr, mask: Expr | None) -> Expr:
        """The expression; `mask` is the condition of the branches around it, None for always."""
        match expr:
            case ir.Const() | ir.Var():
                return expr
            case ir.IndexValue(expression):
                return affine_expr(self.at(expression))
            case ir.Op(args=args):
                return ir.Op(expr.name, tuple(self.value(arg, mask) for arg in args), expr.dtype)
            case ir.Cast(arg=arg):
                return ir.Cast(self.value(arg, mask), expr.dtype)
            case ir.Where(condition, then, otherwise, dtype):
                chosen = self.condition(condition)
                refused = ir.Op("not", (chosen,), bool_)
                branches = self.value(then, both(mask, chosen)), self.value(otherwise, both(mask, refused))
                return ir.Op("select", (chosen, *branches), dtype)
            case ir.Read():
                return self.read(expr, mask)
            case ir.Reduce():
                raise AssertionError("a reduction is a statement of its own")

    def read(self, read: ir.Read, mask: Expr | None) -> Expr:
        match read.boundary:
            case ir.Pad(fill):
                holds = self.inside(read, mask)
                load = self.load(read, read.subscripts, both(mask, holds))
                if holds is None or is_plus_zero(fill):
                    return load
                return ir.Op("select", (holds, load, fill), read.dtype)
            case ir.Clamp() | ir.Wrap():
                return self.load(read, read.subscripts, mask)
            case None:
                return self.load(read, read.subscripts, mask)

    def inside(self, read: ir.Read, mask: Expr | None) -> Expr | None:
        """That every subscript of a padded read is in the box; None where there is nothing to test."""
        holds: Expr | None = None
        for subscript, extent in zip(read.subscripts, self.owner.shape(read.tensor), strict=True):
            if isinstance(subscript, Affine):
                parts = [] if self.owner.never(self.statement, Compare(subscript, "<")) else [Compare(subscript, ">=")]
                if not self.owner.never(self.statement, Compare(subscript - extent, ">=")):
                    parts.append(Compare(subscript - extent, "<"))
                if not parts:
                    continue
                test = self.condition(conjunction(*parts))
            else:
                index = self.data_index(subscript, mask)
                above = ir.Op("ge", (index, ir.Const(0, i64)), bool_)
                test = ir.Op("and", (above, ir.Op("lt", (index, affine_expr(extent)), bool_)), bool_)
            holds = both(holds, test)
        return holds

    def data_index(self, subscript: ir.DataIndex, mask: Expr | None) -> Expr:
        """A subscript that is data, as an i64 expression: one of u64 beyond that is negative, and out of range."""
        index = self.value(subscript.value, mask)
        return index if index.dtype == i64 else ir.Cast(index, i64)

    def bounded_data(self, subscript: ir.DataIndex, mask: Expr | None, extent: Affine, boundary: ir.Boundary) -> Expr:
        """A subscript that is data, brought into [0, extent) where the read is clamped or periodic."""
        index = self.value(subscript.value, mask)
        if index.dtype != u64:
            return _bounded(self.data_index(subscript, mask), extent, boundary)
        if isinstance(boundary, ir.Wrap):
            return ir.Cast(ir.Op("mod", (index, ir.Cast(affine_expr(extent), u64)), u64), i64)
        most = ir.Op("minimum", (index, ir.Const(2**63 - 1, u64)), u64)
        return _bounded(ir.Cast(most, i64), extent, boundary, low=False)

    def load(self, read: ir.Read, subscripts: tuple[ir.Subscript, ...], mask: Expr | None) -> Load:
        """The load of an element: of a read that is repeated under the same condition, the same object."""
        key = read, read.span, subscripts, id(mask)
        if key not in self.loads:
            indices, checks = self.element(read.tensor, subscripts, read.boundary, read.span, mask)
            self.loads[key] = mask, Load(read.tensor, indices, read.dtype, mask, checks)
        return self.loads[key][1]

    def element(
        self,
        array: str,
        subscripts: tuple[ir.Subscript, ...],
        boundary: ir.Boundary | None,
        span: Span | None,
        mask: Expr | None = None,
    ) -> tuple[tuple[Expr, ...], tuple[Check, ...]]:
        """Where an element lies in its buffer, and which of its indices must be checked as the kernel runs."""
        indices: list[Expr] = []
        checks: list[Check] = []
        storage = self.owner.storage.get(array)
        for dimension, subscript in enumerate(subscripts):
            extent = self.owner.shape(array)[dimension]
            if isinstance(subscript, ir.DataIndex):
                if boundary is None:
                    index = self.data_index(subscript, mask)
                    checks.append(Check(dimension, self.owner.new_site(*(subscript.place or (array, dimension)), span)))
                else:
                    index = self.bounded_data(subscript, mask, extent, boundary)
            elif isinstance(boundary, ir.Clamp | ir.Wrap):
                low = not self.owner.never(self.statement, Compare(subscript, "<"))
                high = not self.owner.never(self.statement, Compare(subscript - extent, ">="))
                bounded = _affine_bounded(self.at(subscript), extent, boundary, low=low, high=high)
                index = self.placed(bounded, storage, dimension)
            else:
                index = self.placed_affine(self.at(subscript), storage, dimension)
            indices.append(index)
        return tuple(indices), tuple(checks)

    def placed_affine(self, subscript: Affine, storage: Storage | None, dimension: int) -> Expr:
        """The index in the buffer: relative to the first element held, folded where the buffer is."""
        if storage is None:
            return affine_expr(subscript)
        index = subscript - self.offset(storage, dimension)
        modulus = storage.modulo[dimension]
        return affine_expr(index if modulus is None else index % modulus)

    def placed(self, subscript: Expr, storage: Storage | None, dimension: int) -> Expr:
        if storage is None:
            return subscript
        offset = self.offset(storage, dimension)
        index = subscript if offset == constant(0) else tidy(ir.Op("sub", (subscript, affine_expr(offset)), i64))
        modulus = storage.modulo[dimension]
        return index if modulus is None else ir.Op("mod", (index, ir.Const(modulus, i64)), i64)

    def offset(self, storage: Storage, dimension: int) -> Affine:
        return affine.substitute(
            storage.offset[dimension], lambda atom: self.loops(atom.name) if isinstance(atom, AxisRef) else None
        )


def _affine_bounded(subscript: Affine, extent: Affine, boundary: ir.Boundary, *, low: bool, high: bool) -> Expr:
    """An affine index of a clamped or periodic read; `low`, `high`: whether it may be below 0, or past the end."""
    if not low and not high:
        return affine_expr(subscript)
    if isinstance(boundary, ir.Wrap) and extent.is_constant and extent.constant > 0:
        return affine_expr(subscript % extent.constant)
    return _bounded(affine_expr(subscript), extent, boundary, low=low, high=high)


def _bounded(index: Expr, extent: Affine, boundary: ir.Boundary, *, low: bool = True, high: bool = True) -> Expr:
    """An index brought into [0, extent) as a clamped or periodic read asks; a padded one is masked elsewhere."""
    if isinstance(boundary, ir.Wrap):
        return ir.Op("mod", (index, affine_expr(extent)), i64)
    if high:
        index = ir.Op("minimum", (index, affine_expr(extent - 1)), i64)
    return ir.Op("maximum", (index, ir.Const(0, i64)), i64) if low else index


def is_plus_zero(fill: ir.Const) -> bool:
    """Whether a masked load, or a copy with zeros outside, gives the fill value by itself."""
    return fill.value == 0 and not str(fill.value).startswith("-")
