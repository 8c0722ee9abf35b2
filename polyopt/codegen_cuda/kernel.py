"""One kernel as CUDA C++: grid loops become block indices, block loops are dealt out to threads.

Outside block loops all threads of a block walk through the statements together: loops and branches are the same for
all, values that a block keeps for itself are in registers of every thread or in shared memory, and one thread alone
stores elsewhere. A block loop gives its iterations to the threads in turn; what it adds to one element is summed up
by each thread and combined at its end. Inside block loops a thread is by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import assert_never

from polyopt.codegen_c.c_expressions import Text
from polyopt.codegen_c.c_helpers import stored_type, value_type
from polyopt.codegen_cuda.alignment import VECTOR_BYTES, note
from polyopt.codegen_cuda.barriers import Touch, conflicts, in_any_iteration, touches, values_apart
from polyopt.codegen_cuda.group_text import GroupPrinter
from polyopt.codegen_cuda.intervals import Interval, as_number, folded
from polyopt.codegen_cuda.kept import kept, turns_of
from polyopt.codegen_cuda.launch import pointer
from polyopt.codegen_cuda.reductions import Reductions, neutral_text
from polyopt.codegen_cuda.shapes import (
    always_runs,
    count,
    extents_of,
    index_vars,
    is_inside_block,
    is_replicable,
    outside_sums,
    pinned,
    without_tile,
)
from polyopt.codegen_cuda.source import RECORD, CudaKernel
from polyopt.codegen_cuda.threads import Hoisted, Names, comment, indented
from polyopt.dsl.ir import Const, Op, Reducer, Var
from polyopt.dtypes import bool_
from polyopt.errors import ScheduleError
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    stores_of,
    substatements,
    walk,
    walk_expr,
)
from polyopt.target import WARP


class KernelPrinter(GroupPrinter):
    """Prints one kernel.

    given:  what divides sizes whenever it runs; most_shared: bytes of shared memory that a block may have
    around: where variables of the host's loops lie
    """

    def __init__(
        self,
        name: str,
        statement: Stmt,
        shared: Names,
        reductions: Reductions,
        given: Mapping[str, int],
        most_shared: int,
        around: Mapping[str, Interval],
    ) -> None:
        super().__init__(shared, reductions, statement)
        self._x.ranges.update(around)
        self._most_shared = most_shared
        self._known.update(given)
        self._name = name
        self._private: set[str] = set()
        self._pending: list[Touch] = []
        self._registers = 0
        self._in_loop = 0
        self._lane_vars = {loop.var for loop in walk(self._body) if isinstance(loop, For) and loop.kind == "vector"}

    def kernel(self) -> tuple[CudaKernel, str]:
        """How to launch the kernel, and its text."""
        pointers = self._pointers()
        values = self._values()
        self._ranges()
        self._index = "int" if self._is_narrow() else "int64_t"
        grid, head = self._blocks()
        coordinates = self._coordinates()
        self._kept = kept(self._body)
        body = list(self._uniform(self._body, 0))
        written = {s.buffer for s in walk(self._body) if isinstance(s, Store)}
        alone = self._group(0) == 1
        parameters = [
            pointer(self._shared, b, is_written=b in written, is_alone=alone or b not in written)
            for b in pointers
            if b != RECORD
        ]
        parameters += [f"int64_t *{RECORD}"] if RECORD in pointers else []
        parameters += [f"int64_t {self._shared.names.variables[value]}" for value in values]
        lines = [
            f"PO_KERNEL void __launch_bounds__({self.threads}) {self._name}({', '.join(parameters)})",
            "{",
            *indented([*self._shared_lines(), *coordinates, *head, *self._kept_lines(), *body]),
            "}",
            f"PO_ENTRY({self._name})",
        ]
        block = (*reversed(self._dims), 1, 1, 1)[:3] if len(self._dims) <= 3 else (self.threads, 1, 1)
        kernel = CudaKernel(
            self._name,
            grid,
            (block[0], block[1], block[2]),
            self._dynamic_bytes,
            (*pointers, *values),
            len(pointers),
        )
        return kernel, "\n".join(lines) + "\n"

    def _kept_lines(self) -> Iterator[str]:
        """The registers of vectors that threads read again."""
        for slot in dict.fromkeys(self._kept.values()):
            if slot.name:
                count = f"[{slot.turns}]" if slot.turns > 1 else ""
                yield f"{self._kind(slot.buffer, slot.width)} {slot.name}{count};"

    # --- what threads do together ---------------------------------------------------------------------------------

    def _uniform(self, statement: Stmt, depth: int) -> Iterator[str]:
        if self._group(depth) == 1:
            yield from self._thread(statement)
            return
        match statement:
            case Block(body):
                for inner in body:
                    yield from self._uniform(inner, depth)
            case For(kind="block"):
                yield from self._phase(statement, depth)
            case For():
                yield from self._uniform_loop(statement, depth)
            case If(condition, then, otherwise):
                yield f"if ({self._x.text(condition)}) {{"
                before = list(self._pending)
                yield from indented(self._uniform(then, depth))
                after = list(self._pending)
                if otherwise is not None:
                    self._pending = before
                    yield "} else {"
                    yield from indented(self._uniform(otherwise, depth))
                self._pending = [*before, *after, *self._pending]
                yield "}"
            case Alloc(buffer, body):
                yield from self._alloc(buffer, body, depth)
            case Store():
                yield from self._leader_store(statement, depth)
            case _:
                assert_never(statement)

    def _uniform_loop(self, loop: For, depth: int) -> Iterator[str]:
        apart = values_apart([loop, *(inner for inner in walk(loop.body) if isinstance(inner, For))])
        body_touches = in_any_iteration(self._touches(loop.body, depth), apart)
        if conflicts(self._pending, body_touches):
            yield from self._barrier(depth)
        before = list(self._pending)
        yield from self._for(loop)
        self._in_loop += 1
        self._depth += 1
        lines = list(self._uniform(loop.body, depth))
        if conflicts(body_touches, body_touches):
            lines += self._barrier(depth)
        self._in_loop -= 1
        self._depth -= 1
        self._pending = in_any_iteration(self._pending, dict.fromkeys(apart, 0))
        extent = as_number(folded("sub", loop.upper, loop.lower))
        if extent is None or extent <= 0:  # the barriers inside are none where the loop has no iteration
            self._pending = [*before, *self._pending]
        yield from indented(lines)
        yield "}"

    def _alloc(self, buffer: Buffer, body: Stmt, depth: int) -> Iterator[str]:
        name = self._shared.names.arrays[buffer.name]
        count = prod(extents_of(buffer))
        if is_replicable(buffer, body):
            self._private.add(buffer.name)
            yield from self._declared(buffer, count, self._uniform(body, depth))
            return
        groups = self.threads // self._group(depth)
        item = buffer.dtype.itemsize
        apart = max(count, 1)
        if groups > 1:  # every group's own starts at a multiple of a vector, as the whole does
            apart = -(-apart * item // VECTOR_BYTES) * VECTOR_BYTES // item
        self._declare_shared(stored_type(buffer.dtype), name, apart * groups, item)
        if groups > 1:
            group = self._group_number(depth)

            def place(indices: tuple[Expr, ...]) -> Text:
                return self._x.plain_element(buffer.name, indices, f"({group}) * {apart}")

            self._x.place[buffer.name] = place
        yield from self._uniform(body, depth)

    def _group_number(self, depth: int) -> str:
        text = self._coordinate(0)
        for inner in range(1, depth):
            text = f"({text}) * {self._dims[inner]} + {self._coordinate(inner)}"
        return text

    def _leader_store(self, store: Store, depth: int) -> Iterator[str]:
        """A store outside block loops: by every thread to its own copy, or by one thread for all."""
        if store.buffer in self._private:
            found = list(touches(store, (), self._private))
            yield from self._before(found, depth)
            yield from self._store(store)
            return
        found = list(touches(store, (), self._private, leader=True))
        yield from self._before(found, depth)
        yield f"if ({self._thread_in_group(depth)} == 0) {{"
        yield from indented(self._store(store))
        yield "}"

    def _before(self, found: list[Touch], depth: int) -> Iterator[str]:
        """The barrier that what follows needs, if any; notes what it touches."""
        if conflicts(self._pending, found):
            yield from self._barrier(depth)
        self._pending += found

    def _barrier(self, depth: int) -> list[str]:
        self._pending = []
        group = self._group(depth)
        if group == self.threads:
            return ["__syncthreads();"]
        if group == WARP:
            return ["__syncwarp();"]
        raise ScheduleError("threads of a part of a block cannot wait for one another", why=f"{group} threads")

    def _touches(self, statement: Stmt, depth: int, around: Collection[str] = ()) -> Iterator[Touch]:
        """What a group's threads touch in a statement that they walk through together.

        around: buffers allocated around the statement of which every thread has its own
        """
        private = {*self._private, *around} | {
            s.buffer.name
            for s in walk(statement)
            if isinstance(s, Alloc) and (is_replicable(s.buffer, s.body) or is_inside_block(statement, s))
        }
        match statement:
            case For(kind="block"):
                nest, body, _ = self._nest(statement, depth)
                hoisted = {id(s) for s in self._hoistable(nest, body)}
                for store in walk(body):
                    if isinstance(store, Store):
                        if id(store) in hoisted:
                            if store.buffer not in private:
                                yield Touch(store.buffer, True, ("leader",))
                            for expr in (store.value, *store.indices):
                                for load in walk_expr(expr):
                                    if isinstance(load, Load) and load.buffer not in private:
                                        yield Touch(load.buffer, False, None)
                        else:
                            yield from touches(store, nest, private, lanes=self._lane_vars)
                    if isinstance(store, If):
                        test = replace(store, then=Block(()), otherwise=None)
                        yield from touches(test, nest, private, lanes=self._lane_vars)
            case Block() | For() | Alloc() | If():
                if isinstance(statement, If):
                    yield from touches(replace(statement, then=Block(()), otherwise=None), (), private)
                for inner in substatements(statement):
                    for touch in self._touches(inner, depth, private):
                        if touch.buffer not in private:
                            yield touch
            case Store():
                leader = statement.buffer not in private
                yield from touches(statement, (), private, leader=leader)
            case _:
                assert_never(statement)

    # --- block loops --------------------------------------------------------------------------------------------

    def _nest(self, loop: For, depth: int) -> tuple[list[For], Stmt, int]:
        """The block loops nested perfectly from here on, what is inside, and the depth there."""
        nest: list[For] = []
        statement: Stmt = loop
        while isinstance(statement, For) and statement.kind == "block":
            nest.append(statement)
            statement = statement.body
        nest = nest[: outside_sums(nest, statement)]
        return nest, nest[-1].body, depth + len(nest)

    def _phase(self, loop: For, depth: int) -> Iterator[str]:
        nest, body, inside = self._nest(loop, depth)
        yield from self._before(list(self._touches(loop, depth)), depth)
        hoisted = []
        for store in self._hoistable(nest, body):
            assert store.reducer is not None
            register = self._fresh_register(store)
            one = Hoisted(store, store.reducer, register)
            hoisted.append(one)
            self._hoisted[id(store)] = one
            if store.buffer not in self._private and self._when_any(nest, body, store)[1]:
                one.flag = f"{register}_any"
                yield f"bool {one.flag} = false;"
            kind = value_type(store.reducer.dtype)
            yield f"{kind} {register} = {neutral_text(store.reducer, self._x)};"
        yield from self._dealt(nest, body, depth, inside)
        for one in hoisted:
            yield from self._combine(one, depth, self._when_any(nest, body, one.store)[0])

    def _dealt(self, nest: Sequence[For], body: Stmt, depth: int, inside: int) -> Iterator[str]:
        """The iterations of the block loops that are a thread's."""
        if not nest:
            pending, self._pending = self._pending, []
            lines = list(self._uniform(body, inside))
            self._pending = [*pending, *self._pending]
            yield from lines
            return
        loop, rest = nest[0], nest[1:]
        note(self._known, loop)
        name, coordinate = self._var(loop), self._coordinate(depth)
        exact = as_number(folded("sub", loop.upper, loop.lower))
        most = as_number(count(loop, self._x.ranges))
        start, upper = self._start(loop, coordinate), self._x.compared(without_tile(loop))
        self._dealt_loop = id(loop)
        turns = turns_of(loop) if any(phase == id(loop) for phase, _ in self._kept) else None
        if turns is not None and turns > 1:
            turn, step = self._unused(f"{name}_turn", ""), loop.chunk * loop.step
            self._turn = turn
            yield "#pragma unroll"  # registers have numbers, not indices
            yield f"for (int {turn} = 0; {turn} < {turns}; ++{turn}) {{{comment(loop)}"
            self._depth += 1
            lines = [f"const {self._index} {name} = {start} + {turn} * {step};"]
            lines += [] if exact == turns * step else [f"if ({name} >= {upper}) break;"]
            yield from indented([*lines, *self._dealt(rest, body, depth + 1, inside)])
            self._depth -= 1
            yield "}"
        elif most is None or most > loop.chunk:
            step = loop.chunk * loop.step
            yield f"for ({self._index} {name} = {start}; {name} < {upper}; {name} += {step}) {{{comment(loop)}"
            self._depth += 1
            yield from indented(self._dealt(rest, body, depth + 1, inside))
            self._depth -= 1
            yield "}"
        elif loop.var in self._seen:  # another loop of the name stands before, in the same scope
            self._seen.discard(loop.var)
            yield "{"
            yield from indented(self._dealt(nest, body, depth, inside))
            yield "}"
        elif exact == loop.chunk * loop.step:
            self._seen.add(loop.var)
            yield f"const {self._index} {name} = {start};{comment(loop)}"
            yield from self._dealt(rest, body, depth + 1, inside)
        else:
            self._seen.add(loop.var)
            yield f"const {self._index} {name} = {start};{comment(loop)}"
            yield f"if ({name} < {upper}) {{"
            yield from indented(self._dealt(rest, body, depth + 1, inside))
            yield "}"

    def _hoistable(self, nest: Sequence[For], body: Stmt) -> list[Store]:
        """The reductions inside block loops whose element is the same for all iterations.

        Where an equality leaves one of these, its thread adds to the element in place, in its turn.
        """
        vars_ = {loop.var for loop in nest}
        inner = {loop.var for loop in walk(body) if isinstance(loop, For)}
        own = {s.buffer.name for s in walk(body) if isinstance(s, Alloc)}
        found = []
        for store in walk(body):
            if not isinstance(store, Store) or store.reducer is None or store.buffer in own:
                continue
            used = index_vars(store)
            if vars_ <= used | pinned(body, store, (vars_ | inner) - used):
                continue
            if used & (vars_ | inner) or any(isinstance(e, Load) for i in store.indices for e in walk_expr(i)):
                raise ScheduleError(
                    f"threads cannot share the sums of '{store.statement}'",
                    why="the element they add to changes with some of the loops that they share",
                )
            found.append(store)
        _refuse_reads(body, found)
        return found

    def _when_any(self, nest: Sequence[For], body: Stmt, store: Store) -> tuple[str, bool]:
        """When anything is added at all: a condition that is the same for all threads, and whether it must be found
        out while the loops run. An element to which nothing is added may not exist."""
        conditions = []
        for loop in nest:
            extent = as_number(folded("sub", loop.upper, loop.lower))
            if extent is None:
                conditions.append(f"{self._x.compared(loop.lower)} < {self._x.compared(loop.upper)}")
            elif extent <= 0:
                conditions.append("false")
        scanned = {loop.var for loop in nest}
        bounds = [node for loop in nest for e in (loop.lower, loop.upper) for node in walk_expr(e)]
        is_plain = not any(isinstance(node, Var) and node.name in scanned for node in bounds)
        return " && ".join(conditions), not (is_plain and always_runs(body, store))

    def _combine(self, one: Hoisted, depth: int, condition: str) -> Iterator[str]:
        """Every thread gets what all have; the element gets it once."""
        store, register = one.store, one.register
        yield from self._exchange(one.reducer, register, depth)
        if one.flag:
            yield from self._exchange(Reducer("any", bool_, Const(False, bool_)), one.flag, depth)
        if store.buffer in self._private:
            yield from self._store(store, register)
            return
        touch = Touch(store.buffer, True, ("leader",))
        yield from self._before([touch], depth)
        leader, condition = f"{self._thread_in_group(depth)} == 0", one.flag or condition
        yield f"if ({f'{leader} && {condition}' if condition else leader}) {{"
        yield from indented(self._store(store, register))
        yield "}"

    def _exchange(self, reducer: Reducer, register: str, depth: int) -> Iterator[str]:
        """Every thread of the group gets the combination of all registers."""
        group = self._group(depth)
        if (group == WARP and depth > 0) or group == WARP == self.threads:
            yield f"{register} = {self._reductions.over_warp(reducer, self._x)}({register});"
        elif group == self.threads and group % WARP == 0:
            parts = f"{register}_parts"
            self._declare_shared(value_type(reducer.dtype), parts, group // WARP, max(reducer.dtype.itemsize, 4))
            function = self._reductions.over_block(reducer, group, self._x)
            yield f"{register} = {function}({register}, {parts}, {self._thread_in_group(depth)});"
            self._pending = []
            if self._in_loop:
                yield "__syncthreads();"
        else:
            raise ScheduleError("a part of a block cannot combine sums", why=f"{group} threads")

    def _fresh_register(self, store: Store) -> str:
        """A name for a sum that neither an array nor a loop has, and neither do those that are made of it."""
        self._registers += 1
        name = f"{self._shared.names.arrays[store.buffer]}_sum_{self._registers}"
        return self._unused(name, "", "_any", "_parts")


def _refuse_reads(body: Stmt, summed: Sequence[Store]) -> None:
    """Raise `ScheduleError` where iterations may read what they add up together, which is put together after them."""
    for store in stores_of(body):
        nodes = [node for expr in (store.value, *store.indices) for node in walk_expr(expr)]
        for load in (node for node in nodes if isinstance(node, Load)):
            own = [one for one in summed if one.buffer == load.buffer]
            if any(not any(map(_are_apart, load.indices, one.indices)) for one in own):
                raise ScheduleError(
                    f"threads cannot share the sums of '{load.buffer}'",
                    why="the same iterations read it, and what they add is put together after them",
                )


def _are_apart(one: Expr, other: Expr) -> bool:
    """Whether two indices differ by a constant that is not 0: those of one iteration are never the same."""
    (left, before), (right, after) = _offset(one), _offset(other)
    return left == right and before != after


def _offset(index: Expr) -> tuple[Expr | None, int]:
    """An index as an expression, None for 0, and a constant added to it."""
    match index:
        case Const(value):
            return None, int(value)
        case Op("add", (left, Const(value))):
            return left, int(value)
        case Op("sub", (left, Const(value))):
            return left, -int(value)
        case _:
            return index, 0
