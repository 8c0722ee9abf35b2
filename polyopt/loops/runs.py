"""Which instances isl's AST runs, held against the domains: isl's code generator is not part of the proof.

isl 0.27 loses iterations of loops whose stride begins at a floor of the loops around, such as `j` where
`(i // 4 + j) % 2 == 0`, and lets a loop begin where its own iterator says. Its sets are right there; so the AST is read
back as maps from its iterators to instances.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import cast

import islpy as isl

from polyopt.classes import dataclass
from polyopt.errors import ScheduleError
from polyopt.loops.scan import NotAffine, as_affine, operation
from polyopt.poly.space import operation_budget

_OP, _NODE = isl.ast_expr_op_type, isl.ast_node_type
_IF, _FOR = (getattr(_NODE, name) for name in ("if_", "for_"))  # isl's Python types leave these out
_AND, _OR = (getattr(_OP, name) for name in ("and_", "or_"))

_ARITHMETIC = {
    _OP.add: isl.PwAff.add,
    _OP.sub: isl.PwAff.sub,
    _OP.mul: isl.PwAff.mul,
    _OP.max: isl.PwAff.max,
    _OP.min: isl.PwAff.min,
}
_COMPARISONS = {
    _OP.eq: isl.PwAff.eq_set,
    _OP.le: isl.PwAff.le_set,
    _OP.lt: isl.PwAff.lt_set,
    _OP.ge: isl.PwAff.ge_set,
    _OP.gt: isl.PwAff.gt_set,
}
_JOINS = {_AND: isl.Set.intersect, _OP.and_then: isl.Set.intersect, _OR: isl.Set.union, _OP.or_else: isl.Set.union}
_QUOTIENTS, _REMAINDERS = (_OP.fdiv_q, _OP.pdiv_q, _OP.div), (_OP.pdiv_r, _OP.zdiv_r)
_CHOICES = (_OP.cond, _OP.select)

OPERATIONS = 100_000
"""Of isl's, for one statement."""


def misread(roots: Iterable[isl.AstNode], domains: Mapping[str, isl.Set], context: isl.Set) -> list[str]:
    """The statements, of those with a domain given, that do not run exactly once for each instance, or of which isl
    does not tell in time, or whose instances are choices and no affine function of the iterators.

    context: what is known of the sizes
    """
    if not domains:
        return []
    leaves: dict[str, list[_Leaf]] = {name: [] for name in domains}
    for root in roots:
        for leaf in _leaves(root, (), ()):
            if leaf.statement in leaves:
                leaves[leaf.statement].append(leaf)
    return [name for name, own in leaves.items() if not _run_once(own, domains[name].intersect_params(context))]


def _run_once(leaves: Sequence[_Leaf], domain: isl.Set) -> bool:
    """Whether the leaves of a statement run each instance of its domain once, and no other, that no choice decides."""
    sizes = frozenset(name for name in domain.get_var_names(isl.dim_type.param) if name is not None)
    if not all(leaf.is_affine(sizes) for leaf in leaves):
        return False
    try:
        with operation_budget(OPERATIONS):
            maps = [leaf.instances(domain) for leaf in leaves]
            ran = [instances.range() for instances in maps]
            whole = reduce(isl.Set.union, ran, isl.Set.empty(domain.get_space()))
            apart = all(one.is_disjoint(other) for one, other in combinations(ran, 2))
            return apart and all(instances.is_injective() for instances in maps) and whole.is_equal(domain)
    except (_Unknown, isl.Error):
        return False


class _Unknown(Exception):
    """An expression speaks of an iterator that has no value there."""


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A place where a statement runs.

    loops:    around it, outermost first
    tests:    on the way to it, each with what must come of it
    instance: the values of its axes
    """

    statement: str
    loops: tuple[isl.AstNode, ...]
    tests: tuple[tuple[isl.AstExpr, bool], ...]
    instance: tuple[isl.AstExpr, ...]

    def is_affine(self, sizes: frozenset[str]) -> bool:
        """Whether no choice decides which instance runs."""
        iterators = {_name(loop): _name(loop) for loop in self.loops}
        try:
            for value in self.instance:
                as_affine(value, iterators, sizes)
        except NotAffine:
            return False
        return True

    def instances(self, domain: isl.Set) -> isl.Map:
        """`{ [iterators] -> S[instance] }` for all iterations; S as in the domain."""
        read = _Reader([_name(loop) for loop in self.loops], domain)
        points = read.everywhere
        for depth, loop in enumerate(self.loops):
            points = points & read.iterations(loop, depth, points)
        for test, wanted in self.tests:
            holds = read.condition(test)
            points = points & (holds if wanted else holds.complement())
        values = [isl.Map.from_pw_aff(read.value(value)) for value in self.instance]
        nothing = isl.Map.from_domain(points)
        relation = reduce(isl.Map.flat_range_product, values, nothing)
        relation = relation.set_tuple_name(isl.dim_type.out, self.statement).intersect_domain(points)
        return relation.intersect_params(domain.params())


def _leaves(
    node: isl.AstNode, loops: tuple[isl.AstNode, ...], tests: tuple[tuple[isl.AstExpr, bool], ...]
) -> Iterator[_Leaf]:
    kind = cast(isl.ast_node_type, node.get_type())
    if kind == _NODE.mark:
        yield from _leaves(node.mark_get_node(), loops, tests)
    elif kind == _NODE.block:
        children = node.block_get_children()
        for n in range(children.n_ast_node()):
            yield from _leaves(children.get_at(n), loops, tests)
    elif kind == _IF:
        test = node.if_get_cond()
        yield from _leaves(node.if_get_then_node(), loops, (*tests, (test, True)))
        if node.if_has_else_node():
            yield from _leaves(node.if_get_else_node(), loops, (*tests, (test, False)))
    elif kind == _FOR:
        yield from _leaves(node.for_get_body(), (*loops, node), tests)
    else:
        call = node.user_get_expr()
        instance = tuple(call.get_op_arg(n) for n in range(1, call.get_op_n_arg()))
        yield _Leaf(call.get_op_arg(0).get_id().get_name(), loops, tests, instance)


def _parts(expr: isl.AstExpr, op: isl.ast_expr_op_type) -> Iterator[isl.AstExpr]:
    """The values that a maximum or minimum is taken of; the value itself where it is none."""
    if cast(isl.ast_expr_type, expr.get_type()) == isl.ast_expr_type.op and operation(expr) == op:
        for n in range(expr.get_op_n_arg()):
            yield from _parts(expr.get_op_arg(n), op)
    else:
        yield expr


def _floors(value: isl.PwAff) -> int:
    return sum(aff.dim(isl.dim_type.div) + 1 for _, aff in value.get_pieces())


def _name(loop: isl.AstNode) -> str:
    return loop.for_get_iterator().get_id().get_name()


class _Reader:
    """Reads expressions of an AST as functions of the iterators around them and of the sizes of a domain."""

    def __init__(self, iterators: Sequence[str], domain: isl.Set) -> None:
        self._iterators = tuple(iterators)
        self._known = len(self._iterators)
        space = domain.get_space().params().add_dims(isl.dim_type.set, len(self._iterators))
        self._space = isl.LocalSpace.from_space(space)
        self._sizes = tuple(space.get_dim_name(isl.dim_type.param, n) for n in range(space.dim(isl.dim_type.param)))
        self.everywhere = isl.Set.universe(space)

    def iterations(self, loop: isl.AstNode, depth: int, around: isl.Set) -> isl.Set:
        """The values that a loop's iterator has, whose ends those of the `depth` loops around it give.

        around: the iterations of those loops
        """
        own, step = self._set_dim(depth), loop.for_get_inc().get_val()
        self._known = depth
        try:
            if loop.for_is_degenerate():
                return own.eq_set(self.value(loop.for_get_init()))
            condition = loop.for_get_cond()
            points = self.everywhere
            for first in _parts(loop.for_get_init(), _OP.max):
                points = points & own.ge_set(self.value(first))
            for last in _parts(condition.get_op_arg(1), _OP.min):
                points = points & _COMPARISONS[operation(condition)](own, self.value(last))
            if step.to_python() == 1:
                return points
            starts = [self.value(first) for first in _parts(loop.for_get_init(), _OP.max)]
            start = min(starts, key=_floors)
            if not all(around.is_subset(start.sub(other).mod_val(step).eq_set(self._number(0))) for other in starts):
                start = reduce(isl.PwAff.max, starts)
            return points & own.sub(start).mod_val(step).eq_set(self._number(0))
        finally:
            self._known = len(self._iterators)

    def _number(self, value: int) -> isl.PwAff:
        return isl.PwAff.from_aff(isl.Aff.zero_on_domain(self._space).set_constant_val(isl.Val(value)))

    def value(self, expr: isl.AstExpr) -> isl.PwAff:
        kind = cast(isl.ast_expr_type, expr.get_type())
        if kind == isl.ast_expr_type.int:
            return self._number(int(expr.get_val().to_python()))
        if kind == isl.ast_expr_type.id:
            return self._variable(expr.get_id().get_name())
        op = operation(expr)
        args = [expr.get_op_arg(n) for n in range(expr.get_op_n_arg())]
        if op in _CHOICES:
            holds = self.condition(args[0])
            then, otherwise = self.value(args[1]), self.value(args[2])
            return then.intersect_domain(holds).union_add(otherwise.intersect_domain(holds.complement()))
        if op in _ARITHMETIC:
            return reduce(_ARITHMETIC[op], map(self.value, args))
        if op == _OP.minus:
            return self.value(args[0]).neg()
        if op in _QUOTIENTS:
            return self.value(args[0]).scale_down_val(args[1].get_val()).floor()
        if op in _REMAINDERS:
            return self.value(args[0]).mod_val(args[1].get_val())
        raise ScheduleError("isl's AST has an operation that was not expected", why=str(expr))

    def _variable(self, name: str) -> isl.PwAff:
        if name in self._iterators[: self._known]:
            return self._set_dim(self._iterators.index(name))
        if name not in self._sizes:
            raise _Unknown(name)
        place = self._sizes.index(name)
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self._space, isl.dim_type.param, place))

    def _set_dim(self, place: int) -> isl.PwAff:
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self._space, isl.dim_type.set, place))

    def condition(self, expr: isl.AstExpr) -> isl.Set:
        if cast(isl.ast_expr_type, expr.get_type()) == isl.ast_expr_type.int:
            return self.everywhere if expr.get_val().to_python() else isl.Set.empty(self.everywhere.get_space())
        op = operation(expr)
        args = [expr.get_op_arg(n) for n in range(expr.get_op_n_arg())]
        if op in _COMPARISONS:
            return _COMPARISONS[op](*map(self.value, args))
        if op in _JOINS:
            return reduce(_JOINS[op], map(self.condition, args))
        raise ScheduleError("isl's AST has a condition that was not expected", why=str(expr))
