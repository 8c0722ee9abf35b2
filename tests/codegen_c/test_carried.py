"""Recurrences: values that go from one iteration of a serial loop to a later one are in registers, and the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, bool_, f16, f32, f64, i8, i32
from polyopt.codegen_c import carried
from polyopt.dtypes import DType
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Block, If
from tests.codegen_c import kernels
from tests.codegen_c.kernels import index_var, load, loop, run, store

Array = np.ndarray[Any, Any]
Kept = set[tuple[tuple[str, int], ...]]
"""For each loop that keeps values: of which buffers, and for how many iterations."""

M, N = po.sizes("M N")
i, n = po.indices("i n")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found: Kept = set()
    start = carried.Recurrences.start

    def noted(self: Any, *args: Any) -> Any:
        chains = start(self, *args)
        if chains:
            found.add(tuple((chain.buffer, len(chain.slots) - 1) for chain in chains))
        return chains

    monkeypatch.setattr(carried.Recurrences, "start", noted)
    return found


def check(operator: po.Op, *arrays: Array) -> None:
    """The kernel has the bits of its loops, which the interpreter reads from memory; whole numbers also those of the
    reference, which knows no loops."""
    loops = operator.lower(*arrays).loops
    found = operator(*arrays)
    results = found if isinstance(found, tuple) else (found,)
    if not loops.sizes:
        inputs = [buffer.name for buffer in loops.arguments if buffer.name not in loops.written]
        given = dict(zip(inputs, map(np.asarray, arrays), strict=True))
        wanted = {name: np.zeros_like(result) for name, result in zip(loops.written, results, strict=True)}
        interpret(loops, {**given, **wanted})
        for result, other in zip(results, wanted.values(), strict=True):
            np.testing.assert_array_equal(result, other)
    if results[0].dtype.kind in "ib":
        np.testing.assert_array_equal(results[0], operator.reference(*arrays))


def numbers(count: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(count).integers(-3, 4, count).astype(dtype)


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_a_filter_keeps_its_last_value(kept: Kept, count: int) -> None:
    @po.op(numerics="strict")
    def smoothed(x: f32[N], a: f32):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = a * y[t] + x[t + 1]
        return y

    check(smoothed, numbers(count), np.array(0.5, np.float32))
    assert kept == ({(("y", 1),)} if count > 2 else set())  # one step is no loop


@pytest.mark.parametrize("count", [4, 5, 37])
def test_several_last_values_are_kept(kept: Kept, count: int) -> None:
    @po.op(numerics="strict")
    def third_order(x: f64[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 3)
        y[0], y[1], y[2] = x[0], x[1], x[2]
        y[t + 3] = x[t + 3] - y[t + 2] + 0.5 * y[t + 1] - 0.25 * y[t]
        return y

    check(third_order, numbers(count, "float64"))
    assert kept == ({(("y", 3),)} if count > 4 else set())


def test_a_value_from_further_back_alone_is_read_from_memory(kept: Kept) -> None:
    @po.op
    def apart(x: i32[N]):
        y, t, s = po.tensor("y"), po.index("t", 0, N - 2), po.index("s", extent=2)
        y[s] = x[s]
        y[t + 2] = x[t + 2] - y[t]
        return y

    check(apart, numbers(40, "int32"))
    assert not kept


def test_a_loop_that_runs_backwards(kept: Kept) -> None:
    @po.op
    def from_the_end(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[N - 1] = x[N - 1]
        y[N - 2 - t] = 2 * y[N - 1 - t] - x[N - 2 - t]
        return y

    check(from_the_end, numbers(20, "int32"))
    assert kept == {(("y", 1),)}


def test_values_that_depend_on_each_other(kept: Kept) -> None:
    @po.op(numerics="strict")
    def coupled(x: f32[N]):
        a, b, t = po.tensor("a"), po.tensor("b"), po.index("t", 0, N - 1)
        a[0], b[0] = x[0], -x[0]
        a[t + 1] = 0.5 * a[t] - b[t] + x[t + 1]
        b[t + 1] = a[t + 1] + 0.25 * b[t]
        return a, b

    check(coupled, numbers(33))
    assert kept == {(("a", 1), ("b", 1))}


def test_elements_of_one_array_in_turns(kept: Kept) -> None:
    """`y[2*t]` and `y[2*t + 1]` never meet, so that each chain has a register of its own; the first one reads both."""

    @po.op
    def in_turns(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N // 2 - 1)
        y[0], y[1] = x[0], x[1]
        y[2 * t + 2] = y[2 * t] + y[2 * t + 1] - x[2 * t + 2]
        y[2 * t + 3] = y[2 * t + 1] - x[2 * t + 3]
        return y

    check(in_turns, numbers(40, "int32"))
    assert kept == {(("y", 1), ("y", 1))}


def test_stores_that_may_meet_keep_nothing(kept: Kept) -> None:
    """Two diagonals: no subscript alone tells that what one stores is never what the other one reads."""

    @po.op
    def diagonals(x: i32[N]):
        d, t, row, column = (
            po.tensor("d"),
            po.index("t", 0, N - 1),
            po.index("row", extent=N),
            po.index("column", extent=N + 1),
        )
        d[0, 0], d[0, 1] = x[0], x[1]
        d[t + 1, t + 1] = d[t, t] + x[t]
        d[t + 1, t + 2] = d[t, t + 1] - x[t] + d[t + 1, t + 1]
        d[row, column] = po.when((column != row) & (column != row + 1), 0)
        return d

    check(diagonals, numbers(12, "int32"))
    assert not kept


def test_a_store_that_may_not_happen_hands_nothing_on() -> None:
    """Every other iteration leaves what was there, and each one reads what the one before has stored or left."""
    t, own = index_var("t"), {"dtype": i32}
    earlier = load("y", t, **own)
    stored = store("y", (kernels.op("add", t, 1),), kernels.op("add", earlier, load("x", t, **own), **own))
    sometimes = If(kernels.op("eq", kernels.op("mod", t, 2), 0, dtype=bool_), stored)
    body = loop("t", 8, Block((sometimes, store("z", (t,), earlier))))
    x, y, z = np.arange(1, 9, dtype=np.int32), np.arange(100, 109, dtype=np.int32), np.zeros(8, np.int32)
    run(body, {"x": x, "y": y, "z": z})
    np.testing.assert_array_equal(z, [100, 101, 102, 105, 104, 109, 106, 113])


def test_a_condition_decides_what_is_read(kept: Kept) -> None:
    """A read that happens now and then does not say that there is a last value; beside one that always happens it takes
    the register, and 0 where it does not happen."""

    @po.op
    def now_and_then(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = po.where(t % 3 == 0, y[t], 0) - x[t + 1]
        return y

    @po.op
    def both(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = y[t] + po.where(t % 3 == 0, y[t], 0) - x[t + 1]
        return y

    check(now_and_then, numbers(30, "int32"))
    assert not kept
    check(both, numbers(30, "int32"))
    assert kept == {(("y", 1),)}


def test_a_read_outside_the_array_is_no_last_value(kept: Kept) -> None:
    @po.op
    def padded(x: i32[N]):
        y = po.tensor("y", dtype=i32)
        y[n] = y.pad(7)[n - 1] - x[n]
        return y

    check(padded, numbers(30, "int32"))
    assert kept <= {(("y", 1),)}  # where the loop is cut at the edge


def test_registers_of_a_block_leave_a_last_value_alone(kept: Kept) -> None:
    """A sum in registers stands beside a chain; what follows, in lanes, reads the chain's last value."""

    @po.op(numerics="strict")
    def beside(x: f64[N], v: f64[M]):
        a, h, s, t = po.tensor("a"), po.tensor("h"), po.tensor("s"), po.index("t", 0, N - 1)
        a[0] = x[0]
        h[0, i] = v[i]
        s[t] = po.sum(h[t, i] * v[i], i)
        a[t + 1] = 0.5 * a[t] + s[t]
        long = po.exp(h[t, i] * 0) + po.exp(v[i] * 0) + po.sin(h[t, i] * 0) + po.cos(v[i] * 0)
        h[t + 1, i] = po.round(long) + a[t] - s[t]
        return a

    x, v = np.ones(5), np.arange(40.0) % 3 - 1
    np.testing.assert_array_equal(beside(x, v), beside.reference(x, v))
    assert kept == {(("a", 1),)}


def test_loops_that_grow_inside_store_no_last_value() -> None:
    """The first iteration of `t` would make one store of what later ones make many of."""
    t, k = index_var("t"), index_var("k")
    own = {"dtype": i32}
    value = kernels.op("add", load("y", k, kernels.op("sub", t, 1), **own), load("x", t, **own), **own)
    inner = loop("k", t, store("y", (k, t), value), kind="unrolled")
    body = loop("t", 8, inner, store("z", (t,), load("y", 0, kernels.op("sub", t, 1), **own)), lower=1)
    x, y, z = np.arange(1, 9, dtype=np.int32), np.zeros((8, 8), np.int32), np.zeros(8, np.int32)
    run(body, {"x": x, "y": y, "z": z})
    np.testing.assert_array_equal(z, [0, 0, 2, 5, 9, 14, 20, 27])


@pytest.mark.parametrize(("dtype", "name"), [(f16, "float16"), (i8, "int8"), (bool_, "bool")])
def test_narrow_values_are_what_memory_would_hold(kept: Kept, dtype: DType, name: str) -> None:
    @po.op(numerics="strict")
    def narrow(x: dtype[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = (y[t] ^ x[t + 1]) if dtype is bool_ else (y[t] * 3 + x[t + 1])
        return y

    values = np.random.default_rng(1).uniform(-1.3, 1.3, 60) if dtype is f16 else numbers(60)
    check(narrow, values.astype(name))
    assert kept == {(("y", 1),)}


def test_bfloat16_is_rounded_each_time(kept: Kept) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @po.op(numerics="strict")
    def decayed(x: bf16[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = y[t] * 0.9 + x[t + 1]
        return y

    check(decayed, np.random.default_rng(2).uniform(-1, 1, 60).astype(ml_dtypes.bfloat16))
    assert kept == {(("y", 1),)}


def test_into_its_own_input(kept: Kept) -> None:
    """In place, each element is read before it is overwritten, and what was stored is still in a register."""

    @po.op
    def running(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = y[t] - 2 * x[t + 1]
        return y

    x = numbers(64, "int32")
    wanted = running.reference(x)
    running(x, out=x)
    np.testing.assert_array_equal(x, wanted)
    assert kept == {(("y", 1),)}


def test_a_sum_onto_a_recurrence(kept: Kept) -> None:
    """Two stores of one element in each iteration: the last one counts."""

    @po.op
    def added(x: i32[N]):
        y, t = po.tensor("y", dtype=i32), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = x[t + 1]
        y[t + 1] += 3 * y[t]
        return y

    check(added, numbers(30, "int32"))
    assert kept == {(("y", 1),)}


def test_numbers_of_iterations_that_only_a_call_knows(kept: Kept) -> None:
    @po.op(dynamic=True)
    def grown(x: i32[N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[0] = x[0]
        y[t + 1] = 5 * y[t] + x[t + 1]
        return y

    for count in (1, 2, 17, 100):
        check(grown, numbers(count, "int32"))
    assert (("y", 1),) in kept


@pytest.mark.parametrize("rows", [1, 7, 8, 16, 19, 40])
def test_rows_go_on_in_turn(kept: Kept, rows: int) -> None:
    @po.op(numerics="strict")
    def along(x: f32[M, N]):
        y, t = po.tensor("y"), po.index("t", 0, N - 1)
        y[i, 0] = x[i, 0]
        y[i, t + 1] = 0.5 * y[i, t] + x[i, t + 1]
        return y

    x = np.random.default_rng(rows).random((rows, 23), np.float32)
    check(along, x)
    together = [nest for nest in along.lower(x).tiling.nests if nest.rows is not None]
    assert [nest.tiles for nest in together] == ([(("i", 8),)] if rows >= 16 else [])
    in_step = {1} if rows < 16 else {8, rows % 8} - {0}
    assert kept == {(("y", 1),) * count for count in in_step}


def test_no_more_rows_than_registers_hold() -> None:
    """Two statements in each step, so four rows; and rows of different lengths do not go in step."""

    @po.op
    def two(x: f64[M, N]):
        a, b, t = po.tensor("a"), po.tensor("b"), po.index("t", 0, N - 1)
        a[i, 0], b[i, 0] = x[i, 0], -x[i, 0]
        a[i, t + 1] = 0.5 * b[i, t] + x[i, t + 1]
        b[i, t + 1] = 0.5 * a[i, t] - x[i, t + 1]
        return a, b

    @po.op
    def triangle(x: f64[M, M]):
        y, s, t = po.tensor("y"), po.index("s", extent=M), po.index("t", 0, M - 1)
        y[i, 0] = x[i, 0]
        y[i, t + 1] = po.when(t < i, 0.5 * y[i, t] + x[i, t + 1])
        y[i, s] = po.when((s > i) & (s > 0), x[i, s])
        return y

    x = np.random.default_rng(0).random((40, 30))
    assert [nest.tiles for nest in two.lower(x).tiling.nests if nest.rows is not None] == [(("i", 4),)]
    check(two, x)
    square = np.random.default_rng(1).random((40, 40))
    assert all(nest.rows is None for nest in triangle.lower(square).tiling.nests)
    np.testing.assert_allclose(triangle(square), triangle.reference(square), rtol=1e-15)
