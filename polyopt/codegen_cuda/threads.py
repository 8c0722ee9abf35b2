"""What one thread of a kernel does, as CUDA C++: plain loops, branches and stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import prod
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_c.c_expressions import Text, cast, from_stored, is_typed, to_stored
from polyopt.codegen_c.c_helpers import helper_name, stored_type
from polyopt.codegen_c.identifiers import Identifiers
from polyopt.codegen_cuda.alignment import note
from polyopt.codegen_cuda.expressions import CudaExpressions
from polyopt.codegen_cuda.reductions import Reductions
from polyopt.codegen_cuda.shapes import extents_of, is_filled_together
from polyopt.dsl.ir import Reducer
from polyopt.errors import ScheduleError
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Stmt,
    Store,
)

INDENT = "    "
_UPDATE = {"sum": "+=", "prod": "*="}


@dataclass(frozen=True, slots=True)
class Names:
    """What a program's kernels share.

    buffers: by name; of those that each thread has, of one name in several places, the one whose body is printed
    """

    names: Identifiers
    buffers: dict[str, Buffer]
    parameters: tuple[str, ...]
    sizes: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Hoisted:
    """A reduction that each thread does by itself first.

    register: its running value; flag: whether anything was added, where that is found out as the loops run
    """

    store: Store
    reducer: Reducer
    register: str
    flag: str = ""


class ThreadPrinter:
    """Prints the statements of one thread.

    _own: buffers of each thread; _known: what divides the variables of the loops around;
    _depth: how many loops of the thread are around
    """

    def __init__(self, shared: Names, reductions: Reductions) -> None:
        self._shared = shared
        self._reductions = reductions
        self._x = CudaExpressions(shared.names, shared.buffers)
        self._index = "int64_t"
        self._hoisted: dict[int, Hoisted] = {}
        self._seen: set[str] = set()
        self._own: set[str] = set()
        self._known: dict[str, int] = {}
        self._depth = 0

    def _thread(self, statement: Stmt) -> Iterator[str]:
        match statement:
            case Block(body):
                for is_shared, group in groupby(body, _is_shared):
                    if is_shared:
                        yield from self._together([inner for inner in group if isinstance(inner, For)])
                        continue
                    for inner in group:
                        yield from self._thread(inner)
            case For(kind="block"):
                yield from self._together([statement])
            case For(kind="pipeline"):
                yield from self._pipeline(statement)
            case For(kind="warp"):
                yield from self._warp(statement)
            case For(kind="unrolled", body=For(kind="warp") as product):
                yield from self._warp_steps(statement, product)
            case For(kind="unrolled", body=For(kind="warpgroup") as product):
                yield from self._group_steps(statement, product)
            case For(kind="exchange", body=Store() as store):
                yield from self._exchanged(statement, store)
            case For(kind="vector", body=Store() as store):
                yield from self._lanes(statement, store)
            case For():
                yield from self._for(statement)
                self._depth += 1
                yield from indented(self._thread(statement.body))
                self._depth -= 1
                yield "}"
            case If(condition, then, otherwise):
                yield f"if ({self._x.text(condition)}) {{"
                yield from indented(self._thread(then))
                if otherwise is not None:
                    yield "} else {"
                    yield from indented(self._thread(otherwise))
                yield "}"
            case Alloc(buffer, body):
                count = prod(extents_of(buffer))
                if is_filled_together(buffer.name, body):
                    self._share(buffer)
                    yield from self._thread(body)
                else:
                    yield from self._declared(buffer, count, self._thread(body))
            case Store():
                one = self._hoisted.get(id(statement))
                yield from self._store(statement) if one is None else self._accumulate(one)
            case _:
                assert_never(statement)

    def _together(self, loops: Sequence[For]) -> Iterator[str]:
        """Loops that all threads of a block share while each is by itself."""
        raise ScheduleError("a block loop stands inside a thread", why=", ".join(loop.var for loop in loops))

    def _pipeline(self, loop: For) -> Iterator[str]:
        """A loop whose copies run ahead."""
        raise ScheduleError("copies run ahead inside a thread", why=loop.var)

    def _warp(self, loop: For) -> Iterator[str]:
        """A loop that is instructions of a warp."""
        raise ScheduleError("a warp's product stands inside a thread", why=loop.var)

    def _warp_steps(self, steps: For, loop: For) -> Iterator[str]:
        """A loop around one that is instructions of a warp."""
        raise ScheduleError("a warp's product stands inside a thread", why=loop.var)

    def _group_steps(self, steps: For, loop: For) -> Iterator[str]:
        """A loop around one that is instructions of four warps."""
        raise ScheduleError("a product of four warps stands inside a thread", why=loop.var)

    def _exchanged(self, loop: For, store: Store) -> Iterator[str]:
        """A loop over elements of registers that lanes of a warp exchange."""
        raise ScheduleError("lanes exchange registers inside a thread", why=loop.var)

    def _share(self, buffer: Buffer) -> None:
        """Declares a buffer in shared memory."""
        raise ScheduleError("a block's buffer stands inside a thread", why=buffer.name)

    def _lanes(self, loop: For, store: Store) -> Iterator[str]:
        """A statement of neighboring iterations."""
        yield from self._for(loop)
        yield from indented(self._thread(store))
        yield "}"

    def _for(self, loop: For) -> Iterator[str]:
        var = self._var(loop)
        note(self._known, loop)
        lower, upper = self._x.text(loop.lower), self._x.compared(loop.upper)
        step = f"++{var}" if loop.step == 1 else f"{var} += {loop.step}"
        if loop.kind in ("unrolled", "vector"):
            yield "#pragma unroll"
        yield f"for ({self._index} {var} = {lower}; {var} < {upper}; {step}) {{{comment(loop)}"

    def _declared(self, buffer: Buffer, count: int, body: Iterator[str]) -> Iterator[str]:
        """`body` with a buffer of each thread; one element is a scalar."""
        name, kind = self._shared.names.arrays[buffer.name], stored_type(buffer.dtype)
        self._own.add(buffer.name)
        self._shared.buffers[buffer.name] = buffer
        self._x.place.pop(buffer.name, None)
        declaration = f"{kind} {name};" if count == 1 else f"{kind} {name}[{max(count, 1)}];"
        if count == 1:
            self._x.place[buffer.name] = lambda _: Text(name)
        if buffer.name not in self._seen:
            self._seen.add(buffer.name)
            yield declaration
            yield from body
            return
        yield "{"
        yield from indented([declaration, *body])
        yield "}"

    def _store(self, store: Store, register: str | None = None) -> Iterator[str]:
        """The store of an instance; with `register`, of what a reduction has found."""
        guard = self._x.guard(store.buffer, store.indices, None, store.checks)
        line = self._assignment(store, register)
        yield line if guard is None else f"if ({guard.text}) {line}"

    def _assignment(self, store: Store, register: str | None) -> str:
        buffer = self._shared.buffers[store.buffer]
        element = self._x.element(store.buffer, store.indices)
        value = self._x.stored(store.value) if register is None else Text(register)
        reducer = store.reducer
        if reducer is not None:
            dtype = reducer.dtype
            if is_typed(buffer) and dtype == buffer.dtype and dtype.name in ("f32", "f64") and reducer.name in _UPDATE:
                return f"{element.text} {_UPDATE[reducer.name]} {value.text};"
            old = cast(from_stored(element, buffer.dtype), buffer.dtype, dtype)
            value = cast(self._combined(reducer, old, value), dtype, buffer.dtype)
        stored = to_stored(value, buffer.dtype)
        if is_typed(buffer):
            return f"{element.text} = {stored.text};"
        address = self._x.address(store.buffer, store.indices, "char *")
        return f"{helper_name('store', buffer.dtype)}({address}, {stored.text});"

    def _accumulate(self, one: Hoisted) -> Iterator[str]:
        store, reducer = one.store, one.reducer
        value = self._x.stored(store.value)
        guard = self._x.guard(store.buffer, store.indices, None, store.checks)
        if reducer.dtype.name in ("f32", "f64") and reducer.name in _UPDATE:
            line = f"{one.register} {_UPDATE[reducer.name]} {value.text};"
        else:
            line = f"{one.register} = {self._combined(reducer, Text(one.register), value).text};"
        if one.flag:
            yield f"{one.flag} = true;"
        yield line if guard is None else f"if ({guard.text}) {line}"

    def _combined(self, reducer: Reducer, old: Text, value: Text) -> Text:
        return self._x.combined(reducer, old, value, self._reductions.custom(self._x))

    def _unused(self, name: str, *endings: str) -> str:
        """The name, or a longer one, such that with none of the endings it names an array, a size or a loop."""
        while any(f"{name}{ending}" in self._shared.names for ending in endings):
            name += "_"
        return name

    def _var(self, loop: For) -> str:
        return self._shared.names.variables[loop.var]


def _is_shared(statement: Stmt) -> bool:
    return isinstance(statement, For) and statement.kind == "block"


def comment(loop: For) -> str:
    return f"  // {loop.axis}" if loop.axis and loop.axis != loop.var else ""


def indented(lines: Iterable[str]) -> list[str]:
    return [line if line.startswith("#") else INDENT + line for line in lines]
