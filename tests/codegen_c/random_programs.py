"""Random loop programs on small integers, for comparing what the emitters make with the interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import DType, bool_, f32, f64, i8, i32, i64, u16
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Check,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Site,
    Stmt,
    Store,
    index_var,
    integer,
)

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Axis:
    name: str
    extent: int
    tile: int  # 0: not tiled
    is_reduced: bool


@dataclass
class Case:
    program: LoopProgram
    arrays: Arrays
    sizes: dict[str, int]


def op(name: str, *args: Expr, dtype: DType = i64) -> Op[Expr]:
    return Op(name, args, dtype)


class Maker:
    """Makes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.arrays: Arrays = {}
        self.buffers: list[Buffer] = []
        self.sizes: dict[str, int] = {}
        self.dtype = self.random.choice([f32, f32, f64, i32, i8, i64, u16])
        self.count = 0

    def case(self) -> Case:
        r = self.random
        outputs = [self.axis(f"i{n}", is_reduced=False) for n in range(r.randint(1, 2))]
        reduced = [self.axis(f"k{n}", is_reduced=True) for n in range(r.choice([0, 1, 1, 2]))]
        is_scatter = bool(reduced) and r.random() < 0.2
        outputs = outputs[:1] if is_scatter else outputs
        value = self.value([*outputs, *reduced], depth=r.randint(1, 3))
        body = self.scatter(outputs[0], reduced, value) if is_scatter else self.nest(outputs, reduced, value)
        buffers = tuple(b for b in self.buffers if b.name != "y") + tuple(b for b in self.buffers if b.name == "y")
        sites = (Site("x", 0, None),) * 4
        program = LoopProgram("random", buffers, (), tuple(self.sizes), ("y",), body, sites)
        return Case(program, {b.name: self.arrays[b.name] for b in buffers}, self.sizes)

    def axis(self, name: str, *, is_reduced: bool) -> Axis:
        extent = self.random.choice([0, 1, 2, 3, 5, 7, 8, 16, 17, 33, 40])
        return Axis(name, extent, self.random.choice([0, 0, 2, 3, 4, 16, 32]), is_reduced)

    # --- values --------------------------------------------------------------------------------------------

    def value(self, axes: list[Axis], depth: int) -> Expr:
        r = self.random
        if depth == 0 or r.random() < 0.2:
            return self.leaf(axes)
        choice = r.random()
        if choice < 0.75:
            name = r.choice(["add", "sub", "mul", "minimum", "maximum"])
            return op(name, self.value(axes, depth - 1), self.value(axes, depth - 1), dtype=self.dtype)
        if choice < 0.9:
            condition = op(r.choice(["lt", "ge"]), self.leaf(axes), self.leaf(axes), dtype=bool_)
            return op("select", condition, self.leaf(axes), self.value(axes, depth - 1), dtype=self.dtype)
        return op("select", self.condition(axes), self.leaf(axes), self.value(axes, depth - 1), dtype=self.dtype)

    def condition(self, axes: list[Axis]) -> Op[Expr]:
        left, right = self.index(axes)[0], self.index(axes)[0]
        return op(self.random.choice(["lt", "le", "eq", "gt"]), left, right, dtype=bool_)

    def leaf(self, axes: list[Axis]) -> Expr:
        r = self.random
        if r.random() < 0.15:
            return Const(r.randint(0, 3), self.dtype)
        if r.random() < 0.1:
            return Cast(self.index(axes)[0], self.dtype)
        return self.load(axes)

    def index(self, axes: list[Axis]) -> tuple[Expr, int]:
        """A subscript that is never negative, and its exclusive bound."""
        r = self.random
        expr: Expr = integer(r.choice([0, 0, 0, 1, 2]))
        bound = int(expr.value) + 1  # type: ignore[union-attr]
        for axis in r.sample(axes, r.randint(0, min(2, len(axes)))):
            variable: Expr = index_var(axis.name)
            last = max(0, axis.extent - 1)
            kind = r.random()
            if kind < 0.1:
                variable, last = op("floordiv", variable, integer(3)), last // 3
            elif kind < 0.2:
                variable, last = op("mod", variable, integer(4)), min(last, 3)
            elif kind < 0.3:
                variable = op("sub", integer(last), variable)
            factor = r.choice([1, 1, 1, 2])
            term = variable if factor == 1 else op("mul", variable, integer(factor))
            expr, bound = op("add", expr, term), bound + last * factor
        return expr, bound

    def load(self, axes: list[Axis]) -> Load:
        r = self.random
        indices, shape = [], []
        for _ in range(r.randint(0, 2)):
            expr, bound = self.index(axes)
            indices.append(expr)
            shape.append(bound)
        checks: tuple[Check, ...] = ()
        if r.random() < 0.15:
            table = Load(
                self.input((shape[0] if shape else 4,), i32, high=6), (indices[0] if indices else integer(1),), i32
            )
            indices, shape = [Cast(table, i64), *indices[1:]], [6, *shape[1:]]
            checks = (Check(0, r.randint(0, 3)),)
        mask = self.condition(axes) if r.random() < 0.2 else None
        return Load(self.input(tuple(shape), self.dtype), tuple(indices), self.dtype, mask, checks)

    def input(self, shape: tuple[int, ...], dtype: DType, high: int = 4) -> str:
        r = self.random
        name = f"x{self.count}"
        self.count += 1
        values = np.random.default_rng(r.randint(0, 1 << 30)).integers(0, high, shape).astype(dtype.numpy)
        array = np.asarray(self.strided(values))
        strides = None if array.flags.c_contiguous and r.random() < 0.5 else tuple(map(integer, array.strides))
        self.arrays[name] = array
        self.buffers.append(Buffer(name, dtype, tuple(map(integer, array.shape)), "argument", strides))
        return name

    def strided(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The same values with other strides."""
        layout = self.random.choice(["c", "c", "fortran", "reversed", "wide", "odd"])
        if layout == "fortran" and values.ndim:
            return np.asfortranarray(values)
        if layout == "reversed" and values.ndim:
            return np.ascontiguousarray(values[..., ::-1])[..., ::-1]
        if layout == "wide" and values.ndim:
            wide = np.repeat(values, 3, axis=-1)
            return wide[..., ::3]
        if layout == "odd" and values.ndim:
            records = np.zeros(values.shape, np.dtype([("pad", np.int8), ("value", values.dtype)]))
            records["value"] = values
            return records["value"]
        return np.array(values, order="C")

    # --- loops ---------------------------------------------------------------------------------------------

    def nest(self, outputs: list[Axis], reduced: list[Axis], value: Expr) -> Stmt:
        r = self.random
        target, shape = self.target(outputs)
        self.add_output(shape)
        if not reduced:
            return self.loops(outputs, Store("S", (), "y", target, value))
        reducer = self.reducer()
        assert reducer.neutral is not None
        init = Store("S_init", (), "y", target, reducer.neutral)
        update = Store("S", (), "y", target, value, reducer)
        form = r.random()
        if form < 0.3:
            return Block((self.loops(outputs, init), self.loops([*outputs, *reduced], update)))
        if form < 0.6:
            return self.loops(outputs, Block((init, self.loops(reduced, update, inner=True))))
        return self.through_local(outputs, reduced, target, value, reducer)

    def add_output(self, shape: tuple[int, ...]) -> None:
        output = np.zeros(shape, self.dtype.numpy)
        strided = self.strided(output) if self.random.random() < 0.5 else output
        self.arrays["y"] = strided
        strides = tuple(map(integer, strided.strides))
        self.buffers.append(Buffer("y", self.dtype, tuple(map(integer, shape)), "argument", strides))

    def through_local(
        self, outputs: list[Axis], reduced: list[Axis], target: tuple[Expr, ...], value: Expr, reducer: Reducer
    ) -> Stmt:
        """Accumulates in a local scalar, perhaps under a condition."""
        assert reducer.neutral is not None
        acc = Buffer("acc", self.dtype, (), "local")
        update: Stmt = Store("S", (), "acc", (), value, reducer)
        if self.random.random() < 0.3:
            update = If(self.condition([*outputs, *reduced]), update)
        block = Block(
            (
                Store("S_init", (), "acc", (), reducer.neutral),
                self.loops(reduced, update, inner=True),
                Store("S_copy", (), "y", target, Load("acc", (), self.dtype)),
            )
        )
        return self.loops(outputs, Alloc(acc, block))

    def scatter(self, output: Axis, reduced: list[Axis], value: Expr) -> Stmt:
        """Accumulates into rows, or elements of rows, that data choose."""
        self.add_output((6, max(1, output.extent)))
        row = Axis("r", 6, 0, is_reduced=False)
        column = index_var(output.name)
        axis = reduced[0]
        table = Load(self.input((max(1, axis.extent),), i32, high=6), (index_var(axis.name),), i32)
        chosen: Expr = Cast(table, i64)
        reducer = self.reducer()
        assert reducer.neutral is not None
        init = Store("S_init", (), "y", (index_var("r"), column), reducer.neutral)
        update = Store("S", (), "y", (chosen, column), value, reducer, (Check(0, 0),))
        return Block((self.loops([row, output], init), self.loops([output, *reduced], update, inner=True)))

    def reducer(self) -> Reducer:
        name: Any = self.random.choice(["sum", "sum", "max", "min", "custom"])
        if name == "custom":
            a, b = Var("a", self.dtype), Var("b", self.dtype)
            return Reducer("custom", self.dtype, Const(1, self.dtype), op("add", a, b, dtype=self.dtype))
        return Reducer(name, self.dtype, Const(0, self.dtype))

    def target(self, outputs: list[Axis]) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
        indices: list[Expr] = []
        shape: list[int] = []
        for axis in self.random.sample(outputs, len(outputs)):
            offset, factor = self.random.choice([0, 0, 1]), self.random.choice([1, 1, 2])
            scaled = op("mul", index_var(axis.name), integer(factor)) if factor > 1 else index_var(axis.name)
            indices.append(op("add", scaled, integer(offset)) if offset else scaled)
            shape.append(max(0, axis.extent - 1) * factor + offset + 1)
        return tuple(indices), tuple(shape)

    def loops(self, axes: list[Axis], body: Stmt, *, inner: bool = False) -> Stmt:
        """A nest over the axes: tile loops outside, point loops in any order inside."""
        r = self.random
        points = r.sample(axes, len(axes))
        statement = body
        for depth, axis in enumerate(reversed(points)):
            statement = self.point_loop(axis, statement, is_innermost=depth == 0 and not _has_loops(body))
        tiled = [axis for axis in axes if axis.tile]
        for depth, axis in enumerate(reversed(tiled)):
            is_outermost = depth == len(tiled) - 1 and not axis.is_reduced and not inner
            kind: Any = "parallel" if is_outermost and r.random() < 0.5 else "serial"
            upper = self.extent(axis)
            statement = For(
                f"{axis.name}_t", integer(0), upper, statement, axis.tile, kind, axis.name, r.choice([1, 3])
            )
        return statement

    def point_loop(self, axis: Axis, body: Stmt, *, is_innermost: bool) -> Stmt:
        r = self.random
        kinds = ["serial", "unrolled"] + (["vector"] * 4 if is_innermost else [])
        kind: Any = r.choice(kinds)
        if not axis.tile:
            step = 1
            return For(axis.name, integer(0), self.extent(axis), body, step, kind, axis.name)
        start = index_var(f"{axis.name}_t")
        stop: Expr = op("add", start, integer(axis.tile))
        if axis.extent % axis.tile or r.random() < 0.3:
            stop = op("minimum", stop, self.extent(axis))
        return For(axis.name, start, stop, body, 1, kind, axis.name)

    def extent(self, axis: Axis) -> Expr:
        if self.random.random() < 0.3:
            name = f"N_{axis.name}"
            self.sizes[name] = axis.extent
            return index_var(name)
        return integer(axis.extent)


def _has_loops(statement: Stmt) -> bool:
    from polyopt.loops.ir import walk

    return any(isinstance(inner, For) for inner in walk(statement))


def random_case(seed: int) -> Case:
    return Maker(seed).case()
