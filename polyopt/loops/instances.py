"""Enumerates the statement instances of a loop program for given sizes, in plain Python: what runs, on which elements.

It shares no code with the interpreter: index expressions are evaluated on exact integers, and values are not computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, assert_never

from numpy.typing import NDArray

from polyopt.classes import dataclass
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.errors import LegalityError
from polyopt.loops.ir import (
    CONCURRENT,
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
    walk,
    walk_expr,
)
from polyopt.loops.text import head_text

Point = tuple[int, ...]
Key = tuple[str, Point]
"""A statement instance: name and axis values."""


@dataclass(frozen=True, slots=True)
class Access:
    """One element of one allocation of a buffer; `allocation` is 0 for arguments and the shared workspace."""

    buffer: str
    allocation: int
    index: Point


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration of a parallel or vector loop. entry: number of the execution of that loop"""

    loop: str
    kind: str
    entry: int
    value: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a store.

    reads:    in order of evaluation; for an update not the element it updates
    position: the iterations of parallel and vector loops around it, outermost first
    """

    store: Store
    point: Point
    reads: tuple[Access, ...]
    write: Access
    position: tuple[Iteration, ...]

    @property
    def statement(self) -> str:
        return self.store.statement

    @property
    def reducer(self) -> Reducer | None:
        """Not None for an update."""
        return self.store.reducer

    @property
    def key(self) -> Key:
        return self.statement, self.point

    @property
    def text(self) -> str:
        """The store, for messages."""
        return head_text(self.store)


def enumerate_instances(
    program: LoopProgram, sizes: Mapping[str, int] | None = None, arrays: Mapping[str, NDArray[Any]] | None = None
) -> Iterator[Instance]:
    """Every execution of a store, in sequential order.

    arrays: the inputs that data subscripts and data conditions read; an instance whose run-time check fails is left
            out, as in the kernel
    Raises `LegalityError` for an access outside its buffer.
    """
    return Walker(program, dict(sizes or {}), dict(arrays or {})).walk(program.body)


def instance_counts(instances: Iterable[Instance]) -> dict[str, Counter[Point]]:
    """How often each point of each statement is executed: to compare with the domains."""
    counts: dict[str, Counter[Point]] = {}
    for instance in instances:
        counts.setdefault(instance.statement, Counter())[instance.point] += 1
    return counts


class _CheckFailed(Exception):
    """A run-time check failed: the access does not happen."""


@dataclass(slots=True, eq=False)
class Walker:
    """Walks the program with the values of its variables and the allocations at hand."""

    program: LoopProgram
    values: dict[str, int]
    arrays: dict[str, NDArray[Any]]
    position: tuple[Iteration, ...] = ()
    allocations: int = 0
    entries: int = 0
    shapes: dict[str, tuple[int, Point]] = field(default_factory=dict)
    reads: list[Access] = field(default_factory=list)
    store: Store | None = None  # the last that was executed

    def __post_init__(self) -> None:
        for buffer in (*self.program.arguments, *self.program.workspace):
            self.shapes[buffer.name] = 0, self._shape(buffer)
            if buffer.given is not None and buffer.name in self.arrays:
                self.arrays[buffer.name] = self.arrays[buffer.name].reshape(self._shape(buffer))

    def _shape(self, buffer: Buffer) -> Point:
        return tuple(self._integer(extent) for extent in buffer.shape)

    def walk(self, statement: Stmt) -> Iterator[Instance]:
        match statement:
            case Block(body):
                for part in body:
                    yield from self.walk(part)
            case For():
                yield from self._walk_loop(statement)
            case If(condition, then, otherwise):
                chosen = then if self._integer(condition) else otherwise
                if chosen is not None:
                    yield from self.walk(chosen)
            case Alloc(buffer, body):
                self.allocations += 1
                self.shapes[buffer.name] = self.allocations, self._shape(buffer)
                yield from self.walk(body)
                del self.shapes[buffer.name]
            case Store():
                yield from self._execute(statement)
            case _:
                assert_never(statement)

    def _walk_loop(self, loop: For) -> Iterator[Instance]:
        self.entries += 1
        entry, outer = self.entries, self.position
        for value in range(self._integer(loop.lower), self._integer(loop.upper), loop.step):
            self.values[loop.var] = value
            if loop.kind in CONCURRENT:
                self.position = (*outer, Iteration(loop.var, loop.kind, entry, value))
            yield from self.walk(loop.body)
        self.position = outer
        self.values.pop(loop.var, None)

    def _execute(self, store: Store) -> Iterator[Instance]:
        self.reads, self.store = [], store
        try:
            self._touch(store.value)
            index = self._place(store.buffer, store.indices, store.checks)
        except _CheckFailed:
            return
        point = tuple(self._integer(value) for value in store.instance)
        write = Access(store.buffer, self.shapes[store.buffer][0], index)
        yield Instance(store, point, tuple(self.reads), write, self.position)

    def _touch(self, expr: Expr) -> None:
        """Notes every element that evaluating `expr` reads, where its mask holds."""
        match expr:
            case Const() | Var():
                return
            case Op(args=args):
                for arg in args:
                    self._touch(arg)
            case Cast(arg=arg):
                self._touch(arg)
            case Load():
                self._note(expr)
            case _:
                assert_never(expr)

    def _note(self, load: Load) -> Point | None:
        """Notes the element that a load reads; None where its mask does not hold or its check fails."""
        if load.mask is not None and not self._integer(load.mask):
            return None
        try:
            index = self._place(load.buffer, load.indices, load.checks)
        except _CheckFailed:
            return None  # the load yields 0, and the statement goes on
        self.reads.append(Access(load.buffer, self.shapes[load.buffer][0], index))
        return index

    def _place(self, buffer: str, indices: Sequence[Expr], checks: Sequence[Check]) -> Point:
        index = tuple(self._integer(value) for value in indices)
        shape = self.shapes[buffer][1]
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            return index
        checked = {check.dimension for check in checks}
        if all(d in checked or 0 <= i < n for d, (i, n) in enumerate(zip(index, shape, strict=True))):
            raise _CheckFailed
        what = f"{buffer}{list(index)} is outside the shape {shape}"
        facts = {"rule": "bounds", "buffer": buffer, "index": index, "shape": shape}
        raise LegalityError(f"the loop program is wrong: {what}", why=self._where(), facts=facts)

    def _where(self) -> str:
        return "" if self.store is None else f"in: {head_text(self.store)}"

    def _integer(self, expr: Expr) -> int:
        """The value of an index or condition; loads in it are noted and read from the given arrays."""
        match expr:
            case Const(value):
                return int(value)
            case Var(name):
                return self.values[name]
            case Cast(arg):
                return self._integer(arg)
            case Op(name, args):
                return _compute(name, [self._integer(arg) for arg in args])
            case Load():
                index = self._note(expr)
                if index is None:
                    return 0
                assert expr.buffer in self.arrays, f"the values of '{expr.buffer}' decide which elements are touched"
                return int(self.arrays[expr.buffer][index])
            case _:
                assert_never(expr)


def _compute(name: str, args: list[int]) -> int:
    """An operation of index arithmetic, of conditions, or on integer data in them, on exact integers."""
    match name, args:
        case "select", [condition, then, otherwise]:
            return then if condition else otherwise
        case "floordiv", [a, b]:
            return a // b if b else 0
        case "mod", [a, b]:
            return a % b if b else 0
        case "not", [a]:
            return 1 - a
        case _:
            return int(BUILTINS[name].numpy(*args))


def uses_data_subscripts(program: LoopProgram) -> bool:
    """Whether values of arrays decide which elements are touched, so that enumerating needs the arrays."""
    return bool(deciding_buffers(program))


def deciding_buffers(program: LoopProgram) -> frozenset[str]:
    """The buffers whose values decide which elements are touched."""
    deciding: list[Expr] = []
    for statement in walk(program.body):
        match statement:
            case Store():
                deciding.extend(statement.indices)
                for node in walk_expr(statement.value):
                    if isinstance(node, Load):
                        deciding.extend(node.indices if node.mask is None else (*node.indices, node.mask))
            case If(condition=condition):
                deciding.append(condition)
            case For(lower=lower, upper=upper):
                deciding.extend((lower, upper))
            case _:
                pass
    return frozenset(node.buffer for expr in deciding for node in walk_expr(expr) if isinstance(node, Load))
