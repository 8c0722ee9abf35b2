"""Which loops the blocks and threads of a GPU share.

Each outermost chain of coincident loops is one nest. Either every point of the chain is a thread's ("points"), or
every point is a block's and its threads share the loops inside, reductions among them ("rows"): what moves fewer
bytes when neighboring threads touch memory, with the threads that each way occupies, decides. Recurrences outside
run on the host, a launch per step, unless one block can hold all that runs at once: then it keeps the whole loop.
Sources: [PPCG13] for blocks and threads from tiles of coincident bands, [CUDA] for coalescing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import prod
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_cuda import kept
from polyopt.codegen_cuda.contractions import Products, Tiles
from polyopt.codegen_cuda.cost import SECTOR_BYTES, access_bytes, power_above, statement_bytes
from polyopt.codegen_cuda.plan import CudaMapping, CudaNest, Cut
from polyopt.dsl.affine import Affine, Atom, AxisRef, axes_of, axis, substitute
from polyopt.dsl.ir import DataIndex, Read
from polyopt.poly.roles import roles_of
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Leaf, Loop, Tree, children_of, loops, numbered, sequence, statements
from polyopt.poly.tree import Sequence as TreeSequence
from polyopt.target import LAUNCH_BYTES, WARP, GpuTarget
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents

POINT_THREADS = 256
"""Threads of a block of points: enough to hide latency, few enough that several blocks share a multiprocessor."""

ONE_BLOCK_POINTS = 1024
"""A recurrence whose steps have no more points than this stays in one block: a barrier costs a hundredth of a
launch."""


SQUARE = 32
"""Points along each side of a block's square of a transpose; twice as many of elements narrower than a word."""

COLUMN_WARPS = 32
"""Warps of a block that share sums along columns."""

EXCHANGE = 1.1
"""What the sums of warps cost that meet in shared memory, against a thread's own."""

ROW_VECTOR = 4
"""Points of a row that a thread has at least, where several warps share it: f32 that one access moves."""

CONTRACTION_POINTS = 1024
"""A contraction with fewer results than this is left to rows: its sums are long."""


def decide(scop: Scop, tree: Tree, target: GpuTarget, *, rows: bool = True, products: Products = "all") -> CudaMapping:
    """A plan for every nest of the fused tree; its loops have unique names.

    rows: whether threads may share loops inside a nest, and tiles of contractions
    products: which instructions of the tensor cores may be used
    """
    extents = Extents(scop)
    planner = _Planner(scop, extents, target, rows, Tiles(scop, extents, target, products))
    cut = tuple(planner.cuts(tree))
    return CudaMapping(tuple(planner.plans(separated(tree, cut))), cut)


@dataclass(frozen=True, slots=True)
class _Planner:
    scop: Scop
    extents: Extents
    target: GpuTarget
    has_rows: bool
    tiles: Tiles

    def plans(self, tree: Tree) -> Iterator[CudaNest]:
        match tree:
            case Leaf():
                return
            case TreeSequence(children):
                for child in children:
                    yield from self.plans(child)
            case Loop(coincident=True):
                yield self.nest(tree)[1]
            case Loop():
                whole = self.one_block(tree)
                if whole is not None:
                    yield whole
                else:
                    yield from self.plans(tree.body)
            case _:
                assert_never(tree)

    def cuts(self, tree: Tree) -> Iterator[Cut]:
        """The nests whose parts cost less as kernels of their own."""
        match tree:
            case Leaf():
                return
            case TreeSequence(children):
                for child in children:
                    yield from self.cuts(child)
            case Loop(coincident=True):
                costs: dict[Cut | None, float] = {None: self.nest(tree)[0]}
                for cut in (Cut(tree.name), Cut(tree.name, at_sums=True)):
                    costs[cut] = sum(self.nest(part)[0] for part in _parts(tree, [], at_sums=cut.at_sums))
                best = min(costs, key=costs.__getitem__)
                if best is not None:
                    yield best
            case Loop():
                if self.one_block(tree) is None:
                    yield from self.cuts(tree.body)
            case _:
                assert_never(tree)

    # --- nests ------------------------------------------------------------------------------------------------

    def nest(self, head: Loop) -> tuple[float, CudaNest]:
        """The cheaper of points and rows for a chain of coincident loops, and what it costs in bytes."""
        chain, body = chain_of(head)
        around, lane = self.count(chain), self.lane(chain)
        points = LAUNCH_BYTES + self.traffic([lane], statements(body)) / self.utilisation(around)
        shared = self.shared(body)
        if shared and not self.reuses(body, around):
            inside = self.most(shared)
            threads = self.row_threads(around, inside)
            moved = self.traffic(shared, statements(body)) - self.in_registers(chain, shared, statements(body), threads)
            rows = moved / self.utilisation(around * min(inside, threads))
            rows /= min(1.0, inside / WARP)
            columns = self.columns(head, chain, lane, body)
            if columns is not None:
                threads_busy = around * min(self.extent(shared[0]), COLUMN_WARPS)
                cost = LAUNCH_BYTES + self.traffic([lane], statements(body)) / self.utilisation(threads_busy)
                if EXCHANGE * cost < min(points, LAUNCH_BYTES + rows):
                    return cost, columns
            if LAUNCH_BYTES + rows < points:
                return LAUNCH_BYTES + rows, self.rows(head, chain, shared, threads)
        order = [*(loop for loop in chain if loop is not lane), lane]
        tiles = None
        if self.has_rows:
            tiles = self.tiles.nest(head, order, body)
        if tiles is None:
            tiles = self.turned(head, chain, lane, body)
        if tiles is not None:
            return points, tiles
        names = tuple(loop.name for loop in order)
        near = self.near(order, statements(body))
        reason = f"neighbors along {_base(lane.name)}"
        reason += "" if near is None else f", rows along {_base(near.name)} that read the same"
        return points, CudaNest(head.name, "points", names, self.tile(order, near), reason=reason)

    def reuses(self, body: Tree, around: int) -> bool:
        """Whether a contraction is at work with points enough: neighboring points share operands, rows would not."""
        heavy = [name for name in statements(body) if roles_of(self.scop.statement(name)).contraction]
        return bool(heavy) and around >= CONTRACTION_POINTS

    def turned(self, head: Loop, chain: Sequence[Loop], lane: Loop, body: Tree) -> CudaNest | None:
        """Squares of two loops where results are contiguous along one and operands along the other; None where there
        are none such."""
        if not self.has_rows or self.scop.sizes or any(True for _ in loops(body)):
            return None
        for along in (lane, *(loop for loop in chain if loop is not lane)):
            for across in reversed(chain):
                items = [] if across is along else self.turned_items(along, across, statements(body))
                if not items or min(self.extent(along), self.extent(across)) < SQUARE // 2:
                    continue
                side = SQUARE if min(items) >= 4 else 2 * SQUARE
                order = [*(loop for loop in chain if loop not in (along, across)), across, along]
                chunks = tuple(side if loop in (along, across) else 1 for loop in order)
                reason = f"operands contiguous along {_base(across.name)} come through shared memory"
                return CudaNest(head.name, "turned", tuple(loop.name for loop in order), chunks, reason=reason)
        return None

    def turned_items(self, along: Loop, across: Loop, names: Sequence[str]) -> list[int]:
        """Bytes of the elements of operands to be turned; none where results are not contiguous along `along`."""
        found: list[int] = []
        for name in names:
            statement = self.scop.statement(name)
            axes = axis_of(along.row(name)), axis_of(across.row(name))
            if None in axes:
                return []
            own = self.scop.array(statement.array).dtype
            if access_bytes(statement.subscripts, own, axes[0]) != own.itemsize:
                return []
            for access in statement.reads:
                dtype = self.scop.array(access.read.tensor).dtype
                costs = [access_bytes(access.read.subscripts, dtype, axis) for axis in axes]
                if costs == [SECTOR_BYTES, dtype.itemsize]:
                    found.append(dtype.itemsize)
        return found

    def rows(self, head: Loop, chain: Sequence[Loop], shared: Sequence[Loop], threads: int) -> CudaNest:
        """A warp or a block per point of the chain; several warps make a block."""
        warps = 1
        if threads == WARP:
            warps = min(POINT_THREADS // WARP, power_above(self.extent(chain[-1])))
        reason = f"a {'warp' if threads == WARP else 'block'} per row: threads along "
        reason += f"{', '.join(dict.fromkeys(_base(loop.name) for loop in shared))} move fewer bytes"
        names = tuple(loop.name for loop in chain)
        chunks = (*(1 for _ in chain[1:]), warps)
        return CudaNest(head.name, "rows", names, chunks, tuple(s.name for s in shared), threads, reason)

    def columns(self, head: Loop, chain: Sequence[Loop], lane: Loop, body: Tree) -> CudaNest | None:
        """Neighboring threads along `lane`, warps that share the one sum inside; None where there is no such sum."""
        children = children_of(body)
        sums = [child for child in children if not isinstance(child, Leaf)]
        if self.scop.sizes or len(sums) != 1 or not isinstance(sums[0], Loop) or self.extent(lane) < WARP:
            return None
        if not all(loop.reduction and self.may_share(loop) for loop in loops(sums[0])):
            return None
        if any(self.scop.statement(name).reducer is None for name in sums[0].statements):
            return None
        before = [name for child in children[: children.index(sums[0])] for name in statements(child)]
        own = {self.scop.statement(name).array for name in sums[0].statements}
        if any(self.scop.statement(name).array not in own for name in before):
            return None
        names = tuple(loop.name for loop in (*(loop for loop in chain if loop is not lane), lane))
        chunks = (*(1 for _ in chain[1:]), WARP)
        reason = f"neighbors along {_base(lane.name)}, warps share {_base(sums[0].name)}"
        return CudaNest(head.name, "columns", names, chunks, (sums[0].name,), COLUMN_WARPS, reason)

    def one_block(self, tree: Loop) -> CudaNest | None:
        """A recurrence or a reduction whose steps one block can hold."""
        inside = [chain_of(loop)[0] for loop in _outermost_coincident(tree)]
        if any(self.count(chain) > ONE_BLOCK_POINTS for chain in inside):
            return None
        shared = self.shared(tree)
        if not shared:
            return None
        threads = min(self.target.block_threads, power_above(max(self.most(shared), WARP)))
        names = tuple(loop.name for loop in shared)
        return CudaNest(tree.name, "one block", (), (), names, threads, "its threads meet at barriers")

    # --- loops that threads share -------------------------------------------------------------------------------

    def shared(self, tree: Tree) -> list[Loop]:
        """The loops inside a block whose iterations its threads share; empty where heavy work would be left to one."""
        found: list[Loop] = []
        return found if self.has_rows and self.collect(tree, found) else []

    def collect(self, tree: Tree, found: list[Loop]) -> bool:
        """Adds the loops of `tree`; whether no heavy loop is left out."""
        match tree:
            case Leaf():
                return True
            case TreeSequence(children):
                complete = [self.collect(child, found) for child in children]
                return all(complete)
            case Loop(coincident=False, reduction=False):
                return self.collect(tree.body, found)
            case Loop():
                candidates = [loop for loop in _same_kind(tree) if self.may_share(loop)]
                if not candidates:
                    return False
                found.append(min(candidates, key=lambda loop: self.share_cost(loop)))
                return True
            case _:
                assert_never(tree)

    def may_share(self, loop: Loop) -> bool:
        """Whether every sum over the loop goes to one element known before it."""
        if loop.coincident:
            return True
        inner = {axis for within in loops(loop) for _, row in within.rows for axis in axes_of(row)}
        for name in loop.statements:
            statement = self.scop.statement(name)
            if not statement.is_update:
                continue
            if statement.reducer is None or statement.reducer.name == "custom":
                return False
            if not all(isinstance(s, Affine) and not axes_of(s) & inner for s in statement.subscripts):
                return False
        return True

    def share_cost(self, loop: Loop) -> float:
        return self.traffic([loop], loop.statements) / min(1.0, self.extent(loop) / WARP)

    # --- figures ------------------------------------------------------------------------------------------------

    def lane(self, chain: Sequence[Loop]) -> Loop:
        """The loop along which neighboring threads move fewest bytes; an inner one of equals."""
        return min(reversed(chain), key=lambda loop: self.share_cost(loop))

    def traffic(self, lanes: Sequence[Loop], names: Sequence[str]) -> float:
        """Bytes of all instances of the statements; those in none of the loops count as spread out."""
        total = 0.0
        for name in names:
            own = next((loop for loop in lanes if name in loop.statements), None)
            axis = axis_of(own.row(name)) if own is not None else None
            total += self.extents.instances(name) * statement_bytes(self.scop, self.scop.statement(name), axis)
        return total

    def in_registers(self, chain: Sequence[Loop], shared: Sequence[Loop], names: Sequence[str], threads: int) -> float:
        """Bytes of what a row's threads read again, which stays in their registers (`kept`)."""
        written = {self.scop.statement(name).array for name in names}
        seen: set[tuple[str, tuple[Affine, ...]]] = set()
        total = 0.0
        for name in names:
            own = next((loop for loop in shared if name in loop.statements), None)
            if own is None:
                continue
            places = {axis_of(loop.row(name)): f"{n}" for n, loop in enumerate((own, *chain))}
            for read in (access.read for access in self.scop.statement(name).reads):
                dtype, element = self.scop.array(read.tensor).dtype, _element(read, places)
                size = -(-self.extent(own) // threads) * dtype.itemsize
                if element is None or read.tensor in written or size > kept.MOST_BYTES:
                    continue
                if element in seen:
                    total += self.extents.instances(name) * access_bytes(read.subscripts, dtype, axis_of(own.row(name)))
                seen.add(element)
        return total

    def utilisation(self, threads: int) -> float:
        """The share of the GPU that so many threads keep busy."""
        return min(1.0, threads / (self.target.threads // 2))

    def extent(self, loop: Loop) -> int:
        return max(self.extents.row(name, row) for name, row in loop.rows)

    def count(self, chain: Sequence[Loop]) -> int:
        return prod(self.extent(loop) for loop in chain)

    def most(self, shared: Sequence[Loop]) -> int:
        return max(self.extent(loop) for loop in shared)

    def row_threads(self, rows: int, inside: int) -> int:
        """Threads of a row: a warp for a short row where there are rows enough, or as many warps as keep the GPU busy
        with vectors of the row for each thread; else up to 1024."""
        wanted = power_above(max(inside, WARP))
        if wanted <= 1024 and rows >= 4 * self.target.sms:
            return max(WARP, min(wanted // ROW_VECTOR, power_above(self.target.threads // 2 // rows)))
        return min(wanted, 256 if rows >= self.target.sms else self.target.block_threads)

    def near(self, order: Sequence[Loop], names: Sequence[str]) -> Loop | None:
        """The innermost loop, of those around the last one, along which statements read an array at several distances:
        as a stencil's rows do."""
        for loop in reversed(order[:-1]):
            for name in names:
                own = axis_of(loop.row(name))
                rows: dict[tuple[str, tuple[Affine, ...]], tuple[int, ...]] = {}
                for read in (access.read for access in self.scop.statement(name).reads):
                    subscripts = [s for s in read.subscripts if isinstance(s, Affine) and own in axes_of(s)]
                    element = read.tensor, tuple(s - s.constant for s in subscripts)
                    distances = tuple(s.constant for s in subscripts)
                    if subscripts and rows.setdefault(element, distances) != distances:
                        return loop
        return None

    def tile(self, order: Sequence[Loop], near: Loop | None) -> tuple[int, ...]:
        """Points per block along each loop: powers of two, most along the last one, whose points are neighbors.

        near: a loop whose points read the same, for which a warp of them is left
        """
        left = POINT_THREADS
        while left > 2 * WARP and self.count(order) < left * self.target.sms:
            left //= 2
        chunks: dict[str, int] = {}
        first = [order[-1]] if near is None else [order[-1], near]
        for loop in (*first, *(loop for loop in reversed(order) if loop not in first)):
            most = WARP if near is not None and loop is order[-1] else left
            chunks[loop.name] = min(left, most, power_above(self.extent(loop)))
            left //= chunks[loop.name]
        return tuple(chunks[loop.name] for loop in order)


def _element(read: Read, places: Mapping[str | None, str]) -> tuple[str, tuple[Affine, ...]] | None:
    """What a read reads, its axes named by their loops' places; None where data says."""

    def placed(atom: Atom) -> Affine | None:
        return axis(places[atom.name]) if isinstance(atom, AxisRef) and atom.name in places else None

    if any(isinstance(subscript, DataIndex) for subscript in read.subscripts):
        return None
    return read.tensor, tuple(substitute(s, placed) for s in read.subscripts if isinstance(s, Affine))


def chain_of(head: Loop) -> tuple[list[Loop], Tree]:
    """The coincident loops nested perfectly from `head` on, and what is inside them."""
    chain = [head]
    while isinstance(chain[-1].body, Loop) and chain[-1].body.coincident:
        chain.append(chain[-1].body)
    return chain, chain[-1].body


def _same_kind(head: Loop) -> list[Loop]:
    """The loops nested perfectly from `head` on that are all coincident, or all reductions: they may change places."""
    found = [head]
    while isinstance(found[-1].body, Loop) and (found[-1].body.coincident, found[-1].body.reduction) == (
        head.coincident,
        head.reduction,
    ):
        found.append(found[-1].body)
    return found


def _outermost_coincident(tree: Tree) -> Iterator[Loop]:
    match tree:
        case Loop(coincident=True):
            yield tree
        case Loop():
            yield from _outermost_coincident(tree.body)
        case TreeSequence(children):
            for child in children:
                yield from _outermost_coincident(child)
        case Leaf():
            return


def _base(name: str) -> str:
    return name.partition("#")[0]


# --- apply ------------------------------------------------------------------------------------------------------


def apply(tree: Tree, mapping: CudaMapping) -> Tree:
    """The tree with its loops marked, and moved and copied as the plan says. Coincident loops alone move outwards,
    or reductions that are nested perfectly; a nest is cut only inside loops that carry no dependence."""
    return _mapped(separated(tree, mapping.cut), mapping)


def separated(tree: Tree, cut: Sequence[Cut]) -> Tree:
    """The tree with some nests cut at their sequences; loops are numbered anew."""
    if not cut:
        return tree
    cuts = {one.head: one for one in cut}

    def visit(node: Tree) -> Tree:
        match node:
            case Leaf():
                return node
            case TreeSequence(children):
                return sequence([visit(child) for child in children])
            case Loop(name=name):
                if name not in cuts:
                    return replace(node, body=visit(node.body))
                return sequence(list(_parts(node, [], at_sums=cuts[name].at_sums)))
            case _:
                assert_never(node)

    return numbered(_plain(visit(tree)))


def _plain(tree: Tree) -> Tree:
    """The tree without numbers in its loops' names."""
    match tree:
        case Leaf():
            return tree
        case TreeSequence(children):
            return TreeSequence(tuple(_plain(child) for child in children))
        case Loop(name=name):
            return replace(tree, name=_base(name), body=_plain(tree.body))
        case _:
            assert_never(tree)


def _parts(tree: Tree, chain: Sequence[Loop], *, at_sums: bool) -> list[Loop]:
    """One nest per coincident loop in the sequences inside coincident loops, with copies of the loops outside; what
    stands between two such loops stays together.

    at_sums: whether that is cut into one nest per sum
    """
    if isinstance(tree, Loop) and tree.coincident:
        return _parts(tree.body, [*chain, tree], at_sums=at_sums)
    children = children_of(tree)
    parts: list[Loop] = []
    for is_nest, group in groupby(children, lambda child: isinstance(child, Loop) and child.coincident):
        together = list(group)
        if is_nest:
            parts += [part for child in together for part in _parts(child, chain, at_sums=at_sums)]
        else:
            pieces = _around_sums(together) if at_sums else [together]
            parts += [_inside(chain, sequence(list(piece))) for piece in pieces]
    return parts


def _around_sums(children: Sequence[Tree]) -> list[Sequence[Tree]]:
    """The children in one piece per sum: what stands right before it, where it starts, and what follows it."""
    sums = [number for number, child in enumerate(children) if isinstance(child, Loop)]
    starts = [number - 1 if isinstance(children[number - 1], Leaf) else number for number in sums[1:]]
    return [children[start:end] for start, end in pairwise((0, *starts, len(children)))]


def _inside(chain: Sequence[Loop], tree: Tree) -> Loop:
    """A copy of the loops of a chain around a part of what is in them."""
    inside = statements(tree)
    for loop in reversed(chain):
        rows = tuple((name, row) for name, row in loop.rows if name in inside)
        tree = replace(loop, rows=rows, body=tree)
    assert isinstance(tree, Loop), "a nest has loops around it"
    return tree


def _mapped(tree: Tree, mapping: CudaMapping) -> Tree:
    match tree:
        case Leaf():
            return tree
        case TreeSequence(children):
            return TreeSequence(tuple(_mapped(child, mapping) for child in children))
        case Loop(name=name):
            nest = mapping.of(name)
            if nest is None:
                return replace(tree, body=_mapped(tree.body, mapping))
            chain: list[Loop] = []
            body: Tree = tree
            while isinstance(body, Loop) and body.name in nest.grid:
                chain.append(body)
                body = body.body
            chunks = dict(zip(nest.grid, nest.chunks, strict=True))
            body = _share(body, nest) if nest.shared else body
            for loop in sorted(chain, key=lambda loop: nest.grid.index(loop.name), reverse=True):
                body = replace(loop, body=body, kind="grid", chunk=chunks[loop.name])
            return body
        case _:
            assert_never(tree)


def _share(tree: Tree, nest: CudaNest) -> Tree:
    """The tree with the plan's loops outermost of their own nests and shared by threads."""
    match tree:
        case Leaf():
            return tree
        case TreeSequence(children):
            return TreeSequence(tuple(_share(child, nest) for child in children))
        case Loop(coincident=False, reduction=False):
            return replace(tree, body=_share(tree.body, nest))
        case Loop():
            family = _same_kind(tree)
            chosen = next((loop for loop in family if loop.name in nest.shared), None)
            if chosen is None:
                return tree
            body = family[-1].body
            for loop in reversed([loop for loop in family if loop is not chosen]):
                body = replace(loop, body=body)
            return replace(chosen, body=body, kind="block", chunk=nest.threads)
        case _:
            assert_never(tree)
