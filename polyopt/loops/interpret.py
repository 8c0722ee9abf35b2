"""Executes a loop program on NumPy arrays, one scalar at a time: the meaning of the loop program.

Every access is bounds-checked, workspace and local buffers start poisoned, a read of an element that was never
written is an error, and the iterations of parallel and vector loops can be shuffled. Integers of dtype i64 are
Python integers that wrap; all other values are NumPy scalars of their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from polyopt.classes import dataclass
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import DType, converted, i64
from polyopt.errors import BoundsError, LegalityError, ShapeError
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
)
from polyopt.loops.text import head_text

Array = NDArray[Any]
Environment = dict[str, Any]
Value = Callable[[Environment], Any]
Action = Callable[[Environment], None]

_POISON = 0xAA


def interpret(
    program: LoopProgram,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    seed: int | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> None:
    """Runs the program; results are written into the arrays of its `written` arguments.

    arrays:    one array per argument, of its dtype and shape, with any strides
    sizes:     values of the program's i64 parameters
    seed:      shuffles the iterations of every loop whose iterations may run at once; None: in order
    functions: NumPy forms that replace those of `dsl.builtins` where the result is a float, by operation name

    Raises `BoundsError` where a run-time check fails (after the run, as a kernel does), and `LegalityError` for an
    access outside a buffer or a read of an element that was never written: then the program itself is wrong.
    """
    environment: Environment = dict(sizes or {})
    machine = _Machine(program, None if seed is None else Random(seed), dict(functions or {}))
    for buffer in program.arguments:
        machine.bind(buffer, arrays[buffer.name], environment, is_result=buffer.name in program.written)
    for buffer in program.workspace:
        machine.allocate(buffer, environment)
    with np.errstate(all="ignore"):
        machine.action(program.body)(environment)
    machine.hand_back()
    if machine.error is not None:
        raise machine.error


@dataclass(slots=True, eq=False)
class _Storage:
    """An array in use; written: bool per element, None where all elements have a value from the start."""

    array: Array
    written: Array | None


class _Machine:
    """Turns statements and expressions into Python functions of the values of the loop variables."""

    def __init__(
        self, program: LoopProgram, random: Random | None, functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.error: BoundsError | None = None
        self._program = program
        self._random = random
        self._functions = functions
        self._storage: dict[str, _Storage] = {}
        self._copies: list[tuple[Array, Array]] = []
        self._statement = ""

    # --- buffers ----------------------------------------------------------------------------------------------

    def bind(self, buffer: Buffer, array: Array, environment: Environment, *, is_result: bool) -> None:
        """Uses the caller's array. Raises `ShapeError` where it is not what the buffer says."""
        needed = self._values(buffer.callers_shape, environment)
        if array.shape != needed or array.dtype != buffer.dtype.numpy:
            raise ShapeError(
                f"'{buffer.name}' is {array.dtype}{list(array.shape)}, but {buffer.dtype}{list(needed)} is needed",
                facts={"argument": buffer.name, "shape": array.shape, "needed": needed},
            )
        shape = self._shape(buffer, environment)
        if shape != needed:
            joined = array.reshape(shape)
            if is_result and not np.may_share_memory(joined, array):
                self._copies.append((array, joined))
            array = joined
        self._storage[buffer.name] = _Storage(array, np.zeros(shape, bool) if is_result else None)

    def hand_back(self) -> None:
        """Gives the caller the results whose dimensions could not be joined where they lie."""
        for array, joined in self._copies:
            array[...] = joined.reshape(array.shape)

    def allocate(self, buffer: Buffer, environment: Environment) -> None:
        shape = self._shape(buffer, environment)
        self._storage[buffer.name] = _Storage(_poisoned(shape, buffer.dtype), np.zeros(shape, bool))

    def _shape(self, buffer: Buffer, environment: Environment) -> tuple[int, ...]:
        return self._values(buffer.shape, environment)

    def _values(self, extents: Sequence[Expr], environment: Environment) -> tuple[int, ...]:
        return tuple(int(self.value(extent)(environment)) for extent in extents)

    def _locate(self, buffer: str, index: tuple[int, ...], verb: str) -> _Storage:
        storage = self._storage[buffer]
        shape = storage.array.shape
        if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            raise self._fault(f"{verb} {buffer}{list(index)} outside its shape {shape}", buffer, index, "bounds")
        return storage

    def _fault(self, what: str, buffer: str, index: tuple[int, ...], rule: str) -> LegalityError:
        return LegalityError(
            f"the loop program of '{self._program.name}' {what}",
            why=f"in: {self._statement}",
            facts={"buffer": buffer, "index": index, "rule": rule},
        )

    def _indices(
        self, indices: Sequence[Expr], buffer: str, checks: Sequence[Check]
    ) -> Callable[[Environment], tuple[int, ...] | None]:
        """The index tuple, or None where a run-time check fails, which is recorded."""
        values = [self.value(index) for index in indices]
        checked = {check.dimension: check.site for check in checks}

        def evaluate(environment: Environment) -> tuple[int, ...] | None:
            index = tuple(int(value(environment)) for value in values)
            for dimension, site in checked.items():
                extent = self._storage[buffer].array.shape[dimension]
                if not 0 <= index[dimension] < extent:
                    self._record(site, index[dimension], extent)
                    return None
            return index

        return evaluate

    def _record(self, number: int, index: int, extent: int) -> None:
        if self.error is None:
            site = self._program.sites[number]
            self.error = BoundsError(
                f"index {index} is out of bounds for dimension {site.dimension} of '{site.array}', which has {extent}",
                where=site.span,
                why=f"a data subscript must be in [0, {extent}); negative ones do not count from the end",
                facts={"array": site.array, "dimension": site.dimension, "index": index, "extent": extent},
            )

    # --- expressions ------------------------------------------------------------------------------------------

    def value(self, expr: Expr) -> Value:
        """The function that evaluates an expression."""
        match expr:
            case Const(value, dtype):
                constant = int(value) if dtype == i64 else np.asarray(value).astype(dtype.numpy)[()]
                return lambda _: constant
            case Var(name):
                return lambda environment: environment[name]
            case Cast(arg, dtype):
                inner = self.value(arg)
                return lambda environment: _scalar(inner(environment), dtype)
            case Op(name, args, dtype):
                return self._operation(name, [self.value(arg) for arg in args], dtype)
            case Load():
                return self._load(expr)
            case _:
                assert_never(expr)

    def _operation(self, name: str, args: list[Value], dtype: DType) -> Value:
        if dtype.is_float and name in self._functions:
            form = self._functions[name]
        else:
            form = BUILTINS[name].numpy
            if name in _ON_INTEGERS:
                return _integer_first(_ON_INTEGERS[name], form, args, dtype)

        def apply(environment: Environment) -> Any:
            return _scalar(form(*[_strong(arg(environment)) for arg in args]), dtype)

        return apply

    def _load(self, load: Load) -> Value:
        index = self._indices(load.indices, load.buffer, load.checks)
        mask = None if load.mask is None else self.value(load.mask)
        nothing = 0 if load.dtype == i64 else np.zeros((), load.dtype.numpy)[()]

        def read(environment: Environment) -> Any:
            if mask is not None and not mask(environment):
                return nothing
            place = index(environment)
            return nothing if place is None else self._fetch(load.buffer, place, load.dtype)

        return read

    def _fetch(self, buffer: str, index: tuple[int, ...], dtype: DType) -> Any:
        storage = self._locate(buffer, index, "reads")
        if storage.written is not None and not storage.written[index]:
            raise self._fault(f"reads {buffer}{list(index)}, which was never written", buffer, index, "uninitialised")
        value = storage.array[index]
        return int(value) if dtype == i64 else value

    # --- statements -------------------------------------------------------------------------------------------

    def action(self, statement: Stmt) -> Action:
        """The function that executes a statement."""
        match statement:
            case Block(body):
                parts = [self.action(part) for part in body]
                return lambda environment: _run_all(parts, environment)
            case For():
                return self._loop(statement)
            case If(condition, then, otherwise):
                return self._choice(self.value(condition), then, otherwise)
            case Alloc(buffer, body):
                return self._scope(buffer, self.action(body))
            case Store():
                return self._store(statement)
            case _:
                assert_never(statement)

    def _loop(self, loop: For) -> Action:
        lower, upper, body = self.value(loop.lower), self.value(loop.upper), self.action(loop.body)
        shuffled = self._random if loop.kind in CONCURRENT else None

        def run(environment: Environment) -> None:
            iterations = list(range(lower(environment), upper(environment), loop.step))
            if shuffled is not None:
                shuffled.shuffle(iterations)
            for iteration in iterations:
                environment[loop.var] = iteration
                body(environment)
            environment.pop(loop.var, None)

        return run

    def _choice(self, condition: Value, then: Stmt, otherwise: Stmt | None) -> Action:
        yes, no = self.action(then), None if otherwise is None else self.action(otherwise)

        def run(environment: Environment) -> None:
            if condition(environment):
                yes(environment)
            elif no is not None:
                no(environment)

        return run

    def _scope(self, buffer: Buffer, body: Action) -> Action:
        def run(environment: Environment) -> None:
            self.allocate(buffer, environment)
            body(environment)
            del self._storage[buffer.name]

        return run

    def _store(self, store: Store) -> Action:
        index = self._indices(store.indices, store.buffer, store.checks)
        value = self.value(store.value)
        fold = None if store.reducer is None else self._combine(store.reducer)
        text = head_text(store)

        def run(environment: Environment) -> None:
            self._statement = text
            place = index(environment)
            if place is None:
                return
            stored = value(environment)
            storage = self._locate(store.buffer, place, "writes")
            if fold is not None:
                stored = fold(self._fetch(store.buffer, place, store.reducer.dtype), stored)  # type: ignore[union-attr]
            storage.array[place] = stored
            if storage.written is not None:
                storage.written[place] = True

        return run

    def _combine(self, reducer: Reducer) -> Callable[[Any, Any], Any]:
        if reducer.combine is not None:
            combined = self.value(reducer.combine)
            return lambda a, b: combined({"a": a, "b": b})
        name = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}[
            reducer.name
        ]
        together = self._operation(name, [lambda e: e["a"], lambda e: e["b"]], reducer.dtype)
        return lambda a, b: together({"a": a, "b": b})


def _run_all(parts: Sequence[Action], environment: Environment) -> None:
    for part in parts:
        part(environment)


def _poisoned(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array whose values are conspicuous: NaN, or bytes of 0xAA."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    if dtype.is_bool:
        return np.ones(shape, bool)
    pattern = np.frombuffer(bytes([_POISON]) * dtype.itemsize, dtype.numpy)
    return np.full(shape, pattern[0], dtype.numpy)


# --- scalars --------------------------------------------------------------------------------------------------


def _strong(value: Any) -> Any:
    """A Python integer as a NumPy one, so that NumPy's promotion takes its dtype seriously."""
    return np.int64(value) if type(value) is int else value


def _scalar(value: Any, dtype: DType) -> Any:
    """A value converted, as `po.cast` does it."""
    result = converted(np.asarray(_strong(value)), dtype)[()]
    return int(result) if dtype == i64 else result


def _wrapped(value: int) -> int:
    """The signed 64-bit integer with the same low bits."""
    return value if -(1 << 63) <= value < 1 << 63 else (value + (1 << 63)) % (1 << 64) - (1 << 63)


_COMBINES: Mapping[str, str] = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}
"""The operation of each named reducer."""

_ON_INTEGERS: Mapping[str, Callable[[int, int], Any]] = {
    "add": lambda a, b: _wrapped(a + b),
    "sub": lambda a, b: _wrapped(a - b),
    "mul": lambda a, b: _wrapped(a * b),
    "floordiv": lambda a, b: _wrapped(a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "minimum": min,
    "maximum": max,
    "lt": lambda a, b: np.bool_(a < b),
    "le": lambda a, b: np.bool_(a <= b),
    "gt": lambda a, b: np.bool_(a > b),
    "ge": lambda a, b: np.bool_(a >= b),
    "eq": lambda a, b: np.bool_(a == b),
    "ne": lambda a, b: np.bool_(a != b),
}
"""Operations on two i64 values, which are most of a loop program: index arithmetic."""


def _integer_first(
    exact: Callable[[int, int], Any], form: Callable[..., Any], args: list[Value], dtype: DType
) -> Value:
    left, right = args

    def apply(environment: Environment) -> Any:
        a, b = left(environment), right(environment)
        if type(a) is int and type(b) is int:
            return exact(a, b)
        return _scalar(form(_strong(a), _strong(b)), dtype)

    return apply
