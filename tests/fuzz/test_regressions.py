"""What random operators found, as small as it gets. Each gave a wrong result, a crash or a needless refusal."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt.fuzz.arrays import draw
from polyopt.fuzz.check import compare
from polyopt.poly.space import Space
from polyopt.poly.tree import loops
from polyopt.target import host, preset

M, N, K, T = po.sizes("M N K T")
i, j, k = po.index("i", extent=M), po.index("j", extent=N), po.index("k", extent=K)
ii, jj = po.index("ii", extent=M), po.index("jj", extent=N)


def test_a_quotient_by_a_number_keeps_its_dtype_where_loops_are_split() -> None:
    """The quotient of floats or short integers became one of 64-bit integers."""

    @po.op
    def floats(x: po.f32[N], y: po.f32[M]):
        z = po.tensor("z", shape=(M,))
        z[i] = po.where((1 - i >= 0) & (1 - i < N), x[1 - i], y[i]) // 4
        return z

    @po.op
    def unsigned(x: po.u32[N], y: po.u32[M]):
        z = po.tensor("z", shape=(M,))
        z[i] = po.where((1 - i >= 0) & (1 - i < N), x[1 - i], y[i]) // 5
        return z

    compare(floats, (draw((2,), "f32", -9, 9, seed=1), draw((11,), "f32", -9, 9, seed=2)))
    compare(unsigned, (draw((2,), "u32", 0, 9, seed=1), draw((11,), "u32", 0, 9, seed=2)))


def test_dynamic_results_have_any_strides() -> None:
    """Where a result is an array of the caller with strides of its own, the call did not know them."""

    @po.op(dynamic=["N"])
    def total(x: po.f32[M, N, K]):
        y = po.tensor("y")
        y[i, j, k] = x[i, j, k] + 1
        return y

    x = draw((2, 3, 4), "f32", -3, 3, seed=1)
    for layout in ("transposed", "strided", "negative"):
        compare(total, (x,), out=layout)
        compare(total, (x[:, :2],), out=layout)


@pytest.mark.parametrize("boundary", ["clamp", "wrap"])
def test_nothing_is_nearest_in_an_empty_tensor(boundary: str) -> None:
    """It was read all the same: outside its memory, or refused as an illegal schedule where sizes are symbolic."""

    def shifted(x: po.i64[M], y: po.i64[N]):
        z = po.tensor("z", shape=(M,))
        z[i] = x[i] + getattr(y, boundary)()[i + 1]
        return z

    x, empty = draw((3,), "i64", -3, 3, seed=1), np.zeros(0, np.int64)
    for dynamic in (False, True):
        op = po.op(dynamic=dynamic)(shifted)
        compare(op, (x, x[:2]))
        compare(op, (empty, empty))
        with pytest.raises(po.ShapeError if dynamic else po.BoundsError):
            op(x, empty)
        with pytest.raises(po.BoundsError):
            op.reference(x, empty)


def test_a_row_of_symbolic_length_is_no_private_buffer() -> None:
    """One iteration touches a constant number of rows of t, but rows as long as a size that is not known."""

    @po.op(dynamic=["N"])
    def last(x: po.f32[M, N], y: po.i8[K]):
        t = po.tensor("t", shape=(N, K))
        z = po.tensor("z", shape=(M, M))
        t[j, k] = y[k] + 1
        z[i, ii] = t.wrap()[N - 1, (i + i) // 2]
        return z

    compare(last, (draw((1, 1), "f32", -3, 3, seed=1), draw((1,), "i8", -3, 3, seed=2)))
    compare(last, (draw((5, 4), "f32", -3, 3, seed=1), draw((3,), "i8", -3, 3, seed=2)))


def test_a_register_has_the_lanes_of_every_loop_that_uses_it() -> None:
    """A loop over booleans alone has more lanes than one that compares doubles; they shared a register."""

    @po.op(target="generic")
    def cases(x: po.f64[K], y: po.f64[M, N, K]):
        t = po.tensor("t", shape=(M, N, K), dtype=po.f64)
        z = po.tensor("z", shape=(M,))
        t[i, j, k] += po.cast(po.any(x[k] <= po.cast(3 * j + 1, po.f64), ii), po.f64)
        z[i] = po.where((i // 3 + i % 2 < N) & (i < K), t[i, i // 3 + i % 2, i], y[i, 0, 0])
        return z

    for target in ("generic", "cpu"):
        compare(cases.on(target), (draw((3,), "f64", -3, 3, seed=1), draw((5, 2, 3), "f64", -3, 3, seed=2)))


def test_operands_are_packed_beside_producers_that_tiles_compute_anew() -> None:
    """Dependences from before tiles gained axes of their own were used after it."""

    @po.op(target=replace(preset("generic"), parallel_ns=1, l1_bytes=256, l2_bytes=1024))
    def cases(x: po.i16[M, N], y: po.i16[K], w: po.i16[N, M]):
        t = po.tensor("t", shape=(N, N), dtype=po.i16)
        z = po.tensor("z", shape=(M, N), dtype=po.i16)
        t[j, jj] += w[j, i] * x[i, jj]
        choice = po.where(w.pad(2)[j, j // 3 + j % 2] != y.pad(1)[j // 3 + i % 2], y.clamp()[i + 1], t.pad(1)[j - 1, j])
        step = po.maximum(po.maximum(choice, z[i - 1, j]) + z[i - 1, j - 1], z[i - 2, j])
        z[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), step, t[j, j])
        return z

    arrays = draw((9, 76), "i16", -3, 3, seed=1), draw((32,), "i16", -3, 3, seed=2), draw((76, 9), "i16", 0, 3, seed=3)
    compare(cases, arrays)


def test_the_proof_of_elements_that_are_all_defined_looks_at_no_reference() -> None:
    """Taking definitions from what each reference reads, with divisions in its subscript, exceeded isl's budget."""

    @po.op(dynamic=["N"])
    def folded(x0: po.u32[M, N], x1: po.u32[K]):
        t0, t1 = po.tensor("t0", shape=(M, M), dtype=po.u32), po.tensor("t1", dtype=po.u32)
        t2 = po.tensor("t2", shape=(), dtype=po.u32)
        t0[i, ii] = po.where(i >= M - 3, x0.clamp()[i, ii - ii], x1.clamp()[i - 2 * ii - 1] - t0[i + 3, ii])
        t1[i, ii] = po.where(i >= M - 1, x0.clamp()[i, -ii - 1] << 3, x1.pad(0)[ii + i] + t1[i + 1, ii])
        t2[()] += t1.wrap()[j // 3 + j % 2, j + 2]
        t2[()] += po.where(
            po.where(jj >= 3, t0.wrap()[2 * jj - 1, jj - 2], x1.clamp()[jj + jj]) >= t1.wrap()[2 * jj - 1, jj - jj],
            t0.clamp()[jj // 3 + jj % 2, -jj - 1],
            po.sum(po.where(((i + jj) // 2 >= 0) & ((i + jj) // 2 < M), t1[i, (i + jj) // 2], po.cast(1, po.u32)), i),
        )
        return t1, t2

    assert folded.lower(M=17, K=8).fallback == ""
    compare(folded, (draw((17, 5), "u32", 0, 6, seed=1), draw((8,), "u32", 0, 9, "negative", seed=2)))


def test_a_buffer_that_two_pieces_of_a_loop_use_in_one_iteration_is_shared() -> None:
    """isl ends the loop that makes t and begins the one that reads it in iteration 3; each had a buffer of its own."""

    @po.op(target=replace(preset("avx2"), parallel_ns=16, l1_bytes=4096, l2_bytes=16384))
    def met(x: po.f64[M, M], y: po.f64[M]):
        t, z = po.tensor("t", shape=(M,)), po.tensor("z", shape=(M,))
        t[i] = po.when(i < 4, po.sum(x[M - 1 - i, ii], ii))
        t[i] = po.when(i >= 4, y[0])
        z[i] = po.when(i < 3, y[i])
        z[i] = po.when(i >= 3, t[i] + z[i - 3])
        return z

    compare(met, (draw((5, 5), "f64", -3, 3, seed=1), draw((5,), "f64", 1, 9, seed=2)))


def test_tiles_on_the_edge_of_a_triangle_leave_no_row_out() -> None:
    """Where some rows of a register tile lie behind the triangle, the others were not computed either."""

    @po.op(dynamic=True)
    def triangle(x: po.f32[M, K], w: po.f32[K, N]):
        y = po.tensor("y")
        y[j, i] += po.when(i + j < 34, x[i, k] * w[k, j])
        return y

    for size in (32, 34):
        compare(triangle, (draw((size, 8), "f32", -3, 3, seed=1), draw((8, size), "f32", -3, 3, seed=2)))


def test_a_buffer_may_be_private_to_a_wavefront() -> None:
    """The loop was called "2*i + j", which isl takes for a number and not for a name: planning its storage failed."""

    @po.op(dynamic=True)
    def front(x: po.f64[M, N]):
        t, z = po.tensor("t", shape=(M, N), dtype=po.f64), po.tensor("z")
        t[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), po.clip(t[i, j - 1] + t[i - 1, j + 1], -8, 8), x[i, j])
        z[i, j] = t[i, (j + 1) // 2] + po.max(t[ii, j], ii, where=ii < i, init=1)
        return z

    for size in (1, 6):
        compare(front, (draw((size, 7), "f64", -3, 3, seed=1),))
    lowering = front.lower(draw((6, 7), "f64", -3, 3, seed=1))
    assert any("2*i + j" in loop.name for loop in loops(lowering.fusion.tree)), "there is a wavefront"
    for loop in loops(lowering.fusion.tree):
        assert Space("", (loop.name,), ()).universe().get_dim_name(isl.dim_type.set, 0) == loop.name


def test_a_uniform_read_under_a_guard_that_is_known_for_each_lane() -> None:
    """With AVX-512, LLVM found late that the guard is a constant mask, and folded the test for its lanes wrongly."""
    t = po.index("t", extent=T)

    @po.op
    def edges(x: po.f64[K], y: po.i16[M, N, K], steps: po.i32[T]):
        z = po.tensor("z", shape=(T + 1, N), dtype=po.f64)
        z[0, j] = po.cast(1, po.f64)
        inner = po.clip(po.cast(y.pad(3)[j // 3 + j % 2, j, K - 1], po.f64), -8, 8)
        z[t + 1, j] = po.where((j > 0) & (j < N - 1), inner, po.clip(x[0], -8, 8))
        return z

    arrays = draw((1,), "f64", 3, 3, seed=1), draw((1, 15, 1), "i16", -3, 3, seed=2), draw((2,), "i32", 0, 1, seed=3)
    compare(edges, arrays)


def test_a_loop_of_known_length_is_written_out_whole_beside_another_of_its_name() -> None:
    """It had as many points as the other one may have, where a register is kept over both: the rest was left out."""

    @po.op(target=preset("generic"))
    def two_pieces(x: po.i64[N, K, M]):
        z, i = po.tensor("z", shape=(N, K), dtype=po.i64), po.index("i", extent=M)
        z[j, k] = po.prod(1 * j, i, where=(k // 2 >= 2) | (k + j < K))
        return z

    compare(two_pieces, (draw((7, 9, 9), "i64", -3, 3, seed=1),))


def test_dependences_do_not_eat_what_plans_may_cost() -> None:
    """Fifty statements' dependences left isl next to nothing for the plainest plan: the op was refused."""

    @po.op
    def residues(x0: po.f32[M, N], t3: po.f32[K], t2: po.f32[N, M], t1: po.f32[N]):
        z = po.tensor("z", shape=(M, N, K), dtype=po.f32)
        product = po.maximum(t2[j, i], t3[0]) * (t3[(k + 1) // 2] + x0.clamp()[ii // 3 + i % 2, jj + 1])
        is_other = t3.pad(3)[k // 3 + k % 2] != t2.clamp()[j, i + 2]
        z[i, j, k] += po.clip(po.where(is_other, product, t1[j]), -8, 8)
        return z

    shapes = (3, 3), (5,), (3, 3), (3,)
    compare(residues, tuple(draw(shape, "f32", 0, 3, seed=n) for n, shape in enumerate(shapes)))


def test_a_dependence_whose_pieces_isl_cannot_merge_keeps_them() -> None:
    """isl's own error, of an assertion in its search for a shorter form, came out of the call."""

    @po.op(dynamic=["M"])
    def thirds(x: po.u8[N], like: po.i64[M]):
        start, z = po.tensors("start z")
        t, i, j = po.tensor("t", shape=(M,), dtype=po.i64), po.index("i", extent=M), po.index("j", extent=N)
        start[i] = po.when(~((i + i) % 3 == 1), po.cast(1, po.i64))
        t[i] = start.clamp()[i % 3]
        z[j, i] = t[i]
        return z

    compare(thirds, (draw((1,), "u8", 0, 0, seed=1), draw((1,), "i64", 0, 3, seed=1)))


def test_pieces_of_a_producer_that_no_tile_needs() -> None:
    """Pieces without instances were scheduled all the same, and the proof did not find their loops (StopIteration)."""

    @po.op(target=replace(preset("generic"), parallel_ns=16, l1_bytes=64, l2_bytes=256, l3_bytes=256))
    def column(like: po.u64[N, K], wide: po.u64[N, M]):
        t0, t1 = po.tensor("t0", shape=(M, M), dtype=po.f64), po.tensor("t1", shape=(M, N))
        t0[i, ii] = po.when(i == M - 1, po.prod(po.cast(1, po.f64), k))
        t0[i, ii] = po.when(i != M - 1, po.cast(1, po.f64))
        t1[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), t0[i, i], po.where(2 * i < M, t0[j, 2 * i], 1.0))
        return t1

    compare(column, (draw((1, 1), "u64", 0, 6, seed=1), draw((1, 9), "u64", 0, 6, seed=2)))


def test_overlapping_guards_leave_the_proof_enough() -> None:
    """Pieces of a guard that overlap were paired with each other: isl's share was spent before the proof was done."""

    @po.op(dynamic=True)
    def thirds(x: po.bf16[M, N], like: po.u8[K]):
        t, z = po.tensor("t", shape=(K,), dtype=po.bf16), po.tensor("z", shape=(M,), dtype=po.bf16)
        some = ((ii + k) % 3 == 1) | (ii != 1)
        t[k] = po.when(((k + k) % 3 == 1) | (k != 3), po.sum(po.cast(1, po.bf16), ii, where=some))
        z[i] = po.where((i >= 0) & (i < K), t[i], po.cast(1, po.bf16))
        return z

    compare(thirds, (draw((4, 1), "bf16", -3, 3, seed=1), draw((2,), "u8", 0, 0, seed=2)))


def test_equalities_that_floors_hide_leave_the_proof_enough() -> None:
    """Known pairs were subtracted bound by bound of a floor: isl's share went to one dependence, the op was refused."""

    @po.op
    def columns(x: po.f64[M, N], like: po.u8[K]):
        t, z = po.tensor("t", shape=(M, N, K), dtype=po.f16), po.tensor("z", shape=(M,), dtype=po.f16)
        t[i, j, k] = po.when(i > 0, po.cast(1, po.f16))
        t[0, j, k] = po.cast(1, po.f16)
        same = t.clamp()[j - 2, j - 2, i + j] == t.wrap()[i, j, i // 3 + j % 2]
        z[i] = po.cast(po.all(same, j, where=~((i % 2 == 0) | ((i + j) % 3 == 1))), po.f16)
        return z

    compare(columns, (draw((5, 33), "f64", -3, 3, seed=1), draw((8,), "u8", 0, 4, seed=2)))


def test_zero_and_minus_zero_are_two_numbers() -> None:
    """One stood for the other wherever a rewrite finds an expression that it has seen before."""

    @po.op
    def poles(x: po.f32[N, K], w: po.f32[K, M]):
        z = po.tensor("z")
        z[j, i] = po.sum(1 / (x[j, k] * 0.0) * w[k, i] - 1 / (x[j, k] * -0.0) * w[k, i], k)
        return z

    @po.op
    def edges(x: po.f32[N, K], w: po.f32[3, M]):
        z, near = po.tensor("z", shape=(N, K, M)), po.index("near", extent=3)
        z[j, k, i] += (1 / x.pad(0.0)[j, k + near - 1] - 1 / x.pad(-0.0)[j, k + near - 1]) * w[near, i]
        return z

    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(poles(np.ones((3, 4), "f4"), np.ones((4, 40), "f4")), np.inf)
        arrays = np.ones((3, 30), "f4"), np.ones((3, 40), "f4")
        compare(edges, arrays)
        assert np.isposinf(edges(*arrays)[:, 0]).all() and (edges(*arrays)[:, 1:-1] == 0).all()


WRAPPING = {
    "factors": lambda n: po.cast(n, po.i64) * 2**61 > -(po.cast(n, po.i64) * 2**61),
    "constants": lambda n: po.cast(n, po.i64) + (2**63 - 3) > 5,
    "quotients": lambda n: (po.cast(n, po.i64) + (2**63 - 5)) // 3 > 0,
    "products": lambda n: po.cast(n + 49990, po.i64) ** 4 > -(po.cast(n + 49990, po.i64) ** 4),
    "squares": lambda n: po.cast(n * 200000, po.i64) * n * n * n * n * 10**10 > -1,
}


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", WRAPPING)
def test_integers_of_64_bits_wrap_around_before_they_are_compared(kind: str, lanes: bool, dynamic: bool) -> None:
    """They were compared by their difference, or decided for a whole loop, as indices are, which do not overflow."""

    @po.op(dynamic=dynamic)
    def compared(x: po.f32[M, N]):
        z = po.tensor("z", shape=(M, N))
        z[i, j] = po.where(WRAPPING[kind](j if lanes else i), x[i, j], 0)
        return z

    compare(compared, (draw((24, 40), "f32", 1, 9, seed=1),))


def test_indices_may_have_the_names_of_the_compilers_own() -> None:
    """`i_tile` was the loop over tiles as well, and a schedule that did not tell them apart fell back."""
    high, wide = po.index("i_tile", extent=M), po.index("j_tile", extent=N)
    row, block, c = po.index("j_block", extent=M), po.index("i_block", extent=K), po.index("c", extent=K)
    near = po.index("near", extent=3)

    @po.op(target=replace(host(), l2_bytes=1 << 19))  # which holds no intermediate image
    def smoothed(x: po.f32[M, N]):
        along, z = po.tensors("along z")
        along[high, j] = po.sum(x.pad(0)[high, j + near - 1], near)
        z[i, wide] = po.sum(along.pad(0)[i + near - 1, wide], near)
        return z

    @po.op
    def attention(q: po.f32[M, N], k: po.f32[K, N]):
        s, top, p, z = po.tensors("s top p z")
        s[row, block] = po.sum(q[row, j] * k[block, j], j)
        top[row] = po.max(s[row, block], block)
        p[row, j] = po.sum(po.exp(s[row, c] - top[row]) * k[c, j], c)
        z[row, j] = p[row, j] / po.sum(po.exp(s[row, c] - top[row]), c)
        return z

    x = draw((300, 500), "f32", -3, 3, seed=1)
    assert not smoothed.lower(x).fallback and "computed in each" in str(smoothed.lower(x).fusion)
    np.testing.assert_array_equal(smoothed(x), smoothed.reference(x))
    q, k = draw((70, 8), "f32", -1, 1, seed=2), draw((900, 8), "f32", -1, 1, seed=3)
    assert not attention.lower(q, k).fallback
    np.testing.assert_allclose(attention(q, k), attention.reference(q, k), rtol=1e-5, atol=1e-6)


def test_a_sum_over_nothing_asks_for_no_offset() -> None:
    """The offset that products have in common was read all the same, outside its array."""

    @po.op
    def shifted(x: po.u8[M, K], w: po.i8[K, N], p: po.i32[K]):
        z = po.tensor("z")
        z[i, j] = po.sum((po.cast(x[i, k], po.i32) - p[0]) * po.cast(w[k, j], po.i32), k)
        return z

    for terms in (0, 5):
        x, w = draw((3, terms), "u8", 0, 9, seed=1), draw((terms, 4), "i8", -9, 9, seed=2)
        compare(shifted, (x, w, draw((terms,), "i32", 0, 9, seed=3)))


def test_a_proof_of_many_pieces_has_time_enough() -> None:
    """Twenty statements of this kind took isl a little more than the proof of one schedule might; no plan was left."""
    kk = po.index("kk", extent=K)

    @po.op
    def pieces(x: po.f32[M, N], w: po.f32[K], ids: po.i32[K]):
        a, b, c = po.tensor("a", shape=(N, K)), po.tensor("b"), po.tensor("c", shape=(M, N, K))
        d, e = po.tensor("d", shape=(N, K)), po.tensor("e", shape=(N, K))
        one = po.cast(1, po.f32)
        a[0, k] = po.where(
            (k // 2 + k) % 2 == 1, po.minimum(x.pad(1)[0, k], w[k]), x.pad(3)[2 * k + 2, k // 3 + k % 2] % 3 % 2
        )
        half, back = (j + k) // 2, j - 2 * k + 2
        near = po.where((half >= 0) & (half < K), w[half], one) % -3 + x.wrap()[-k - 2, j % 3]
        a[j, k] = po.when(j > 0, po.minimum(w[k], near))
        b[0, j, k] = po.sign(x.clamp()[j, j] // -3)
        beside = po.where((i < N) & (back >= 0) & (back < K), a[i, back], one)
        chosen = po.where(po.relu(w[k]) <= a[j, k], po.minimum(a.clamp()[j, k], beside), x[M - 1, j // 2])
        b[i, j, k] = po.when(i > 0, chosen)
        least = po.cast(po.argmin(x[ii, ids[k]] * 2, ii), po.f32)
        other = po.where(i >= 3, w[k], po.maximum(b[i, j, k], x[i, ids[k]]))
        c[i, j, k] = po.where((2 * k - i // 4) % 4 <= 0, least, other)
        at = po.where(2 * k + 1 < M, c[2 * k + 1, j, k], one)
        inner = po.where((jj == N - 1) & ((jj + j) % 3 == 1), at, w[k])
        d[j, k] += po.when(
            ~((jj + k < N) & (jj < k + 3)), (-c.clamp()[jj // 3 + k % 2, j // 2, j - 2 * k] + inner) // -2
        )
        lowest = po.min(d.pad(3)[j, (kk + jj) // 2], i, where=(jj != 0) | (jj == 0), init=2)
        e[j, k] += po.when(
            j + j < N, po.clip(po.maximum(a[j % 3, 0] + d.clamp()[j // 3 + k % 2, k], lowest) % 5, -1, 1)
        )
        wide = po.where(
            b.wrap()[k, j, k] > c.wrap()[jj - 2, jj - 2 * j, k], a.pad(3)[2 * j, k - 2], d.wrap()[j - 1, k] * k
        )
        e[j, k] += po.when(k < K - 1, po.clip(a.pad(0)[jj - j, k] // -3 % 4 + wide, -1, 1))
        return a, c, e

    args = draw((5, 17), "f32", -3, 3, seed=1), draw((9,), "f32", -3, 3, seed=2), draw((9,), "i32", 0, 16, seed=3)
    assert not pieces.lower(*args).settled.fallback


def test_a_plan_in_which_isl_loses_iterations_is_walked_as_the_one_that_is_run() -> None:
    """The loops of the plain plan were held against statements whose axes are joined."""
    M, N = po.sizes("M N")
    i, j = po.index("i", extent=M), po.index("j", extent=N)

    @po.op
    def counted(x: po.f64[M, N]):
        t = po.tensor("t", shape=(M, N), dtype=po.f64)
        t[i, j] += po.clip(po.cast(1, po.f64), -8, 8)
        return t

    compare(counted, (draw((5, 3), "f64", -3, 3, seed=1),), plans=(55480,))


def test_an_instance_that_isl_chooses_runs_under_a_guard() -> None:
    """Where `jj` leaves one `i`, isl's loops have the value of a choice, and the whole plan was given up."""
    M, N = po.sizes("M N")
    i, jj = po.index("i", extent=M), po.index("jj", extent=N)

    @po.op
    def counted(x: po.i8[M, N]):
        t = po.tensor("t", shape=(M,), dtype=po.f32)
        t[i] += po.when(((2 * i - jj // 2 + 2) % 4 <= 0) & ((i + jj) % 3 == 1), po.clip(po.cast(1, po.f32), -8, 8))
        return t

    x = draw((3, 9), "i8", -3, 3, seed=39262)
    assert not counted.lower(x).settled.fallback
    compare(counted, (x,), out="offset", plans=(14626,))


def test_a_hull_may_have_several_points_where_a_loop_has_one() -> None:
    """Then isl adds a loop that no mark names: `i + 2*ii` tells instances apart, and not the points of the hull."""
    M, N, K, T = po.sizes("M N K T")
    i, ii, j, t = (po.index(name, extent=extent) for name, extent in (("i", M), ("ii", M), ("j", N), ("t", T)))

    @po.op(numerics="strict")
    def counted(x: po.i32[M, N, K], steps: po.i32[T]):
        s = po.tensor("s", shape=(), dtype=po.i32)
        a = po.tensor("a", shape=(T + 1, N), dtype=po.i32)
        b = po.tensor("b", dtype=po.i32)
        s[()] += x.wrap()[ii, 2 - ii, ii - 2]
        s[()] += po.when((ii // 4 + i) % 4 == 1, po.cast(1, po.i32))
        a[0, j] = s[()]
        a[t + 1, j] = po.cast(1, po.i32)
        b[j] = a[T, j]
        return b

    args = draw((5, 1, 1), "i32", -3, 3, seed=41517), draw((1,), "i32", 0, 1, seed=0)
    compare(counted, args, plans=(40904,))


def test_tiles_of_a_domain_in_pieces_are_scanned_in_time() -> None:
    """isl took 420,000 operations, a tenth of a second, for the loops of four statements."""

    @po.op(dynamic=True)
    def corners(x: po.i16[M, N], z: po.i16[M, N, K]):
        t, y = po.tensor("t", shape=(M, N)), po.tensor("y", shape=(M, M), dtype=po.i16)
        inner = (i >= 2) & (j >= 2) & (j < N - 1)
        t[i, j] = po.where(inner, t[i - 1, j - 2], po.cast(po.sum(x[i, j], jj), po.i16))
        y[i, ii] = po.cast(1, po.i16)
        y[i, ii] = po.when(~(ii >= 0), po.cast(po.sum(t.wrap()[ii, i // 3 + ii % 2], k), po.i16))
        return y

    compare(corners, (draw((1, 1), "i16", -3, 3, seed=16326), draw((1, 1, 1), "i16", -3, 3, seed=32133)))
    assert corners.lower(M=5, N=6, K=2).fallback == ""


def test_two_wrapped_reads_in_a_long_expression_are_not_written_out_nine_times() -> None:
    """LLVM took 20 seconds for 19 vector bodies of 32 lanes, each with quotients and elements that lanes find alone."""

    @po.op(dynamic=True, numerics="strict", target=replace(preset("avx2"), l1_bytes=64, l2_bytes=256, l3_bytes=256))
    def long(x0: po.u8[M, N], x1: po.u8[K], steps: po.i32[T]):
        t = po.index("t", extent=T)
        t0, t1 = po.tensor("t0", shape=(T + 1, N), dtype=po.u8), po.tensor("t1", shape=(N,), dtype=po.u8)
        inner = (j > 0) & (j < N - 1)
        near = (x1.clamp()[j // 3 + j % 2] | x1[K - 1]) + t0[t, j - 1] + t0[t, j] + t0[t + 1, j - 1]
        t0[0, j] = x1.pad(1)[j + 1] // 2
        t0[t + 1, j] = po.where(inner, near, po.relu(x0.wrap()[(j + j) // 2, j + 2]) - t0[t, j])
        t1[j] = t0[T, j]
        return t1

    x0, x1 = draw((40, 32), "u8", 0, 6, seed=53933), draw((100,), "u8", 0, 255, seed=52052)
    compare(long, (x0, x1, draw((2,), "i32", 0, 1, seed=0)))
    assert long.lower().module.text.count("\n") < 6500, "9,232 with all remainders decided"


def test_strided_loops_that_start_at_one_of_many_places_are_read_back_in_time() -> None:
    """Which of `max(0, 8*((N - j_block + 2)//8) - 512, ...)` a loop of tiles starts at matters to none of its steps."""

    @po.op(dynamic=True)
    def some(x: po.i32[M, N]):
        y = po.tensor("y", dtype=po.f64)
        least = po.min(po.cast(1, po.f64), ii, where=(ii > N - j), init=1)
        y[i] += po.where((2 * j - i // 2 - 1) % 4 <= 1, x[i, j], least)
        return y

    x = draw((9, 8), "i32", -3, 3, seed=25838)
    assert not some.lower(x).settled.fallback
    compare(some, (x,), plans=(35972, 12062))


def test_a_few_statements_whose_domains_are_in_pieces_are_scanned_in_time() -> None:
    """`argmin` is wanted where the recurrence starts anew: rows of two kinds, and of one of them both ends."""

    @po.op(dynamic=True, target=preset("avx512"))
    def anew(x1: po.i32[K], x2: po.i32[N], x0: po.i32[M, N]):
        k = po.index("k", extent=K)
        t0 = po.tensor("t0", shape=(M, N), dtype=po.i32)
        nearest = po.cast(po.argmin(po.cast(i + 2, po.i32) - x2[j], k), po.i32)
        t0[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), t0[i, j - 1], nearest)
        return t0

    assert not anew.lower().settled.fallback
    draws = [draw(shape, "i32", -3, 3, seed=7) for shape in ((9,), (5,), (4, 5))]
    compare(anew.on("cpu"), tuple(draws), plans=(1, 2))
