"""Statements of neighboring iterations as CUDA C++: vectors are loaded, lanes calculate, a vector is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyopt.codegen_c.c_expressions import Text, is_typed
from polyopt.codegen_c.c_helpers import stored_type
from polyopt.codegen_cuda.alignment import first_lane, is_vector
from polyopt.codegen_cuda.halos import Halo, halos
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.kept import Kept, Slot
from polyopt.codegen_cuda.reductions import Reductions
from polyopt.codegen_cuda.shapes import replaced
from polyopt.codegen_cuda.threads import Names, ThreadPrinter
from polyopt.dsl.ir import Var
from polyopt.loops.ir import Buffer, Expr, For, Load, Store, index_var, integer, walk_expr

ASYNCHRONOUS_BYTES = (4, 8, 16)
"""Sizes of copies from global to shared memory that run on their own."""


class VectorPrinter(ThreadPrinter):
    """Prints loops over lanes. Accesses whose lanes are not proved to be one vector stay accesses of each lane.

    _flying: buffers in shared memory that copies from global memory fill on their own
    _kept:   vectors that stay in registers; _dealt_loop, _turn: which loop that threads share is printed, and its turn
    """

    def __init__(self, shared: Names, reductions: Reductions) -> None:
        names = Names(shared.names.copy(), dict(shared.buffers), shared.parameters, shared.sizes)
        super().__init__(names, reductions)
        self._vectors = 1
        self._flying: set[str] = set()
        self._kept: Kept = {}
        self._dealt_loop = 0
        self._turn = "0"

    def _lanes(self, loop: For, store: Store) -> Iterator[str]:
        lane, width = loop.var, as_number(loop.upper) or 1
        found: dict[Load, Expr] = {}
        beside = self._beside(store, loop)
        rows = {halo: self._row(halo) for halo in dict.fromkeys(halo for halo, _ in beside.values())}
        for halo, row in rows.items():
            yield from self._filled(halo, row, width)

        def in_vector(load: Load) -> Expr | None:
            if load in beside:
                halo, place = beside[load]
                number = folded("add", index_var(lane), integer(place - halo.first))
                return Load(rows[halo].name, (number,), load.dtype)
            if not self._is_memory(load.buffer, load.indices, loop) or not _is_same(load, lane):
                return None
            if load not in found:
                slot = self._kept.get((self._dealt_loop, load))
                found[load] = Load(self._vector(load.buffer, width, slot), (index_var(lane),), load.dtype)
            return found[load]

        value = replaced(store.value, in_vector)
        indices = tuple(replaced(index, in_vector) for index in store.indices)
        changed = replace(store, value=value, indices=indices)
        hoisted = self._hoisted.get(id(store))
        is_stored = hoisted is None and not store.checks and self._is_memory(store.buffer, store.indices, loop)
        is_copy = store.reducer is None and len(found) == 1 and value in found.values() and not store.checks
        if is_copy and hoisted is None and (is_stored or self._is_row(store, loop)):
            (load,) = found
            if store.buffer in self._flying and (copied := self._copied(store, load, lane, width)):
                yield copied
                return
            moved, lines = self._taken(load, lane, width)
            yield from lines
            if is_stored:
                yield f"po_store<{width}>(&{self._first(store.buffer, store.indices, lane)}, {moved});"
            else:
                yield f"po_unpack(&{self._first(store.buffer, store.indices, lane)}, {moved});"
            return
        for load, vector in found.items():
            assert isinstance(vector, Load)
            taken, lines = self._taken(load, lane, width)
            yield from lines
            if (self._dealt_loop, load) not in self._kept:
                yield f"const {self._kind(load.buffer, width)} {vector.buffer} = {taken};"
        if not is_stored:
            if hoisted is not None:
                self._hoisted[id(changed)] = replace(hoisted, store=changed)
            yield from super()._lanes(loop, changed)
            self._hoisted.pop(id(changed), None)
            return
        target, kind = self._vector(store.buffer, width), self._kind(store.buffer, width)
        first = self._first(store.buffer, store.indices, lane)
        yield f"{kind} {target};" if store.reducer is None else f"{kind} {target} = po_load<{width}>(&{first});"
        yield from super()._lanes(loop, replace(changed, buffer=target, indices=(index_var(lane),)))
        yield f"po_store<{width}>(&{first}, {target});"

    def _beside(self, store: Store, loop: For) -> dict[Load, tuple[Halo, int]]:
        """The loads of a statement that share a row with a halo."""
        nodes = (node for expr in (store.value, *store.indices) for node in walk_expr(expr))
        loads = (node for node in nodes if isinstance(node, Load) and node.buffer not in self._own)
        typed = [load for load in loads if is_typed(self._shared.buffers[load.buffer]) and _is_same(load, loop.var)]
        return halos(dict.fromkeys(typed), loop.var, as_number(loop.upper) or 1, self._shared.buffers, self._known)

    def _row(self, halo: Halo) -> Buffer:
        """Registers for a row with a halo."""
        name = self._named(f"{self._shared.names.arrays[halo.start.buffer]}_row")
        row = Buffer(name, halo.start.dtype, (integer(halo.last - halo.first),), "local")
        self._shared.buffers[name] = row
        self._own.add(name)
        return row

    def _filled(self, halo: Halo, row: Buffer, width: int) -> Iterator[str]:
        """The lines that load a row with a halo."""
        yield f"{stored_type(row.dtype)} {row.name}[{halo.last - halo.first}];"
        for number, size in halo.pieces(width):
            load, place = halo.element(number), number - halo.first
            if size > 1:
                yield f"po_unpack(&{row.name}[{place}], {self._loaded(load, '', size)});"
                continue
            text, guard = self._x.element(load.buffer, load.indices).text, self._x.guard(load.buffer, (), load.mask, ())
            yield f"{row.name}[{place}] = {text if guard is None else f'{guard.within(0)} ? {text} : 0'};"

    def _store(self, store: Store, register: str | None = None) -> Iterator[str]:
        if store.buffer in self._flying and isinstance(store.value, Load):
            copied = self._copied(store, store.value, "", 1)
            if copied:
                yield copied
                return
        yield from super()._store(store, register)

    def _copied(self, store: Store, load: Load, lane: str, width: int) -> str:
        """A copy to shared memory that runs on its own; nothing where the machine has none of that size."""
        bytes_ = width * load.dtype.itemsize
        if bytes_ not in ASYNCHRONOUS_BYTES or load.checks or store.checks:
            return ""
        if not is_typed(self._shared.buffers[load.buffer]):
            return ""  # its elements may start at any byte
        target, source = (self._first(access.buffer, access.indices, lane) for access in (store, load))
        guard = self._x.guard(load.buffer, load.indices, load.mask, ())
        if guard is None:
            return f"po_cp_async{bytes_}(&{target}, &{source});"
        return f"po_cp_async{bytes_}_zfill(&{target}, &{source}, {guard.text});"

    def _is_memory(self, buffer: str, indices: tuple[Expr, ...], loop: For) -> bool:
        """Whether the lanes' elements are one vector in memory."""
        found, width = self._shared.buffers[buffer], as_number(loop.upper) or 1
        if (
            not indices
            or buffer in self._own
            or not is_typed(found)
            or any(isinstance(e, Load) for e in walk_expr(indices[-1]))
        ):
            return False
        return is_vector(found, indices, loop.var, width, self._known)

    def _is_row(self, store: Store, loop: For) -> bool:
        """Whether the lanes' elements are registers one after the other."""
        if store.buffer not in self._own or len(store.indices) < 1:
            return False
        return store.indices[-1] == index_var(loop.var)

    def _kind(self, buffer: str, width: int) -> str:
        return f"po_vec<{stored_type(self._shared.buffers[buffer].dtype)}, {width}>"

    def _taken(self, load: Load, lane: str, width: int) -> tuple[str, list[str]]:
        """A vector, and the line that loads it where it is kept and not there yet."""
        slot = self._kept.get((self._dealt_loop, load))
        if slot is None:
            return self._loaded(load, lane, width), []
        place = slot.at(self._turn)
        if slot.is_loaded:
            return place, []
        slot.is_loaded = True
        return place, [f"{place} = {self._loaded(load, lane, width)};"]

    def _vector(self, buffer: str, width: int, slot: Slot | None = None) -> str:
        """A new vector of a buffer's elements, or one that is kept."""
        name = self._named(f"{self._shared.names.arrays[buffer]}_v{width}")
        dtype = self._shared.buffers[buffer].dtype
        self._shared.buffers[name] = Buffer(name, dtype, (integer(width),), "local")
        self._own.add(name)
        place = name
        if slot is not None:
            slot.name = slot.name or self._unused(f"{name}_kept", "")
            place = slot.at(self._turn)
        self._x.place[name] = lambda indices: Text(f"{place}.v[{self._x.text(indices[0])}]")
        return name

    def _named(self, base: str) -> str:
        """A name for registers that nothing has."""
        name = base
        while name in self._shared.names or name in self._shared.buffers:
            self._vectors += 1
            name = f"{base}_{self._vectors}"
        self._shared.names.arrays[name] = name
        return name

    def _loaded(self, load: Load, lane: str, width: int) -> str:
        """The load of a vector; zeros where it must not be read."""
        text = f"po_load<{width}>(&{self._first(load.buffer, load.indices, lane)})"
        guard = self._x.guard(load.buffer, load.indices, load.mask, load.checks)
        if guard is None:
            return text
        return f"{guard.within(0)} ? {text} : {self._kind(load.buffer, width)}{{}}"

    def _first(self, buffer: str, indices: tuple[Expr, ...], lane: str) -> str:
        """The element of the first lane."""
        return self._x.element(buffer, tuple(first_lane(index, lane) for index in indices)).text


def _is_same(load: Load, lane: str) -> bool:
    """Whether what guards a load is the same for all lanes."""
    guards = [*([] if load.mask is None else [load.mask]), *(load.indices[check.dimension] for check in load.checks)]
    return not any(isinstance(node, Var) and node.name == lane for e in guards for node in walk_expr(e))
