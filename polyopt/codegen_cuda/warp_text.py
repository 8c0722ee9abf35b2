"""Products of a warp as CUDA C++: fragments come from shared memory by `ldmatrix`, `mma` adds them up.

Lane l of an `ldmatrix` gives the address of row l % 8 of matrix l / 8; which rows, columns and steps of the tile these
are follows from the instruction's fragments and from the axis along which the copy lies. A copy that lies along the sum
is read as it is, another one transposed; of bytes, which `ldmatrix` takes in pairs, the pairs are then taken apart, and
the steps of a matrix are every fourth and the next. Turned operands of f32 come element by element, since `ldmatrix`
transposes 16 bits at a time, and all are then taken apart. But for bytes, neighboring lanes exchange a pair of columns
after the sum, where these could not be read in the order of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_cuda.alignment import first_lane
from polyopt.codegen_cuda.instructions import COLUMN_LANES, ROW_LANES, Instruction, instruction_of
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.shared_text import SharedPrinter
from polyopt.codegen_cuda.threads import comment, indented
from polyopt.dsl.ir import Op
from polyopt.dtypes import i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Expr, For, Load, Stmt, Store, index_var, integer, substitute, walk, walk_expr


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a warp's product.

    load:   its element
    step:   variable of the steps; thread: of a lane's first point along its side
    half:   variable of the half that every other lane is in; empty where there are none
    group, lane: loops over a lane's groups of points, and over its neighbors
    is_along: whether its copy is contiguous along the sum
    """

    load: Load
    step: str
    thread: str
    half: str
    group: For | None
    lane: For | None

    @property
    def is_along(self) -> bool:
        return any(node == index_var(self.step) for node in walk_expr(self.load.indices[-1]))

    @property
    def groups(self) -> int:
        return 1 if self.group is None else as_number(self.group.upper) or 1

    def in_step(self, var: str, step: Expr) -> Operand:
        """The operand in another step of the loop around."""
        indices = tuple(substitute(index, {var: step}) for index in self.load.indices)
        return replace(self, load=replace(self.load, indices=indices))

    def at(self, values: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The place of an element in the copy: of the first neighbor."""
        first = self.load.indices
        if self.lane is not None:
            first = tuple(first_lane(index, self.lane.var) for index in first)
        if self.half:
            first = tuple(first_lane(index, self.half) for index in first)
        return tuple(substitute(index, dict(values)) for index in first)


@dataclass(frozen=True, slots=True)
class Product:
    """What the instructions of a warp sum up. left: the operand along rows; right: along columns"""

    store: Store
    left: Operand
    right: Operand
    one: Instruction

    def in_step(self, var: str, step: Expr) -> Product:
        """The product in another step of the loop around."""
        return replace(self, left=self.left.in_step(var, step), right=self.right.in_step(var, step))


@dataclass(frozen=True, slots=True)
class Fragments:
    """The names of the registers of both operands' fragments, and of those for what a split leaves of them."""

    own: tuple[str, ...]
    rests: tuple[str, ...]

    def at(self, step: str) -> Fragments:
        """Those of one of several steps."""
        own, rests = (tuple(f"{name}[{step}]" for name in names) for names in (self.own, self.rests))
        return Fragments(own, rests)


class WarpPrinter(SharedPrinter):
    """Prints the loops that are instructions of a warp."""

    def _coordinates(self) -> list[str]:
        lines = super()._coordinates()
        self._has_exchange = any(isinstance(s, For) and s.kind == "exchange" for s in walk(self._body))
        if self._has_products:
            self._lane_name = self._unused("lane", "")
            self._shared.names.variables[self._lane_name] = self._lane_name
            self._x.ranges[self._lane_name] = integer(0), integer(31)
            lines.append(f"const int {self._lane_name} = threadIdx.x % 32;")
        return lines

    def _warp(self, loop: For) -> Iterator[str]:
        """One instruction per tile of the warp."""
        product = self._product(loop)
        names = self._fragments(product)
        yield from self._declared_fragments(names, product)
        yield from self._fetch(names, product)
        yield from self._multiply(product, _parts(names))

    def _warp_steps(self, steps: For, loop: For) -> Iterator[str]:
        """The instructions of several steps: the next one's fragments are fetched while a step is multiplied."""
        product = self._product(loop)
        count = (as_number(steps.upper) or 0) // steps.step
        if product.one.is_split or count < 2:  # parts of both steps would take too many registers
            yield from self._for(steps)
            yield from indented(self._warp(loop))
            yield "}"
            return
        names = self._fragments(product)
        yield from self._declared_fragments(names, product, "[2]")
        yield from self._fetch(names.at("0"), product.in_step(steps.var, integer(0)))
        yield from self._for(steps)
        var = self._var(steps)
        following: Expr = Op("add", (index_var(steps.var), integer(steps.step)), i64)
        ahead = self._fetch(names.at(f"({var} / {steps.step} + 1) % 2"), product.in_step(steps.var, following))
        body = [f"if ({self._x.text(following)} < {self._x.text(steps.upper)}) {{", *indented(ahead), "}"]
        body += self._multiply(product, _parts(names.at(f"{var} / {steps.step} % 2")))
        yield from indented(body)
        yield "}"

    def _fragments(self, product: Product) -> Fragments:
        own = [
            self._unused(f"{self._shared.names.arrays[side.load.buffer].removesuffix('_tile')}_own", "")
            for side in (product.left, product.right)
        ]
        rests = [self._unused(f"{name}_rest", "") for name in own] if product.one.is_split else []
        return Fragments(tuple(own), tuple(rests))

    def _declared_fragments(self, names: Fragments, product: Product, times: str = "") -> Iterator[str]:
        counts = product.left.groups * product.one.row_width // 2, product.right.groups
        for arrays in filter(None, (names.own, names.rests)):
            declared = (f"{name}{times}[{count}][4]" for name, count in zip(arrays, counts, strict=True))
            yield f"po_u32 {', '.join(declared)};"

    def _fetch(self, names: Fragments, product: Product) -> Iterator[str]:
        """The lines that fetch the fragments of a step."""
        one = product.one
        for number, (side, per) in enumerate(((product.left, 2 // one.row_width), (product.right, 1))):
            group = self._number(side, per)
            lines = self._fetched(f"{names.own[number]}[{group}]", side, one)
            if names.rests:
                lines.append(f"po_split_tf32({names.own[number]}[{group}], {names.rests[number]}[{group}]);")
            yield from self._over(side, per, lines)

    def _product(self, loop: For) -> Product:
        """What a loop multiplies; columns are the innermost loops."""
        nest: list[For] = []
        inner: Stmt = loop.body
        while isinstance(inner, For):
            nest.append(inner)
            inner = inner.body
        row, column, *halves = self._lane_loops()
        if not isinstance(inner, Store):
            raise ScheduleError("a warp's product has another form than an instruction's", why=loop.var)
        loads = [node for node in walk_expr(inner.value) if isinstance(node, Load)]
        loads.sort(key=lambda load: uses(load, nest[-1].var))
        operands = []
        places = (row, ""), (column, halves[0].var if halves else "")
        for load, (block, half) in zip(loads, places, strict=True):
            own = [s for s in nest if uses(load, s.var)]
            lane = own.pop() if own[-1].upper == integer(block.step) and block.step > 1 else None
            operands.append(Operand(load, loop.var, block.var, half, own[0] if own else None, lane))
        self._row_thread = row.var
        reducer = inner.reducer
        assert reducer is not None, "a product is summed up"
        one = instruction_of(loads[0].dtype, loads[1].dtype, reducer.dtype)
        if one is None or as_number(loop.upper) != one.steps:
            kinds = " and ".join(str(load.dtype) for load in loads)
            raise ScheduleError("no instruction multiplies a warp's operands", why=kinds)
        if bool(halves) == one.is_of_bytes or self._has_exchange != (bool(halves) and not operands[1].is_along):
            raise ScheduleError("a warp's lanes have other columns than an instruction gives them", why=str(one))
        return Product(inner, operands[0], operands[1], one)

    def _lane_loops(self) -> list[For]:
        """The loops that the lanes of a warp share: over rows, over columns, over the halves of a group of these."""
        blocks = [s for s in walk(self._body) if isinstance(s, For) and s.kind == "block" and s.chunk]
        for chunks in ([ROW_LANES, COLUMN_LANES], [ROW_LANES, COLUMN_LANES // 2, 2]):
            found = blocks[-len(chunks) :]
            if [loop.chunk for loop in found] == chunks:
                return found
        raise ScheduleError("a warp's lanes are not those of an instruction", why=", ".join(b.var for b in blocks))

    def _exchanged(self, loop: For, store: Store) -> Iterator[str]:
        """Registers that lanes q and q ^ 1 hold for each other."""
        first = self._x.element(store.buffer, tuple(first_lane(index, loop.var) for index in store.indices)).text
        yield f"po_exchange<{(as_number(loop.upper) or 0) // 2}>(&{first}, {self._lane_name});"

    # --- fragments --------------------------------------------------------------------------------------------------

    def _lane(self, *steps: tuple[int, int, int]) -> Expr:
        """A sum of parts of the lane's number: `lane / by % below * times` for each (by, below, times)."""
        total: Expr = integer(0)
        for by, below, times in steps:
            part = folded("floordiv", index_var(self._lane_name), integer(by))
            if by * below < 32:
                part = Op("mod", (part, integer(below)), i64)
            total = folded("add", total, folded("mul", part, integer(times)))
        return total

    def _left_place(self, left: Operand, one: Instruction) -> dict[str, Expr]:
        """Which row a lane points at: upper and lower rows of the first steps, then of the last."""
        if left.is_along and one.is_of_bytes:
            return {left.thread: self._lane((1, 8, 2), (8, 2, 1)), left.step: self._lane((16, 2, 16))}
        if left.is_along:
            return {left.thread: self._lane((1, 16, 1)), left.step: self._lane((16, 2, one.steps // 2))}
        if one.is_of_bytes:
            return {left.thread: integer(0), left.step: self._lane((16, 2, 16), (8, 2, 2), (2, 4, 4), (1, 2, 1))}
        return {left.thread: self._lane((8, 2, 8)), left.step: self._lane((16, 2, 8), (1, 8, 1))}

    def _right_place(self, right: Operand, one: Instruction) -> dict[str, Expr]:
        """The same for columns: matrices are the first and the last steps of one instruction, then of the next. Columns
        that come one by one come in the order of the results, four of each lane."""
        if right.is_along and one.is_of_bytes:
            return {right.thread: self._lane((1, 8, 2), (16, 2, 1)), right.step: self._lane((8, 2, 16))}
        if right.is_along:
            column = self._lane((2, 2, 8), (4, 2, 4), (16, 2, 2), (1, 2, 1))
            return {right.thread: column, right.step: self._lane((8, 2, one.steps // 2))}
        if one.is_of_bytes:
            return {right.thread: integer(0), right.step: self._lane((8, 2, 16), (16, 2, 2), (2, 4, 4), (1, 2, 1))}
        return {right.thread: self._lane((16, 2, 8)), right.step: self._lane((8, 2, 8), (1, 8, 1))}

    def _fetched(self, target: str, side: Operand, one: Instruction) -> list[str]:
        """The lines that fetch a fragment of an operand from shared memory."""
        is_left = side.thread == self._row_thread
        if one.is_split and not side.is_along:
            return [f"{target}[{n}] = po_bits({self._turned_element(side, n, is_left=is_left)});" for n in range(4)]
        turned = "" if side.is_along else "_t"
        place = self._left_place(side, one) if is_left else self._right_place(side, one)
        source = self._x.element(side.load.buffer, side.at(place)).text
        lines = [f"po_ldmatrix_x4{turned}({target}, &{source});"]
        if turned and one.is_of_bytes:
            pairs = ((0, 1), (2, 3)) if is_left else ((0, 2), (1, 3))
            lines += [f"po_unzip({target}[{even}], {target}[{odd}]);" for even, odd in pairs]
        return lines

    def _turned_element(self, side: Operand, register: int, *, is_left: bool) -> str:
        """What a lane has in a register of a fragment of f32: its own of the first or the last 8 points, at its step of
        the first or the last 4."""
        point, step = (register % 2, register // 2) if is_left else (register // 2, register % 2)
        place = {
            side.thread: folded("add", self._lane((4, 8, 1)), integer(point * ROW_LANES)),
            side.step: folded("add", self._lane((1, 4, 1)), integer(step * COLUMN_LANES)),
        }
        return self._x.element(side.load.buffer, side.at(place)).text

    def _multiply(self, product: Product, parts: Sequence[tuple[str, str]]) -> Iterator[str]:
        """The instructions, one for each pair of fragments: two for each group of columns. parts: names of fragments
        whose products are added up"""
        store, left, right, one = product.store, product.left, product.right, product.one
        assert right.lane is not None
        half = self._unused("half", "")
        self._x.ranges[half], self._shared.names.variables[half] = (integer(0), integer(1)), half
        width = 2 // one.row_width
        first: dict[str, Expr] = {} if left.lane is None else {left.lane.var: integer(0)}
        if one.is_of_bytes:
            assert left.lane is not None
            below: dict[str, Expr] = {left.lane.var: integer(1)}
            apart = 1
        else:
            assert left.group is not None
            below = {left.group.var: folded("add", index_var(left.group.var), integer(1))}
            apart = 2
        first[right.lane.var] = folded("mul", index_var(half), integer(apart))
        upper, lower = (
            self._x.element(store.buffer, tuple(substitute(i, {**first, **here}) for i in store.indices)).text
            for here in ({}, below)
        )
        step = "<2>" if apart == 1 else ""
        row, column = self._number(left, width), self._number(right, 1)
        calls = [f"{one.helper}{step}(&{upper}, &{lower}, {a}[{row}], &{b}[{column}][{half} * 2]);" for a, b in parts]
        loop = f"for (int {half} = 0; {half} < 2; ++{half})"
        inner = [f"{loop} {calls[0]}"] if len(calls) == 1 else [f"{loop} {{", *indented(calls), "}"]
        yield from self._over(left, width, list(self._over(right, 1, ["#pragma unroll", *inner])))

    def _over(self, side: Operand, step: int, lines: Sequence[str]) -> Iterator[str]:
        """Lines for every `step` groups of points."""
        if side.group is None:
            yield from lines
            return
        var = self._var(side.group)
        more = f"++{var}" if step == 1 else f"{var} += {step}"
        yield "#pragma unroll"
        yield f"for (int {var} = 0; {var} < {side.groups}; {more}) {{{comment(side.group)}"
        yield from indented(lines)
        yield "}"

    def _number(self, side: Operand, step: int) -> str:
        """The number of a fragment."""
        if side.group is None:
            return "0"
        var = self._var(side.group)
        return var if step == 1 else f"{var} / {step}"


def _parts(names: Fragments) -> list[tuple[str, str]]:
    """The fragments to multiply, the smallest first: a rest with a rest is left out."""
    own, rests = names.own, names.rests
    pairs = [(rests[0], own[1]), (own[0], rests[1])] if rests else []
    return [*pairs, (own[0], own[1])]


def uses(load: Load, var: str) -> bool:
    """Whether an element's place depends on a variable."""
    return any(node == index_var(var) for index in load.indices for node in walk_expr(index))
