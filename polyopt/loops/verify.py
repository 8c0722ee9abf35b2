"""Checks a loop program without isl: its structure, and, for given sizes, every access that it makes.

`verify` holds for all sizes. The others judge an enumeration (`loops.instances`): `check_accesses` that nothing outside
a buffer is touched, nothing read before it is written, and that no iterations of a parallel or vector loop race;
`check_order` that every dependence is respected; `check_instances` that each domain is executed exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from numpy.typing import NDArray

from polyopt.classes import dataclass
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.dtypes import DType, bool_, i64
from polyopt.errors import LegalityError
from polyopt.loops.beside import rows_inside
from polyopt.loops.instances import (
    Access,
    Instance,
    Iteration,
    Key,
    Point,
    Walker,
    enumerate_instances,
    instance_counts,
    uses_data_subscripts,
)
from polyopt.loops.ir import (
    COMBINED,
    Alloc,
    Block,
    Buffer,
    Check,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Stmt,
    Store,
)
from polyopt.loops.text import expr_text, head_text

__all__ = [
    "check_accesses",
    "check_instances",
    "check_order",
    "enumerate_instances",
    "instance_counts",
    "uses_data_subscripts",
    "verify",
]


def _fault(rule: str, what: str, why: str = "", **facts: object) -> LegalityError:
    return LegalityError(f"the loop program is wrong: {what}", why=why, facts={"rule": rule, **facts})


# --- structure ------------------------------------------------------------------------------------------------


def verify(program: LoopProgram) -> None:
    """Raises `LegalityError`, whose `facts["rule"]` names the rule, unless the program is well formed.

    variables:  each is defined once along a path, and before it is used
    buffers:    names are unique along a path; every access has the buffer's rank and dtype; inputs are not written
    dtypes:     operands and results are what `dsl.builtins` says; indices and bounds are i64, conditions bool
    loops:      steps and chunks are positive; a vector loop contains no loop but a group, a group none
    checks:     each names a dimension of its access and a site of the program
    """
    buffers: dict[str, Buffer] = {}
    for buffer in (*program.arguments, *program.workspace):
        _require(buffer.name not in buffers, "buffers", f"two buffers are called '{buffer.name}'")
        buffers[buffer.name] = buffer
    for name in program.written:
        known = any(buffer.name == name for buffer in program.arguments)
        _require(known, "buffers", f"the result '{name}' is no argument")
    scope = _Scope(program, frozenset(program.sizes), buffers)
    for buffer in buffers.values():
        scope.check_buffer(buffer)
    scope.check(program.body)


def _require(condition: bool, rule: str, what: str, where: Expr | Store | None = None) -> None:
    if condition:
        return
    match where:
        case None:
            raise _fault(rule, what)
        case Store():
            raise _fault(rule, what, head_text(where))
        case _:
            raise _fault(rule, what, expr_text(where))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What can be used at a place of the program."""

    program: LoopProgram
    variables: frozenset[str]
    buffers: Mapping[str, Buffer]
    in_vector: bool = False
    in_group: bool = False

    def check(self, statement: Stmt) -> None:
        match statement:
            case Block(body):
                for part in body:
                    self.check(part)
            case For():
                self._check_loop(statement)
            case If(condition, then, otherwise):
                self._typed(condition, bool_, "a condition")
                self.check(then)
                if otherwise is not None:
                    self.check(otherwise)
            case Alloc(buffer, body):
                _require(buffer.name not in self.buffers, "buffers", f"'{buffer.name}' hides another buffer")
                _require(buffer.space != "argument", "buffers", f"'{buffer.name}' is an argument and is allocated")
                self.check_buffer(buffer)
                _Scope(self.program, self.variables, {**self.buffers, buffer.name: buffer}, self.in_vector).check(body)
            case Store():
                self._check_store(statement)
            case _:
                assert_never(statement)

    def check_buffer(self, buffer: Buffer) -> None:
        strides = buffer.strides or ()
        for expr in (*buffer.shape, *strides):
            self._typed(expr, i64, f"an extent or stride of '{buffer.name}'")
        matches = buffer.strides is None or len(strides) == len(buffer.shape)
        _require(matches, "ranks", f"'{buffer.name}' has {len(buffer.shape)} extents and {len(strides)} strides")

    def _check_loop(self, loop: For) -> None:
        is_chunked = loop.chunk > 0 or loop.kind == "block"
        _require(loop.step > 0 and is_chunked, "loops", f"'{loop.var}' has step {loop.step}, chunk {loop.chunk}")
        is_group = loop.kind == "group"
        _require(not self.in_vector or is_group, "loops", f"loop '{loop.var}' is inside a vector loop")
        _require(not self.in_group, "loops", f"loop '{loop.var}' is inside a group")
        _require(loop.var not in self.variables, "variables", f"loop variable '{loop.var}' hides another")
        for bound in (loop.lower, loop.upper):
            self._typed(bound, i64, f"a bound of '{loop.var}'")
        holds_lanes = loop.kind == "vector" and rows_inside(loop) is None
        inner = _Scope(self.program, self.variables | {loop.var}, self.buffers, holds_lanes or self.in_vector, is_group)
        inner.check(loop.body)

    def _check_store(self, store: Store) -> None:
        buffer = self._access(store.buffer, store.indices, store.checks)
        is_input = buffer.space == "argument" and buffer.name not in self.program.written
        _require(not is_input, "buffers", f"the input '{buffer.name}' is written", store)
        self._typed(store.value, buffer.dtype, f"the value stored to '{buffer.name}'")
        for expr in store.instance:
            self._typed(expr, i64, f"an axis value of '{store.statement}'")
        if store.reducer is not None:
            same = store.reducer.dtype == buffer.dtype
            _require(same, "dtypes", f"'{buffer.name}' of {buffer.dtype} is reduced in {store.reducer.dtype}")

    def _access(self, name: str, indices: Sequence[Expr], checks: Sequence[Check]) -> Buffer:
        _require(name in self.buffers, "buffers", f"'{name}' is used where it does not exist")
        buffer = self.buffers[name]
        rank = len(buffer.shape)
        _require(len(indices) == rank, "ranks", f"'{name}' of rank {rank} is accessed with {len(indices)} indices")
        for index in indices:
            self._typed(index, i64, f"an index of '{name}'")
        for check in checks:
            known = 0 <= check.dimension < rank and 0 <= check.site < len(self.program.sites)
            _require(known, "checks", f"a check of '{name}' names dimension {check.dimension}, site {check.site}")
        return buffer

    def _typed(self, expr: Expr, dtype: DType, what: str) -> None:
        found = self._dtype(expr)
        _require(found == dtype, "dtypes", f"{what} is {found} and must be {dtype}", expr)

    def _dtype(self, expr: Expr) -> DType:
        """The dtype of an expression whose parts have been checked."""
        match expr:
            case Const():
                pass
            case Var(name):
                _require(name in self.variables, "variables", f"'{name}' is used where it has no value")
                _require(expr.dtype == i64, "dtypes", f"the variable '{name}' is i64, not {expr.dtype}")
            case Cast(arg):
                self._dtype(arg)
            case Op():
                self._check_op(expr)
            case Load():
                buffer = self._access(expr.buffer, expr.indices, expr.checks)
                _require(expr.dtype == buffer.dtype, "dtypes", f"'{buffer.name}' is {buffer.dtype}, not {expr.dtype}")
                if expr.mask is not None:
                    self._typed(expr.mask, bool_, "a mask")
            case _:
                assert_never(expr)
        return expr.dtype

    def _check_op(self, op: Op[Expr]) -> None:
        row = BUILTINS.get(op.name)
        if row is None or len(op.args) != row.arity:
            raise _fault("dtypes", f"there is no operation '{op.name}' of {len(op.args)} operands")
        types = [self._dtype(arg) for arg in op.args]
        if op.name == "select":
            _require(types.pop(0).is_bool, "dtypes", "a choice is made by a value that is no bool", op)
        operand = types[0]
        fits = {
            "number": not operand.is_bool,
            "float": operand.is_float,
            "integer": operand.is_integer,
            "logic": not operand.is_float,
            "any": True,
        }
        ok = all(dtype == operand for dtype in types) and fits[row.operands]
        ok = ok and op.dtype == (bool_ if row.result == "bool" else operand)
        names = ", ".join(map(str, types))
        _require(ok, "dtypes", f"'{op.name}' is applied to {names} and gives {op.dtype}", op)


# --- judging the enumeration ----------------------------------------------------------------------------------


def check_accesses(
    program: LoopProgram, sizes: Mapping[str, int] | None = None, arrays: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Enumerates the program and checks memory: bounds, reads before writes, races.

    Two iterations of a parallel loop may touch the same element only if neither writes it. Two iterations of a vector
    loop may also both update it, with the same reducer (lanes are combined). Every element of a result is written.
    Raises `LegalityError` with `facts["rule"]` "bounds", "uninitialised", "race" or "unwritten".
    """
    inputs = {buffer.name for buffer in program.arguments} - set(program.written)
    written: set[Access] = set()
    races = _Races()
    for instance in enumerate_instances(program, sizes, arrays):
        needed = instance.reads if instance.reducer is None else (*instance.reads, instance.write)
        for access in needed:
            if access.buffer not in inputs and access not in written:
                what = f"{access.buffer}{list(access.index)} is read before it is written"
                raise _fault("uninitialised", what, f"in: {instance.text}", buffer=access.buffer, index=access.index)
        written.add(instance.write)
        races.add(instance)
    _check_results_written(program, written, dict(sizes or {}))


def _check_results_written(program: LoopProgram, written: set[Access], sizes: dict[str, int]) -> None:
    shapes = Walker(program, sizes, {}).shapes
    counts = Counter(access.buffer for access in written)
    for name in program.written:
        elements = 1
        for extent in shapes[name][1]:
            elements *= extent
        if counts[name] != elements:
            raise _fault("unwritten", f"{counts[name]} of the {elements} elements of '{name}' are written", buffer=name)


class _Races:
    """Which iterations of each parallel or vector loop touched each element, and how."""

    def __init__(self) -> None:
        self._touched: dict[tuple[int, Access], list[tuple[Iteration, Instance, str]]] = {}

    def add(self, instance: Instance) -> None:
        """Raises `LegalityError` where the instance meets one of another iteration."""
        how = "write" if instance.reducer is None else "update"
        touches = [(access, "read") for access in instance.reads] + [(instance.write, how)]
        for iteration in instance.position:
            for access, kind in touches:
                self._add(iteration, access, instance, kind)

    def _add(self, iteration: Iteration, access: Access, instance: Instance, kind: str) -> None:
        # one touch per kind and at most two iterations decide: any third iteration meets one of them
        touches = self._touched.setdefault((iteration.entry, access), [])
        for other, before, other_kind in touches:
            if other.value != iteration.value and _clash(iteration, (kind, instance), (other_kind, before)):
                raise _fault(
                    "race",
                    f"two iterations of {iteration.kind} loop '{iteration.loop}' touch "
                    f"{access.buffer}{list(access.index)}",
                    f"{before.statement}{list(before.point)} at {other.value}: {before.text}\n"
                    f"{instance.statement}{list(instance.point)} at {iteration.value}: {instance.text}",
                    buffer=access.buffer,
                    index=access.index,
                    loop=iteration.loop,
                    pair=(before.key, instance.key),
                )
        values = {other.value for other, _, other_kind in touches if other_kind == kind}
        if iteration.value not in values and len(values) < 2:
            touches.append((iteration, instance, kind))


def _clash(iteration: Iteration, one: tuple[str, Instance], two: tuple[str, Instance]) -> bool:
    kinds = {one[0], two[0]}
    if kinds == {"read"}:
        return False
    combined = kinds == {"update"} and one[1].reducer == two[1].reducer
    return not (combined and iteration.kind in COMBINED)


def check_order(instances: Iterable[Instance], dependences: Iterable[tuple[Key, Key]]) -> None:
    """Checks that the source of each dependence runs before its sink, whatever parallel and vector loops do.

    dependences: pairs of statement instances (reduction dependences that may be reordered are not among them); pairs
                 with an instance that never runs are a fault too
    Raises `LegalityError` with the violating pair as `facts["pair"]`.
    """
    places: dict[Key, tuple[int, Instance]] = {}
    for number, instance in enumerate(instances):
        places.setdefault(instance.key, (number, instance))
    for source, sink in dependences:
        for key in (source, sink):
            if key not in places:
                raise _fault("instances", f"{key[0]}{list(key[1])} never runs", pair=(source, sink))
        (before, first), (after, second) = places[source], places[sink]
        apart = _diverge(first.position, second.position)
        if before >= after or apart is not None:
            reason = "would run after it" if apart is None else f"loop '{apart.loop}' may run them in any order"
            what = f"{source[0]}{list(source[1])} must run before {sink[0]}{list(sink[1])}"
            raise _fault("order", what, reason, pair=(source, sink))


def _diverge(first: Sequence[Iteration], second: Sequence[Iteration]) -> Iteration | None:
    """The loop, if any, of which the two positions are different iterations."""
    for one, two in zip(first, second, strict=False):
        if one.entry != two.entry:
            return None
        if one.value != two.value:
            return one
    return None


def check_instances(instances: Iterable[Instance], domains: Mapping[str, Iterable[Point]]) -> None:
    """Checks that each point of each domain is executed exactly once, and nothing else is.

    Raises `LegalityError` with `facts["rule"]` "instances" and the instance.
    """
    counts = instance_counts(instances)
    for name in sorted(set(counts) | set(domains)):
        wanted, found = Counter(domains.get(name, ())), counts.get(name, Counter())
        for point in sorted(set(wanted) | set(found)):
            if wanted[point] != found[point]:
                what = f"{name}{list(point)} runs {found[point]} times and should run {wanted[point]} times"
                raise _fault("instances", what, statement=name, point=point)
