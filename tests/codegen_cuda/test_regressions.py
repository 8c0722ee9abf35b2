"""Kernels that were wrong, refused or slow once: on the emulator, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import compilation, f16, f32, f64, i32, i64
from polyopt.api import Op
from polyopt.codegen_cuda.barriers import Touch, conflicts, in_any_iteration, values_apart
from polyopt.codegen_cuda.shapes import pinned
from polyopt.dsl.ir import Const
from polyopt.dtypes import bool_
from polyopt.errors import ScheduleError
from polyopt.loops import lower as loops_lower
from polyopt.loops.ir import Block, For, If, integer
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Tree
from polyopt.runtime import arguments
from polyopt.runtime.cuda import compilers, devices, sass
from polyopt.target import gpu_preset
from tests.codegen_c import kernels
from tests.codegen_cuda.running import emulate, lowered
from tests.codegen_cuda.test_emulated import needs_compiler

M, N, K, Q, T = po.sizes("M N K Q T")
row, column = po.index("row", extent=M), po.index("column", extent=N)
depth, group = po.index("depth", extent=K), po.index("group", extent=Q)

pytestmark = needs_compiler


def check(op: Op, args: tuple[Any, ...], want: Any, **options: Any) -> Any:
    """Run the op on the emulator: no problem reported, its first result as wanted. Returns its lowering."""
    lowering = lowered(op, *args, **options)
    outcome = emulate(lowering, dict(arguments.bind(op.signature, args, {}).arrays), {})
    assert outcome.problems == ()
    np.testing.assert_array_equal(outcome.results[0], want)
    return lowering


def integers(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def test_a_loop_without_an_iteration_has_no_barrier_to_count_on() -> None:
    """Threads walk through `k < t` together; at t = 0 what they wrote before was read without a barrier."""

    @po.op
    def op(x: f32[T, N], y0: f32[N]):
        t, k, j = po.index("t", extent=T), po.index("k", extent=T), po.index("j", extent=N)
        a, b = po.tensor("a", shape=(T, N)), po.tensor("b", shape=(T, T, N))
        c = po.tensor("c", shape=(T + 1, N))
        c[0, j] = y0[j]
        a[t, j] = x[t, j] + c[t, j]
        b[t, k, j] = po.when(k < t, po.where(k == 0, c[t, j] + x[t, j], b.wrap()[t, k - 1, j + 1] + 1))
        c[t + 1, j] = a.wrap()[t, j + 3] + po.where(t > 0, b[t, t - 1, j], 0)
        return c

    x = np.random.default_rng(0).integers(-3, 4, (4, 96)).astype(np.float32)
    c = [(np.arange(96) % 5).astype(np.float32)]
    for t in range(4):
        b = c[t] + x[t]
        for _ in range(1, t):
            b = np.roll(b, -1) + 1
        c.append(np.roll(x[t] + c[t], -3) + (b if t else 0))
    check(op, (x, c[0]), np.stack(c))


FEW = gpu_preset("sm_80", sms=2)
"""A GPU that even 16 rows fill: several warps of a block have a row each."""


def test_buffers_of_warps_start_at_multiples_of_a_vector() -> None:
    @po.op
    def op(x: f32[M, N]):
        i, j, k = po.index("i", extent=M), po.index("j", extent=N), po.index("k", extent=N + 1)
        m, s = po.tensors("m s")
        e, z = po.tensor("e", shape=(M, N + 1)), po.tensor("z", shape=(M, N))
        m[i] = po.max(x[i, j], j)
        e[i, j] = x[i, j] - m[i]
        e[i, N] = 1
        s[i] += e[i, k]
        z[i, j] = e[i, j] + s[i]
        return z

    x = np.random.default_rng(0).integers(-3, 4, (16, 64)).astype(np.float32)
    e = x - x.max(1, keepdims=True)
    assert "threadIdx.y" in check(op, (x,), e + e.sum(1, keepdims=True) + 1, target=FEW).cuda.text


def test_an_element_of_a_warp_s_buffer_is_found_by_another_of_it() -> None:
    @po.op
    def op(x: i32[M, N]):
        i, j = po.index("i", extent=M), po.index("j", extent=N)
        m, s = po.tensors("m s")
        e, z = po.tensor("e", shape=(M, N)), po.tensor("z", shape=(M, N))
        m[i] = po.min(x[i, j], j)
        e[i, j] = x[i, j] - m[i]
        s[i] += e[i, j]
        z[i, j] = e[i, e[i, j]] + s[i]
        return z

    x = np.random.default_rng(0).integers(0, 64, (16, 64)).astype(np.int32)
    e = x - x.min(1, keepdims=True)
    check(op, (x,), np.take_along_axis(e, e, 1) + e.sum(1, keepdims=True, dtype=np.int32), target=FEW)


@po.op
def least_sums(x: f32[T, N]):
    t, j = po.index("t", extent=T), po.index("j", extent=N)
    r, a = po.tensor("r", shape=(T, N)), po.tensor("a", shape=(T,))
    r[t, j] = x[t, j] + po.where(t > 0, a[t - 1], 0)
    a[t] = po.min(r[t, j], j)
    return a


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_threads_share_a_sum_that_the_next_step_reads(rows: int) -> None:
    """The element read is of the step before; only one that may be the sum's own is refused."""

    x = np.random.default_rng(0).integers(-3, 4, (rows, 256)).astype(np.float32)
    lowering = check(least_sums, (x,), np.cumsum(x.min(1)))
    assert not lowering.fallback and "__launch_bounds__(1)" not in lowering.cuda.text


def test_the_compiler_moves_no_load_over_a_barrier() -> None:
    """Found on a GPU, where the op above was wrong: through a `__restrict__` pointer the next step's element was loaded
    before the barrier that waits for it, and memory of the emulator shows none of that."""

    text = least_sums.lower(T=30, N=256, target="sm_90").source("cuda")
    codes = sass.text(compilers.compile_text(text, "sm_90").code).partition(".text.least_sums_1")[2]
    order = re.findall(r"\b(?:BAR\.SYNC|STG|LDG\.E )", codes)  # LDG.E.CONSTANT reads x
    first = order.index("STG")
    assert order[first : first + 3] == ["STG", "BAR.SYNC", "LDG.E "], "its own element, a barrier, the step before's"


def test_a_piece_that_comes_again_is_no_copy_too_late() -> None:
    """One factor of `a[k, i] * w[q, k, j]` is the same for every q."""

    @po.op
    def op(a: f16[K, M], w: f16[Q, K, N]):
        y = po.tensor("y")
        y[row, column] = po.sum(a[depth, row] * w[group, depth, column], (depth, group))
        return y

    drawn = np.random.default_rng(0)
    a, w = (drawn.integers(-1, 2, shape).astype(np.float16) for shape in ((128, 64), (8, 128, 64)))
    lowering = check(op, (a, w), np.einsum("ki,qkj->ij", a.astype(float), w.astype(float)))
    assert not lowering.fallback and "po_mma_f16" in lowering.cuda.text


PADDED: dict[str, Callable[[Any, Any], Any]] = {
    "the outer sum's": lambda a, w: a[row, depth, group] * w.pad(1)[column, group - 1, depth],
    "the sum's": lambda a, w: a[row, depth, group] * w.pad(1)[column, group, depth + 2],
    "a row's": lambda a, w: a.pad(1)[row - 1, depth, group] * w[column, group, depth],
    "with zeros": lambda a, w: a[row, depth, group] * w.pad(0)[column, group - 1, depth],
}


@pytest.mark.parametrize("product", PADDED.values(), ids=PADDED)
def test_what_pads_a_factor_is_multiplied(product: Callable[[Any, Any], Any]) -> None:
    """Tensor cores took any padding for zeros, or ended in a KeyError."""

    @po.op
    def op(a: f16[M, K, Q], w: f16[N, Q, K]):
        y = po.tensor("y")
        y[row, column] = po.sum(product(a, w), (depth, group))
        return y

    drawn = np.random.default_rng(0)
    a, w = (drawn.integers(-1, 2, shape).astype(np.float16) for shape in ((40, 31, 8), (36, 8, 31)))
    lowering = check(op, (a, w), op.reference(a, w))
    assert ("po_mma_f16" in lowering.cuda.text) == (product is PADDED["with zeros"])


def test_a_sum_as_long_as_a_column_says_is_not_cut_beside_another() -> None:
    @po.op
    def op(a: f32[M, K], w: f32[Q, K, N]):
        y = po.tensor("y")
        y[row, column] += po.when(depth < column, a[row, depth] * w[group, depth, column])
        return y

    a, w = np.ones((40, 40), np.float32), np.ones((3, 40, 36), np.float32)
    check(op, (a, w), np.broadcast_to(3.0 * np.arange(36), (40, 36)))


def test_a_wrapped_factor_keeps_its_tiles_where_the_size_is_open() -> None:
    """`(k + 3) mod K` is no function that isl has; which piece comes when is told by what it is made of."""

    @po.op(dynamic=["K"])
    def op(a: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[row, column] += a.wrap()[row, depth + 3] * w[depth, column]
        return y

    lowering = op.lower(M=512, N=512, target="sm_80")
    assert not lowering.fallback
    assert "po_cp_async" in lowering.cuda.text


@pytest.mark.parametrize("shape", [(4, 4), (1, 1), (9, 10)])
def test_two_loops_that_have_fewer_than_no_iterations_make_no_blocks(shape: tuple[int, int]) -> None:
    """The product of their lengths is above 0."""
    depth, step = po.index("depth", extent=K), po.index("step", extent=T)

    @po.op(dynamic=["M", "N"])
    def op(x: f32[M, N, K, T]):
        i, j = po.index("i", 3, M - 5), po.index("j", 3, N - 5)
        y, z = po.tensor("y", shape=(M, N, K, T)), po.tensor("z", shape=(M, N, K))
        y[i, j, depth, step] = po.where(
            step == 0, x[i, j, depth, 0], y.clamp()[i, j, depth, step - 1] * 2 + x[i, j, depth, step]
        )
        inside = (row >= 3) & (row < M - 5) & (column >= 3) & (column < N - 5)
        turned = M - 3 - row, N - 3 - column
        ends = y[(*turned, K - 1 - depth, T - 1)] + y[(*turned, depth, T // 2)]
        z[row, column, depth] = po.where(inside, ends, 0)
        return z

    x = np.ones((*shape, 70, 5), np.float32)
    emulator = compilation.emulator()
    with devices.use(emulator):
        found = op.on("cuda")(x)
    assert not emulator.found
    np.testing.assert_array_equal(found, op(x))


def test_who_has_an_element_changes_from_iteration_to_iteration_of_a_loop_around() -> None:
    """Threads are dealt what starts where a loop around says, and nobody waited between its iterations."""
    depth = po.index("depth", extent=K)

    @po.op(numerics="strict")
    def op(x: f64[M, N], z: f64[K]):
        t = po.tensor("t", shape=(M, N))
        least = po.min(po.cast(1, f64), depth, where=(column + depth) % 3 == 1, init=3)
        inner = (row >= 2) & (column >= 2) & (column < N - 1)
        t[row, column] = po.where(inner, po.clip(least - t[row - 1, column + 1], -8, 8), 1.0)
        return t

    args = np.zeros((3, 6)), np.zeros(4)
    check(op, args, op.reference(*args))


def test_what_every_thread_computes_for_itself_waits_for_the_step_before() -> None:
    """A buffer that each thread has its own of is written by all of them, who read what one of them wrote."""
    before, over = po.index("before", extent=M), po.index("over", extent=N)

    @po.op
    def op(x: f32[M, N]):
        t = po.tensor("t", shape=(M,), dtype=f32)
        last = po.sum(po.cast(1, f32), over, where=row == M - 1)
        t[row] = po.clip(last, -8, 8) + po.sum(t[before], before, where=before < row) + 1
        return t

    args = (np.zeros((2, 2), np.float32),)
    check(op, args, op.reference(*args), target=FEW)


def test_loops_that_isl_loses_iterations_of_run_as_one_nest_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor; on a GPU all four plans had the same loops, and none compiled. Today isl loses none."""
    term = po.index("term", extent=K)
    scanned, lost = loops_lower.ast, list[Tree]()

    def losing(scop: Scop, tree: Tree) -> loops_lower.Scanned:
        if len(lost) < 4:
            lost.append(tree)
            raise ScheduleError("isl's loops lose iterations of 't'")
        return scanned(scop, tree)

    @po.op
    def op(x: f64[M, N], z: f64[K]):
        t = po.tensor("t", shape=(M, N))
        found = po.all(x[row, (column + 1) // 2] >= 1, term, where=(row < M) | (row + row < M))
        chosen = po.where(~((row // 3 + row) % 4 == 1), po.cast(found, f64), 1.0)
        inner = (row >= 2) & (column >= 2) & (column < N - 1)
        t[row, column] = po.where(inner, po.clip(t[row - 1, column], -8, 8), po.clip(chosen, -8, 8))
        return t

    for height in (7, 8):
        args = np.random.default_rng(0).integers(0, 3, (height, 4)).astype("f8"), np.zeros(1)
        lowering = check(op, args, op.reference(*args))
        assert ("lose iterations" in lowering.fallback) == (height == 8) == bool(lost)
        assert lowering.verify()
        monkeypatch.setattr(loops_lower, "ast", losing)


def test_loops_of_one_name_that_start_apart_say_nothing_of_whose_an_element_is() -> None:
    """Threads that are dealt `start + 256 * n` have the same elements in each loop only if all start alike."""

    def loop(var: str, lower: int, step: int) -> For:
        return For(var, integer(lower), integer(9999), Block(()), step)

    assert values_apart([loop("a", 0, 256), loop("b", 0, 32)]) == {"a": 256, "b": 32}
    assert values_apart([loop("a", 0, 256), loop("a", 0, 256)]) == {"a": 256}
    assert values_apart([loop("a", 0, 256), loop("a", 5, 256)]) == {"a": 0}
    owned = Touch("x", True, ("threads",), frozenset({("a", 256)}))
    assert in_any_iteration([owned], {"a": 512}) == [owned]
    for apart in (0, 128):
        (anyone,) = in_any_iteration([owned], {"a": apart})
        assert conflicts([anyone], [anyone]) and not conflicts([owned], [owned])


def test_a_sum_that_an_equality_leaves_to_one_thread_is_added_in_its_turn() -> None:
    """isl knows that `i` is `M - 1` there and writes `y[j, M - 1] += a`: threads shared the sum, and it came last."""

    @po.op(dynamic=["M"], numerics="strict", target=gpu_preset("sm_80", sms=1))
    def op(x: f32[N, M], a: f32[()]):
        y = po.tensor("y", shape=(N, M))
        y[column, row] = x[column, row]
        y[column, row] += po.when(row == M - 1, a[()])
        y[column, row] += po.cast(1, f32)
        return y

    rng = np.random.default_rng(3)
    x, a = rng.standard_normal((64, 5), np.float32), np.float32(5.708217)
    want = x.copy()
    want[:, -1] += a
    with devices.use(compilation.emulator()):
        np.testing.assert_array_equal(op(x, a), want + np.float32(1))
    assert "_sum_1" not in op.lower(N=64).source("cuda")


def test_an_equality_of_two_threads_variables_leaves_none_of_them_one_value() -> None:
    """Many pairs are on a diagonal: their sum stays one that threads share."""
    added = kernels.store("y", [0], Const(1, f32), kernels.total())
    for diagonal in (
        kernels.op("eq", kernels.i, kernels.j, dtype=bool_),
        kernels.op("eq", kernels.add(kernels.i, kernels.j), 7, dtype=bool_),
    ):
        body = If(diagonal, added)
        assert pinned(body, added, {"i", "j"}) == set()
        assert pinned(body, added, {"i"}) == {"i"}
        assert pinned(If(diagonal, Block(()), added), added, {"i"}) == set()
    twice = kernels.op("eq", kernels.op("floordiv", kernels.i, 2), 3, dtype=bool_)
    assert pinned(If(twice, added), added, {"i"}) == set()


def test_a_choice_as_a_subscript_of_a_warps_own_row() -> None:
    """`(warp) * 16 + c ? a : b` chose by `(warp) * 16 + c`."""

    @po.op
    def op(shaped: po.bool_[M, N], ids: po.i64[M], x: po.bool_[M]):
        row_of, y = po.tensor("row_of", shape=(M, N), dtype=po.bool_), po.tensor("y", shape=(M, N), dtype=i32)
        inner = (row >= 2) & (column >= 2) & (column < N - 1)
        row_of[row, column] = po.where(inner, po.cast(1, po.bool_), x.wrap()[row % 3])
        y[row, column] = po.where(inner, 1, po.where(row_of[row, ids[row]], 2, 3))
        return y

    ids, x = np.zeros(4, np.int64), np.array([False, True, True, True])
    want = np.where(x[np.arange(4) % 3], 2, 3).astype(np.int32)
    args = np.zeros((4, 2), bool), ids, x
    lowering = check(op, args, np.repeat(want[:, None], 2, axis=1), target=gpu_preset("sm_89", sms=2))
    assert "threadIdx.y" in lowering.cuda.text


def test_what_an_equality_leaves_to_one_thread_is_in_no_register_of_its_own() -> None:
    """The first thread found the maximum of one score in its register, the others read the start in theirs: inf."""

    @po.op
    def op(x: po.i64[M], y: po.i64[N]):
        score, most = po.tensor("score", shape=(M, N), dtype=f64), po.tensor("most", shape=(M,), dtype=f64)
        total = po.tensor("total", shape=(M,), dtype=f64)
        score[row, column] = po.clip(po.cast(1, f64), -3, 3)
        most[row] = po.max(score[row, column], column, where=(column <= row) & (column >= row - 2))
        total[row] = 64.0 * po.sum(po.exp2(score[row, column] - most[row]) * 2.0, column)
        return total, score

    args = np.zeros(1, np.int64), np.zeros(3, np.int64)
    check(op, args, np.array([384.0]), target=gpu_preset("sm_86", sms=1))


@pytest.mark.parametrize("dtype", [f32, f16, po.i8], ids=str)
@pytest.mark.parametrize("start", [1, 2, 4])
def test_squares_of_loops_that_start_late_end_with_their_rows(dtype: Any, start: int) -> None:
    """Squares were said to start at multiples of their side, so that a thread asked for its first lane alone."""

    @po.op
    def op(x: dtype[N, M], z: dtype[M, N]):
        i, j = po.index("i", start, M), po.index("j", start, N)
        y = po.tensor("y", shape=(M, N))
        y[i, j] = x[j, i] + z[i, j]
        y[row, column] = po.when((row < start) | (column < start), z[row, column])
        return y

    x, z = integers((40, 40), 1, dtype.numpy), integers((40, 40), 2, dtype.numpy)
    want = z.copy()
    want[start:, start:] += x.T[start:, start:]
    lowering = check(op, (x, z), want, target=gpu_preset("sm_80", sms=1))
    assert "turned" in {nest.style for nest in lowering.mapping.nests}


def test_a_loop_of_the_host_may_be_called_as_an_operand_of_a_reduction() -> None:
    """The kernel of a step lacked the parameter."""

    @po.op
    def op(x: f32[T, N], y0: f32[N]):
        a, j = po.index("a", extent=T), po.index("j", extent=N)
        u = po.tensor("u", shape=(T + 1, N))
        u[0, j] = y0[j]
        u[a + 1, j] = u.wrap()[a, j - 1] + x[a, j]
        return u

    x, y0 = integers((3, 2000), 1, np.float32), integers((2000,), 2, np.float32)
    want = [y0]
    for step in x:
        want.append(np.roll(want[-1], 1) + step)
    check(op, (x, y0), np.array(want), target=gpu_preset("sm_80", sms=1))


def test_edges_of_an_array_have_threads() -> None:
    """A loop under a condition on the loop around was run by one thread, and so was what had no second loop."""

    @po.op
    def op(z: f32[M, N]):
        y = po.tensor("y", shape=(M, N))
        y[row, column] = po.when((row == 0) | (column == 0), z[row, column])
        y[row, column] = po.when((row > 0) & (column > 0), 0)
        return y

    z = integers((90, 300), 1, np.float32)
    want = z.copy()
    want[1:, 1:] = 0
    lowering = check(op, (z,), want, target="sm_80")
    assert min(kernel.threads for kernel in lowering.cuda.kernels) >= 64


def test_the_report_says_what_runs_in_one_thread() -> None:
    @po.op(numerics="strict")
    def op(x: i32[N], y: f32[N]):
        h = po.tensor("h", shape=(256,))
        h[x[column]] += y[column]
        return h

    assert "h_update runs in one thread" in str(op.lower(N=1000, target="sm_80").report())


def test_the_report_says_nothing_of_what_the_threads_of_one_block_share() -> None:
    """The last sum of partial ones, and that of each step of a recurrence."""

    @po.op
    def total(x: f32[N]):
        y = po.tensor("y")
        y[()] += x[column]
        return y

    @po.op
    def steps(x: f32[M, N], w: f32[N, N]):
        h, inner = po.tensor("h", shape=(M + 1, N)), po.index("inner", extent=N)
        h[0, column] = 0.0
        h[row + 1, column] = po.tanh(x[row, column] + po.sum(w[column, inner] * h[row, inner], inner))
        return h

    for op, sizes in ((total, {"N": 1 << 24}), (steps, {"M": 32, "N": 64})):
        lowering = op.lower(**sizes, target="sm_80")
        assert "one block" in str(lowering.mapping) and "runs in one thread" not in str(lowering.report())


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "negation, shifted": lambda a, b, c: -a >> 1,
    "magnitude, shifted": lambda a, b, c: po.abs(a) >> 1,
    "difference from zero, compared": lambda a, b, c: po.where(0 - a < b, a, c),
    "product with -1": lambda a, b, c: (a * -1) // 3,
    "quotient by -1": lambda a, b, c: po.maximum(a // -1, b),
    "negation among three": lambda a, b, c: po.maximum(po.maximum(a, -b), c),
    "magnitude among three": lambda a, b, c: po.minimum(po.minimum(po.abs(a), b), c),
    "remainder of a negation": lambda a, b, c: (-a) % 7,
}


INTEGERS = [(n, d) for n in ARITHMETIC for d in (po.i8, po.i16, po.u16, po.i32) if d.kind == "i" or "-1" not in n]


@pytest.mark.parametrize("name, dtype", INTEGERS, ids=str)
def test_arithmetic_of_integers_meets_no_fault_of_the_compilers(name: str, dtype: Any) -> None:
    """ptxas dropped the sign of `-b` in `max(max(a, -b), c)` and took -(-32768) for 32768 (found on an H200)."""

    @po.op
    def op(x: dtype[M], y: dtype[M], z: dtype[M]):
        out = po.tensor("out")
        out[row] = ARITHMETIC[name](x[row], y[row], z[row])
        return out

    least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    edges = np.array([least, least + 1, 0, 1, 2, most - 1, most], dtype.numpy)
    args = tuple(np.ascontiguousarray(a) for a in np.stack(np.meshgrid(edges, edges, edges)).reshape(3, -1))
    lowering = check(op, args, op.reference(*args, numerics="strict"))
    compiled = compilers.compile_text(lowering.cuda.text, "sm_90", contract=lowering.cuda.contract)
    assert compiled.faults == ()


@po.op
def hashes(x: i64[M, N]) -> object:
    """Numbers of indices that leave 64 bits."""
    y, z, w = po.tensors("y z w")
    y[row, column] = (row * 73856093) * (column * 19349663) % 101 + x[row, column]
    z[row, column] = po.where((row + 1) * (column + 1) * 2**50 // 3 % 2 == 0, x[row, column], -1)
    w[row, column] = po.maximum((row + 1) * (column + 1) * 2**50, 0)
    return y, z, w


def test_numbers_of_indices_wrap_around() -> None:
    """C divides them as signed numbers, whose overflow is undefined, and rounds towards zero."""
    n = 128
    a, b = np.arange(n)[:, None], np.arange(n)[None, :]
    x = integers((n, n), 0, np.int64)
    product = (a + 1) * (b + 1) * 2**50
    wanted = (
        (a * 73856093) * (b * 19349663) % 101 + x,
        np.where(product // 3 % 2 == 0, x, -1),
        np.maximum(product, 0),
    )
    lowering = lowered(hashes, x)
    outcome = emulate(lowering, {"x": x}, {})
    for found, want in zip(outcome.results, wanted, strict=True):
        np.testing.assert_array_equal(found, want)
    for found, want in zip(hashes(x), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


@po.op
def hashed_places(x: i64[M, N], t: i64[K]) -> object:
    """Subscripts and conditions of numbers of indices that leave 64 bits."""
    gathered, filled, chosen = po.tensors("gathered filled chosen")
    scattered = po.tensor("scattered", shape=(19,))
    product = ((row + 1) * 2**30) * ((column + 1) * 2**22)
    gathered[row, column] = t[(x[row, column] + product // 3) % 19]
    filled[row, column] = t.pad(-1)[x[row, column] + product // 3 % 23]
    chosen[row, column] = po.where(product // 3 % 5 < 2, t[x[row, column]], -1)
    scattered[(x[row, column] + product // 3) % 19] += 1
    return gathered, filled, chosen, scattered


def test_subscripts_made_of_numbers_wrap_around() -> None:
    """Only subscripts that are affine stay within 64 bits: others follow NumPy, as elements do."""
    n = 64
    product = (np.arange(n)[:, None] + 1) * (np.arange(n)[None, :] + 1) * 2**52
    x, t = integers((n, n), 0, np.int64) % 4, np.arange(19) * 100 + 1
    place, beyond = (x + product // 3) % 19, x + product // 3 % 23
    wanted = (
        t[place],
        np.where(beyond < 19, t[np.minimum(beyond, 18)], -1),
        np.where(product // 3 % 5 < 2, t[x], -1),
        np.bincount(place.ravel(), minlength=19),
    )
    lowering = lowered(hashed_places, x, t)
    outcome = emulate(lowering, {"x": x, "t": t}, {})
    for found, want in zip(outcome.results, wanted, strict=True):
        np.testing.assert_array_equal(found, want)
    for found, want in zip(hashed_places(x, t), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_a_combination_sees_its_sum_wrap_around() -> None:
    """`a + b < a` of signed numbers is `b < 0` to a compiler of C."""
    most = 2**63 - 1

    @po.op
    def saturated(x: i64[M, N]) -> object:
        y = po.tensor("y")
        y[row] = po.reduce(lambda a, b: po.where(a + b < a, most, a + b), x[row, column], column, init=0)
        return y

    x = np.random.default_rng(0).integers(0, 2**62, (40, 5))
    x[20:] >>= 8
    check(saturated, (x,), [min(sum(map(int, line)), most) for line in x])
