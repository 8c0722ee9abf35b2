"""From a mapped schedule to a loop program: isl scans the domains, we name the loops and fill in the bodies."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from math import prod
from typing import cast

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import affine
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axis
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import i64
from polyopt.errors import ScheduleError
from polyopt.loops import bounds, runs
from polyopt.loops.beside import rows_inside
from polyopt.loops.body import Bodies
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    LoopProgram,
    Stmt,
    index_var,
    integer,
    substitute,
    walk,
)
from polyopt.loops.placement import allocate
from polyopt.loops.rename import rename
from polyopt.loops.scan import NotAffine, affine_expr, as_affine, as_condition, as_expr, operation
from polyopt.poly.scop import Array, Scop, Statement
from polyopt.poly.space import node_kind, operation_budget
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Loop, Tree, as_schedule, loops, statements
from polyopt.poly.tree import Sequence as TreeSequence

_LOG = logging.getLogger(__name__)

LOCAL_BYTES = 1 << 12
"""No private buffer that is larger lives on a thread's stack: the caller's may have 64 KiB."""
STACK_BYTES = 4 * LOCAL_BYTES
"""All of one function together: the kernel, or the body of a parallel loop."""

OPERATIONS, FEW_PIECES = 100_000, 8
"""Of isl's for the loops of a tree, for each piece of a statement's domain, and of so many pieces at least: our
operators take half of them in 0.02 s, but where a condition has many cases an operation may take fifty times as long as
most."""

_NODE = isl.ast_node_type
_IF, _FOR = (getattr(_NODE, name) for name in ("if_", "for_"))  # isl's Python types leave these two out


def lower(
    scop: Scop,
    tree: Tree,
    storage: StoragePlan,
    *,
    parameters: Sequence[str],
    results: Sequence[str],
    strides: Mapping[str, tuple[int, ...] | None],
    shapes: Mapping[str, tuple[Affine, ...]] | None = None,
    local_bytes: int = LOCAL_BYTES,
    stack_bytes: int = STACK_BYTES,
    screened: Sequence[tuple[str, str]] = (),
) -> LoopProgram:
    """The loop program of a mapped tree.

    parameters, results: the arguments, in call order
    strides: bytes per dimension of an argument; None, or absent, for C-contiguous. With symbolic sizes a strided
             argument's strides become run-time parameters `x.stride0`, ...
    shapes:  of the arguments as the caller has them, where dimensions are joined
    local_bytes, stack_bytes: the largest private buffer that lives on a thread's stack, and all of them
    screened: pairs of arguments that the kernel looks through first, if it has groups
    """
    scanned = ast(scop, tree)
    taken = stack_bytes // 2 if screened else 0  # by the loops of the version for small numbers
    scanner = _Scanner(scop, tree, storage, local_bytes, stack_bytes, scanned.guards, taken)
    body = scanner.scan(scanned.roots)
    arguments, extra = _arguments(scop, [*parameters, *results], strides, shapes or {})
    written = tuple(results)
    return LoopProgram(
        scop.name,
        arguments,
        tuple(_buffer(scop.array(b.array), b, "workspace") for b in storage.buffers if not b.scope),
        (*scop.sizes, *extra),
        written,
        body,
        tuple(scanner.bodies.sites),
        _guards(scanned.guards),
        tuple(screened) if any(isinstance(s, For) and s.kind == "group" for s in walk(body)) else (),
    )


def _guards(guarded: Iterable[str]) -> tuple[str, ...]:
    names = ", ".join(guarded)
    said = f"{names} run in loops over a hull of their points, under guards: isl's own may lose some"
    return (said,) if names else ()


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """isl's ASTs, one after the other.

    guards: by statement, the parameters `axis.0`, `axis.1`, ... for which it happens
    """

    roots: tuple[isl.AstNode, ...]
    guards: Mapping[str, isl.Set]


def ast(scop: Scop, tree: Tree) -> Scanned:
    """isl's ASTs of the tree; loops that become lanes or registers are generated without guards inside.

    Of a statement with divisions in its domain or its rows, isl may lose iterations: such a one, and one of which isl
    does not tell in time, runs in loops over a hull of the domain, under a guard. So do all of them where isl fails
    or finds no loops in time. Raises `ScheduleError` where iterations are lost, or isl fails, all the same.
    """
    odd = {name for loop in loops(tree) for name, row in loop.rows if not _is_plain(row)}
    divided = {  # an equality that only two bounds of a floor make plain is where isl ends at "unknown divs"
        s.name: s.domain.detect_equalities()
        for s in scop.statements
        if s.name in odd or not s.domain.remove_divs().is_equal(s.domain)
    }
    guarded = [name for name, domain in divided.items() if _has_floors(domain) and _is_endless(scop, tree, domain)]
    while True:
        if guarded:
            _LOG.info("%s: isl may lose iterations of %s, which run under guards", scop.name, ", ".join(guarded))
        wide = {name: _undivided(divided[name]) for name in guarded}
        scanned = {**divided, **wide}
        over = replace(scop, statements=tuple(_over(s, scanned.get(s.name, s.domain)) for s in scop.statements))
        try:
            roots = _scanned(over, tree)
            lost = runs.misread(roots, scanned, scop.context)
        except isl.Error as error:
            lost = [name for name in divided if name not in wide]
            if not lost:
                raise ScheduleError(f"the polyhedral library failed to scan the loops of '{scop.name}'") from error
        else:
            if not lost:
                return Scanned(roots, {name: _of_axes(divided[name].gist(wide[name])) for name in guarded})
        if again := [name for name in lost if name in wide]:
            raise ScheduleError(f"isl's loops lose iterations of '{again[0]}'", why="\n".join(map(str, roots)))
        guarded += lost


def _scanned(scop: Scop, tree: Tree) -> tuple[isl.AstNode, ...]:
    """isl's ASTs of the tree. Raises `isl.Error` where isl fails, or finds none in time.

    Nests that stand one after the other are scanned one by one: isl looks at all statements for each. Where sizes are
    symbolic they may have guards in common.
    """
    parts = tree.children if isinstance(tree, TreeSequence) and not scop.sizes else ()
    if not parts:
        pieces = sum(statement.domain.n_basic_set() for statement in scop.statements)
        return (_generated(scop, _schedule(scop, tree), OPERATIONS * max(pieces, FEW_PIECES)),)
    inside = (replace(scop, statements=tuple(map(scop.statement, statements(part)))) for part in parts)
    return tuple(root for part, own in zip(parts, inside, strict=True) for root in _scanned(own, part))


def _generated(scop: Scop, schedule: isl.Schedule, operations: int) -> isl.AstNode:
    with _values_not_counts(), operation_budget(operations):
        return isl.AstBuild.from_context(scop.context).node_from_schedule(schedule)


def _schedule(scop: Scop, tree: Tree) -> isl.Schedule:
    """The tree as isl has it, with loops that become lanes or registers asked for without guards inside."""
    schedule = as_schedule(tree, scop)
    if flat := {loop.name for loop in loops(tree) if loop.kind in ("vector", "unrolled")}:
        schedule = schedule.map_schedule_node_bottom_up(lambda node: _separated(node, flat))
    return schedule


def _has_floors(domain: isl.Set) -> bool:
    """Whether some bound of the domain is a floor that no equation gives: strides are scanned without cases."""
    return any(
        not bound.is_equality() and bound.involves_dims(isl.dim_type.div, 0, piece.dim(isl.dim_type.div))
        for piece in domain.get_basic_sets()
        for bound in piece.get_constraints()
    )


def _is_endless(scop: Scop, tree: Tree, domain: isl.Set) -> bool:
    """Whether isl finds no loops in time for the one statement of this domain, if the tree had no other.

    Where the cases of two floors meet those of tiles of the same axes there is no end to them, and the operations that
    the other statements have not used are its slowest ones.
    """
    try:
        _generated(scop, _schedule(scop, tree).intersect_domain(isl.UnionSet.from_set(domain)), OPERATIONS)
    except isl.Error:
        return True
    return False


def _is_plain(row: Affine) -> bool:
    """Whether a row is a sum of axes, each once, or the tiles of one: then isl's loops have no strides but tiles'."""
    match row.terms:
        case ((FloorDiv(Affine(terms=((AxisRef(), 1),))), _),):
            return True
        case terms:
            return all(isinstance(atom, AxisRef) and abs(factor) == 1 for atom, factor in terms)


def _over(statement: Statement, domain: isl.Set) -> Statement:
    return replace(statement, domain=domain)


def _undivided(domain: isl.Set) -> isl.Set:
    """A polyhedron that holds the domain."""
    wide = isl.Set.from_basic_set(domain.remove_divs().simple_hull())
    return wide if wide.is_bounded() else isl.Set.from_basic_set(domain.polyhedral_hull())


def _of_axes(points: isl.Set) -> isl.Set:
    """The points as a condition on parameters; no name of the user's has a dot in it."""
    rank, first = points.dim(isl.dim_type.set), points.dim(isl.dim_type.param)
    moved = points.reset_tuple_id().move_dims(isl.dim_type.param, first, isl.dim_type.set, 0, rank)
    for number in range(rank):
        moved = moved.set_dim_name(isl.dim_type.param, first + number, f"axis.{number}")
    return moved.params()


@contextmanager
def _values_not_counts() -> Iterator[None]:
    """Keeps isl from counting the iterations of a loop whose values lie a stride apart: a loop variable is the value of
    its row, from which tiles and private buffers are computed. The option is global to isl: set here, and put back."""
    context = isl.DEFAULT_CONTEXT
    before = context.get_ast_build_scale_strides()
    context.set_ast_build_scale_strides(0)
    try:
        yield
    finally:
        context.set_ast_build_scale_strides(before)


def _separated(node: isl.ScheduleNode, flat: set[str]) -> isl.ScheduleNode:
    if node_kind(node) != isl.schedule_node_type.band or not node.has_parent():
        return node
    parent = node.parent()
    if node_kind(parent) == isl.schedule_node_type.mark and parent.mark_get_id().get_name() in flat:
        return node.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
    return node


def _arguments(
    scop: Scop,
    names: Sequence[str],
    strides: Mapping[str, tuple[int, ...] | None],
    shapes: Mapping[str, tuple[Affine, ...]],
) -> tuple[tuple[Buffer, ...], tuple[str, ...]]:
    buffers: list[Buffer] = []
    extra: list[str] = []
    for name in names:
        array = scop.array(name)
        given = strides.get(name)
        chosen: tuple[Expr, ...] | None = None
        outside = shapes.get(name, array.shape)
        assert given is None or outside == array.shape, f"'{name}' has strides, so its dimensions stay apart"
        if given is not None and scop.sizes:
            # No name of the user's has a dot in it.
            own = tuple(f"{name}.stride{d}" for d in range(len(array.shape)))
            extra += own
            chosen = tuple(index_var(n) for n in own)
        elif given is not None:
            chosen = tuple(integer(stride) for stride in given)
        shape = tuple(affine_expr(extent) for extent in array.shape)
        callers = None if outside == array.shape else tuple(affine_expr(extent) for extent in outside)
        buffers.append(Buffer(name, array.dtype, shape, "argument", chosen, given=callers))
    return tuple(buffers), tuple(extra)


def _buffer(array: Array, storage: Storage, space: str) -> Buffer:
    shape = tuple(affine_expr(extent) for extent in storage.extent)
    last = storage.extent[-1] if storage.extent else Affine(0)
    size = array.dtype.itemsize
    aligned = len(shape) <= 1 or (last.is_constant and last.constant * size % 64 == 0)
    strides = None
    if storage.strides is not None:
        aligned, strides = False, tuple(integer(step * size) for step in storage.strides)
    return Buffer(array.name, array.dtype, shape, space, strides, aligned, padded=array.padded)  # type: ignore[arg-type]  # a space's name


@dataclass(slots=True)
class _Scanner:
    """Walks isl's AST.

    A mark names the loop below it. isl drops a loop of one iteration and may cut a loop into pieces; the value of a
    dropped loop is computed from the instance.

    loops:     by name; the kind is that of every loop of the name
    rows:      the row of each statement in each loop, by the loop's name; point loops of one name stand apart
    variables: the variable of each loop that is open and whose row it is for every statement, by the loop's name
    names:     the variable of each open iterator of isl's, by its name
    loop_of:   the loop that each variable scans
    """

    scop: Scop
    tree: Tree
    storage: StoragePlan
    local_bytes: int
    stack_bytes: int
    guards: Mapping[str, isl.Set]
    taken: int
    on_stack: dict[str, int] = field(default_factory=dict)
    bodies: Bodies = field(init=False)
    loops: dict[str, Loop] = field(init=False)
    rows: dict[str, dict[str, Affine]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    loop_of: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.scop, {b.array: b for b in self.storage.buffers})
        self.used = set(self.scop.sizes)
        self.loops = {loop.name: loop for loop in loops(self.tree)}
        for loop in loops(self.tree):
            self.rows.setdefault(loop.name, {}).update(loop.rows)

    def scan(self, roots: Sequence[isl.AstNode]) -> Stmt:
        body = _flat(Block(tuple(map(self.node, roots))))
        private = [(self.private(buffer), buffer.scope) for buffer in self.storage.buffers if buffer.scope]
        return rename(allocate(body, private, self.loop_of), frozenset(self.scop.sizes))

    def node(self, node: isl.AstNode, loop: str = "") -> Stmt:
        """The node as a statement; `loop`: the name in the nearest mark above."""
        kind = cast(isl.ast_node_type, node.get_type())
        if kind == _NODE.mark:
            return self.node(node.mark_get_node(), node.mark_get_id().get_name())
        if kind == _NODE.block:
            children = node.block_get_children()
            return Block(tuple(self.node(children.get_at(n), loop) for n in range(children.n_ast_node())))
        if kind == _IF:
            condition = as_condition(node.if_get_cond(), self.names, frozenset(self.scop.sizes))
            then = self.node(node.if_get_then_node(), loop)
            otherwise = self.node(node.if_get_else_node(), loop) if node.if_has_else_node() else None
            return If(condition, then, otherwise)
        if kind == _FOR:
            return self.loop(node, loop)
        if kind == _NODE.user:
            return self.instance(node)
        raise ScheduleError("isl's AST has a node that was not expected", why=str(node))

    def loop(self, node: isl.AstNode, name: str) -> Stmt:
        """A loop of the tree or, where no mark names it, one that isl adds: over points of a hull that share the values
        of all loops around. A guard leaves one of them."""
        iterator = node.for_get_iterator().get_id().get_name()
        variable = self.fresh(name or "point")
        sizes = frozenset(self.scop.sizes)
        lower = as_expr(node.for_get_init(), self.names, sizes)
        self.names[iterator], self.loop_of[variable] = variable, name
        upper = self.upper(node.for_get_cond(), sizes)
        step = int(node.for_get_inc().get_val().to_python())
        if name and _fall_together(self.rows[name].values(), step):
            self.variables[name] = variable
        body = self.node(node.for_get_body())
        del self.names[iterator]
        if not name:
            return For(variable, lower, upper, _flat(body), step)
        self.variables.pop(name, None)
        source = self.loops[name]
        found = For(variable, lower, upper, _flat(body), step, source.kind, _axis_label(name), source.chunk)
        found = bounds.shown(found, source, self.scop)
        return found if source.kind != "vector" or _suits_lanes(found) else replace(found, kind="serial")

    def upper(self, condition: isl.AstExpr, sizes: frozenset[str]) -> Expr:
        """The exclusive bound of `iterator < bound` or `iterator <= bound`."""
        bound = condition.get_op_arg(1)
        if operation(condition) == isl.ast_expr_op_type.lt:
            return as_expr(bound, self.names, sizes)
        return _plus_one(as_expr(bound, self.names, sizes))

    def instance(self, node: isl.AstNode) -> Stmt:
        call = node.user_get_expr()
        statement = self.scop.statement(call.get_op_arg(0).get_id().get_name())
        sizes = frozenset(self.scop.sizes)
        try:
            found = [as_affine(call.get_op_arg(n + 1), self.names, sizes) for n in range(len(statement.axes))]
        except NotAffine:
            raise ScheduleError(f"isl's loops choose the instances of '{statement.name}'", why=str(call)) from None
        values = dict(zip(statement.axes, found, strict=True))

        def loop_value(name: str) -> Affine:
            if name in self.variables:
                return axis(self.variables[name])
            row = self.rows[name][statement.name]
            return affine.substitute(row, lambda atom: values[atom.name] if isinstance(atom, AxisRef) else None)

        store = self.bodies.store(statement, values, loop_value, self.floors(statement.name))
        guard = self.guards.get(statement.name)
        return store if guard is None else If(self.happens(guard, list(values.values())), store, None)

    def happens(self, guard: isl.Set, values: Sequence[Affine]) -> Expr:
        """Whether an instance is one of those that a guard leaves."""
        names = [f"axis.{number}" for number in range(len(values))]
        condition = isl.AstBuild.from_context(self.scop.context).expr_from_set(guard)
        expr = as_condition(condition, {name: name for name in names}, frozenset(self.scop.sizes))
        return substitute(expr, {name: affine_expr(value) for name, value in zip(names, values, strict=True)})

    def floors(self, statement: str) -> dict[FloorDiv, Affine]:
        """The quotients of axes that are the row of an open loop, such as `j // 64` in a loop over tiles."""
        found: dict[FloorDiv, Affine] = {}
        for name, variable in self.variables.items():
            row = self.rows[name].get(statement, Affine(0))
            if len(row.terms) != 1 or row.constant != 0:
                continue
            atom, factor = row.terms[0]
            if isinstance(atom, FloorDiv):
                found[atom] = axis(variable) // factor
        return found

    def private(self, storage: Storage) -> Buffer:
        array = self.scop.array(storage.array)
        is_known = all(extent.is_constant for extent in storage.extent)
        size = prod(extent.constant for extent in storage.extent) * array.dtype.itemsize
        frame = next((name for name in storage.scope if self.loops[name].kind == "parallel"), "")
        taken = self.on_stack.get(frame, self.taken)
        fits = is_known and size <= self.local_bytes and taken + size <= self.stack_bytes
        small = fits and storage.strides is None  # arrays on the stack have rows
        self.on_stack[frame] = taken + size if small else taken
        return _buffer(array, storage, "local" if small else "workspace")

    def fresh(self, name: str) -> str:
        """A loop variable: the loop's name as an identifier."""
        base = re.sub(r"\W+", "_", re.sub(r"#\d+", "", name)).strip("_")
        base = base if base and not base[0].isdigit() else f"c_{base}"
        candidate, number = base, 1
        while candidate in self.used:
            number += 1
            candidate = f"{base}_{number}"
        self.used.add(candidate)
        return candidate


def _fall_together(rows: Iterable[Affine], step: int) -> bool:
    """Whether all rows of a loop have the same remainder for its step.

    Where they have not, isl joins rows that lie less than a step apart in the iterations of one of them.
    """
    constants = set()
    for row in rows:
        if any(factor % step for _, factor in row.terms):
            return False
        constants.add(row.constant % step)
    return len(constants) == 1


def _axis_label(name: str) -> str:
    return re.sub(r"#\d+", "", name).replace("_tile", " tile")


def _suits_lanes(loop: For) -> bool:
    """Whether a loop can run in lanes: unit steps, and no loop but groups, guard or private buffer inside, or rows that
    all lanes add to."""
    others = (s for s in walk(loop.body) if not (isinstance(s, For) and s.kind == "group"))
    is_plain = not any(isinstance(s, For | If | Alloc) for s in others)
    return loop.step == 1 and (is_plain or rows_inside(loop) is not None)


def _plus_one(expr: Expr) -> Expr:
    match expr:
        case Const(value):
            return integer(int(value) + 1)
        case Op("minimum" | "maximum", args):
            return Op(expr.name, tuple(_plus_one(arg) for arg in args), i64)
        case Op("sub", (left, Const(1))):
            return left
        case Op("sub", (left, Const(value))):
            return Op("sub", (left, integer(int(value) - 1)), i64)
        case Op("add", (left, Const(value))):
            return Op("add", (left, integer(int(value) + 1)), i64)
        case _:
            return Op("add", (expr, integer(1)), i64)


def _flat(statement: Stmt) -> Stmt:
    """Nested blocks joined; a block of one is the one."""
    match statement:
        case Block(body):
            flat: list[Stmt] = []
            for inner in (_flat(s) for s in body):
                flat.extend(inner.body if isinstance(inner, Block) else [inner])
            return flat[0] if len(flat) == 1 else Block(tuple(flat))
        case For() | Alloc():
            return replace(statement, body=_flat(statement.body))
        case If(_, then, otherwise):
            return replace(statement, then=_flat(then), otherwise=None if otherwise is None else _flat(otherwise))
        case _:
            return statement
