"""Shows from the loops alone that a ring gives each read the piece meant for it.

A loop of kind "pipeline" promises this much: at the start of iteration n a thread waits until all but the newest
`slots - 2 - lag` groups of its copies have come, then for all other threads; its copies of that iteration are the next
group, and what fills the ring are the groups before. Threads drift apart within an iteration, no further; what reads
on its own is done `lag` iterations later. So a read of iteration n must find its piece among the groups that have come,
and nothing that was issued up to iteration n + lag may be a later copy into the same slot. Slots and pieces are affine
with remainders, so that isl decides both for all pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import islpy as isl

from polyopt.classes import dataclass
from polyopt.codegen_cuda.rings import is_once, lag_of, pieces_of, read, stores, written
from polyopt.dsl.ir import Const, Op, Var
from polyopt.errors import LegalityError, ScheduleError
from polyopt.loops.ir import Expr, For, If, Load, LoopProgram, Stmt, index_var, substitute, walk, walk_expr

_IN, _OUT, _SET = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.set


def prove(program: LoopProgram) -> int:
    """Proves every ring of a program; how many there are.

    Raises `LegalityError` with the iterations that meet.
    """
    fills: dict[str, For] = {}
    found = 0
    for loop in walk(program.body):
        if not isinstance(loop, For) or loop.kind != "pipeline":
            continue
        if not pieces_of(loop)[1]:
            fills[loop.var] = loop
            continue
        _Prover(fills[loop.var], loop).check()
        found += 1
    return found


@dataclass(frozen=True, slots=True)
class _Prover:
    """One ring.

    A copy is the point [slot, source..., group, iteration that issues it], a read [slot, source..., iteration, last
    iteration in which it goes on]; the source is what the first piece's copy would read at the variable's value, as
    functions of the variables around.
    """

    fill: For
    steady: For

    def check(self) -> None:
        filled, _ = pieces_of(self.fill)
        ahead, reads = pieces_of(self.steady)
        for buffer, slot in read(reads, written(filled)).items():
            source, next_source = _source(filled, buffer), _source(ahead, buffer)
            if len(source) != len(next_source):
                raise ScheduleError("the place of a copy is not affine", why=buffer)
            bounds = self.steady.lower, self.steady.upper
            conditions = *_conditions(filled), *_conditions(ahead)
            x = _Values.over(self.steady.var, (slot, *bounds, *source, *next_source, *conditions))
            number, lag = x.number(self.steady), lag_of(self.steady)
            groups_before, until = self.steady.chunk - 1 - lag, number.add(x.constant(lag))
            wanted = x.points(x.ran(self.steady), [x.of(e) for e in (slot, *source)], number, until)
            first = [x.of(e) for e in (written(filled)[buffer], *source)]
            later = [x.of(e) for e in (written(ahead)[buffer], *next_source)]
            copied = x.points(x.where(self.fill, filled), first, x.number(self.fill), x.constant(-1))
            ran = x.where(self.steady, ahead)
            copied = copied.union(x.points(ran, later, number.add(x.constant(groups_before)), number))
            self._check(buffer, wanted, copied, len(source))

    def _check(self, buffer: str, wanted: isl.Set, copied: isl.Set, count: int) -> None:
        now, until, group, issued = count + 1, count + 2, count + 1, count + 2
        same_slot = isl.Map.from_domain_and_range(wanted, copied).equate(_IN, 0, _OUT, 0)
        own = same_slot
        for dimension in range(1, count + 1):
            own = own.equate(_IN, dimension, _OUT, dimension)
        own = own.order_ge(_IN, now, _OUT, group)
        self._none(wanted.subtract(own.domain()), f"'{buffer}' is read before the copy of its piece has come")
        later = isl.Map.from_domain_and_range(copied, copied).order_lt(_IN, group, _OUT, group)
        newest = own.subtract(own.apply_range(later.reverse()))  # a piece may have come more than once
        clash = same_slot.order_ge(_IN, until, _OUT, issued).intersect(newest.apply_range(later))
        self._none(clash.domain(), f"a slot of '{buffer}' may be written while it is read")

    def _none(self, witnesses: isl.Set, what: str) -> None:
        if witnesses.is_empty():
            return
        point = witnesses.sample_point()
        number = point.get_coordinate_val(_SET, witnesses.dim(_SET) - 2).to_python()
        slot = point.get_coordinate_val(_SET, 0).to_python()
        raise LegalityError(
            f"the ring of loop '{self.steady.var}' is wrong: {what}",
            why=f"for example in iteration {number}, which reads slot {slot} of {self.steady.chunk}",
            facts={"rule": "ring", "loop": self.steady.var, "iteration": int(number), "slots": self.steady.chunk},
        )


def _source(statements: Sequence[Stmt], buffer: str) -> tuple[Expr, ...]:
    """What decides where a buffer's copy reads, the names of a piece's place put in: its indices, or what they are made
    of where they are not affine."""
    values = [store.value for store in stores(statements) if store.buffer == buffer]
    found = next(e.indices for value in values for e in walk_expr(value) if isinstance(e, Load))
    loops = [loop for statement in statements for loop in walk(statement) if isinstance(loop, For)]
    names = {loop.var: loop.lower for loop in loops if loop.kind == "serial" and is_once(loop)}
    return tuple(part for index in found for part in _affine_parts(substitute(index, names)))


def _affine_parts(index: Expr) -> Iterator[Expr]:
    """The index, or affine expressions that are the same only where it is."""
    if _is_affine(index):
        yield index
        return
    match index:
        case Op(args=args):
            for arg in args:
                yield from _affine_parts(arg)
        case _:
            raise ScheduleError("the place of a copy is not affine", why=str(index))


def _is_affine(index: Expr) -> bool:
    match index:
        case Const() | Var():
            return True
        case Op("floordiv" | "mod", (left, Const())):
            return _is_affine(left)
        case Op("mul", (left, right)):
            return (isinstance(left, Const) or isinstance(right, Const)) and _is_affine(left) and _is_affine(right)
        case Op("add" | "sub" | "minimum" | "maximum", (left, right)):
            return _is_affine(left) and _is_affine(right)
        case _:
            return False


def _conditions(statements: Sequence[Stmt]) -> Iterator[Expr]:
    return (inner.condition for statement in statements for inner in walk(statement) if isinstance(inner, If))


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """Index expressions as functions of one loop variable, the other variables being parameters."""

    var: str
    zero: isl.PwAff

    @staticmethod
    def over(var: str, exprs: Sequence[Expr]) -> _Values:
        names = {node.name for expr in exprs for node in walk_expr(expr) if isinstance(node, Var)}
        space = isl.Space.create_from_names(isl.DEFAULT_CONTEXT, set=[var], params=sorted(names - {var}))
        return _Values(var, isl.PwAff.from_aff(isl.Aff.zero_on_domain(isl.LocalSpace.from_space(space))))

    def constant(self, value: int) -> isl.PwAff:
        return self.zero.add_constant_val(isl.Val(value))

    def of(self, expr: Expr) -> isl.PwAff:
        match expr:
            case Const(value):
                return self.constant(int(value))
            case Var(name):
                space = isl.LocalSpace.from_space(self.zero.get_domain_space())
                kind = _SET if name == self.var else isl.dim_type.param
                position = space.find_dim_by_name(kind, name)
                return isl.PwAff.from_aff(isl.Aff.var_on_domain(space, kind, position))
            case Op("floordiv", (left, Const(by))):
                return self.of(left).scale_down_val(isl.Val(int(by))).floor()
            case Op("mod", (left, Const(by))):
                return self.of(left).mod_val(isl.Val(int(by)))
            case Op("add" | "sub" | "mul" | "minimum" | "maximum" as name, (left, right)):
                one, two = self.of(left), self.of(right)
                combine = {"add": one.add, "sub": one.sub, "mul": one.mul, "minimum": one.min, "maximum": one.max}
                return combine[name](two)
            case _:
                raise ScheduleError("the place of a copy is not affine", why=str(expr))

    def holds(self, condition: Expr) -> isl.Set:
        match condition:
            case Op("lt", (left, right)):
                return self.of(left).lt_set(self.of(right))
            case _:
                raise ScheduleError("whether a copy runs is not affine", why=str(condition))

    def ran(self, loop: For) -> isl.Set:
        """The values of the loop's variable."""
        value = self.of(index_var(loop.var))
        bounds = value.ge_set(self.of(loop.lower)).intersect(value.lt_set(self.of(loop.upper)))
        return bounds.intersect(value.sub(self.of(loop.lower)).mod_val(isl.Val(loop.step)).eq_set(self.zero))

    def where(self, loop: For, statements: Sequence[Stmt]) -> isl.Set:
        """The values of the loop's variable for which the statements run."""
        ran = self.ran(loop)
        for condition in _conditions(statements):
            ran = ran.intersect(self.holds(condition))
        return ran

    def number(self, loop: For) -> isl.PwAff:
        """The number of an iteration."""
        return self.of(index_var(loop.var)).sub(self.of(loop.lower)).scale_down_val(isl.Val(loop.step)).floor()

    def points(self, ran: isl.Set, values: Sequence[isl.PwAff], *others: isl.PwAff) -> isl.Set:
        """All values at once, where the loop runs."""
        together, *rest = (isl.Map.from_pw_aff(value) for value in (*values, *others))
        for value in rest:
            together = together.flat_range_product(value)
        return together.intersect_domain(ran).range()
