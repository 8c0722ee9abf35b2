"""Sums that follow a maximum in one pass: what is found, what stays as it is, and that the numbers are the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyopt as po
from polyopt.dsl import ir
from polyopt.dtypes import f32
from polyopt.errors import ScheduleError
from polyopt.fusion import cascade, lift, rescale, rewrite, running
from polyopt.fusion.rescale import Rescale
from polyopt.pipeline import Lowering
from polyopt.reference import evaluate

h, i, j, d, g = po.indices("h i j d g")
M, N, D, E = po.sizes("M N D E")
Array = np.ndarray[Any, Any]


@po.op
def plain(q, k, v):
    s, m, w, y = po.tensors("s m w y")
    s[i, j] = po.sum(q[i, d] * k[j, d], d) * 0.25
    m[i] = po.max(s[i, j], j)
    w[i, j] = po.exp(s[i, j] - m[i])
    y[i, d] = po.sum(w[i, j] * v[j, d], j) / po.sum(w[i, j], j)
    return y


@po.op
def causal(q, k, v):
    s, m, w, y = po.tensors("s m w y")
    s[i, j] = po.when(j <= i, po.sum(q[i, d] * k[j, d], d))
    m[i] = po.max(s[i, j], j, where=j <= i)
    w[i, j] = po.when(j <= i, po.exp(s[i, j] - m[i]))
    y[i, d] = po.sum(w[i, j] * v[j, d], j, where=j <= i) / po.sum(w[i, j], j, where=j <= i)
    return y


@po.op
def window(q, k, v):
    """Positions i - 10 to i."""
    s, m, w, y = po.tensors("s m w y")
    near = (j <= i) & (j >= i - 10)
    s[i, j] = po.when(near, po.sum(q[i, d] * k[j, d], d))
    m[i] = po.max(s[i, j], j, where=near)
    w[i, j] = po.when(near, po.exp(s[i, j] - m[i]))
    y[i, d] = po.sum(w[i, j] * v[j, d], j, where=near) / po.sum(w[i, j], j, where=near)
    return y


@po.op
def masked(q, k, v):
    """In sugar, with the mask as a value."""
    s = po.tensor("s")
    s[i, j] = po.where(j >= i, po.sum(q[i, d] * k[j, d], d), -math.inf)
    return po.softmax(s) @ v


@po.op
def capped_inline(q, k, v):
    """Scores between -5 and 5, the maximum inside the summand."""
    s, y = po.tensors("s y")
    s[i, j] = 5 * po.tanh(po.sum(q[i, d] * k[j, d], d) / 5)
    y[i, d] = po.sum(po.exp(s[i, j] - po.max(s[i, j], j)) * v[j, d], j)
    return y


@po.op
def least_of_two(q, k, v):
    """Weights of base 2 that fall with the score, and its least value as a result too."""
    s, m, y = po.tensors("s m y")
    s[i, j] += q[i, d] * k[j, d]
    m[i] = po.min(s[i, j], j)
    y[i, d] += po.exp2((m[i] - s[i, j]) * 0.5) * v[j, d]
    return y, m


OPERATORS = (plain, causal, window, masked, capped_inline, least_of_two)


def one_pass(program: ir.Program, tile: tuple[int, int] = (4, 3)) -> ir.Program:
    """The program with its one cascade, in small blocks."""
    lifted = lift.maxima(rewrite.rewrite(program))
    plans = (cascade.decide(lifted, tensor.name, tile=tile, kept_bytes=0) for tensor in lifted.tensors)
    plan = next(plan for plan in plans if plan is not None)
    return running.apply(lifted, plan)[0]


def inputs(rows: int, columns: int, depth: int, scale: float = 1.0, seed: int = 0) -> list[Array]:
    draw = np.random.default_rng(seed).standard_normal
    return [draw((n, depth), np.float32) * np.float32(scale) for n in (rows, columns, columns)]


def both(
    operator: po.Op, arrays: list[Array], tile: tuple[int, int] = (4, 3)
) -> tuple[dict[str, Array], dict[str, Array]]:
    program = operator.lower(*arrays).program
    named = dict(zip(program.parameters, arrays, strict=True))
    return evaluate(program, named), evaluate(one_pass(program, tile), named)


@pytest.mark.parametrize("operator", OPERATORS, ids=[o.__name__ for o in OPERATORS])
def test_one_pass_gives_what_the_equations_say(operator: po.Op) -> None:
    expected, found = both(operator, inputs(17, 17, 3))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    operator=st.sampled_from((plain, masked, capped_inline, least_of_two)),
    rows=st.integers(16, 24),
    columns=st.integers(1, 14),
    tile=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    scale=st.sampled_from((0.0, 1.0, 100.0)),
    special=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((np.nan, np.inf, -np.inf, 1e30))), max_size=2),
    seed=st.integers(0, 1000),
)
def test_random_cascades_are_the_definition_special_values_included(
    operator: po.Op,
    rows: int,
    columns: int,
    tile: tuple[int, int],
    scale: float,
    special: list[tuple[int, float]],
    seed: int,
) -> None:
    columns = rows if operator is masked else columns
    arrays = inputs(rows, columns, 2, scale, seed)
    random = np.random.default_rng(seed)
    for which, value in special:
        arrays[which][random.integers(len(arrays[which])), random.integers(2)] = value
    expected, found = both(operator, arrays, tile)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-300)


def test_scores_that_are_minus_infinity_up_to_some_point_do_not_matter() -> None:
    q, k, v = inputs(16, 12, 1)
    q[:] = 1
    k[:7] = -np.inf  # whole blocks of nothing first
    expected, found = both(plain, [q, k, v])
    assert np.isfinite(expected["y"]).all()
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-9)
    k[:] = -np.inf  # nothing at all: the definition says NaN
    expected, found = both(plain, [q, k, v])
    assert np.isnan(expected["y"]).all() and np.isnan(found["y"]).all()


def softmax_of(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@po.op
def grouped(q, k, v, bias):
    s, m, w, y = po.tensors("s m w y")
    s[g, h, i, j] = po.sum(q[g, h, i, d] * k[g, j, d], d) + bias[i, j]
    m[g, h, i] = po.max(s[g, h, i, j], j)
    w[g, h, i, j] = po.exp(s[g, h, i, j] - m[g, h, i])
    y[g, h, i, d] = po.sum(w[g, h, i, j] * v[g, j, d], j) / po.sum(w[g, h, i, j], j)
    return y


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["ordinary", "scores of 1e4"])
def test_attention_allocates_no_array_of_scores(scale: float) -> None:
    n = 200
    draw = np.random.default_rng(1).standard_normal
    q, k, v = (draw((n, 12), np.float32) * np.float32(scale) for _ in range(3))
    lowering = causal.lower(q, k, v)
    assert not lowering.fallback
    report = lowering.report()
    assert report.temporary_bytes == 0
    assert isinstance(report.private_bytes, int) and report.private_bytes <= 4 * 96 * 96 * 4
    assert "one pass over j" in str(report)
    scores = q.astype(np.float64) @ k.T.astype(np.float64)
    scores[~np.tri(n, dtype=bool)] = -np.inf
    np.testing.assert_allclose(causal(q, k, v), softmax_of(scores) @ v, rtol=2e-3 * scale, atol=2e-4 * scale)


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_tiles_along_rows_fill_a_block_of_rows_without_a_rest(target: str) -> None:
    lowering = causal.lower(*inputs(256, 256, 64), target=target)
    block = 96
    assert f"{block} x {block} points at a time" in str(lowering.report())
    columns = {dict(nest.tiles)[nest.vector] for nest in lowering.tiling.nests if nest.vector in ("i#2", "i#3")}
    assert columns and all(block % points == 0 for points in columns)


def test_grouped_heads_share_their_keys_and_a_bias_is_turned_by_block() -> None:
    draw = np.random.default_rng(1).standard_normal
    q, k, v = draw((2, 2, 100, 8), np.float32), draw((2, 130, 8), np.float32), draw((2, 130, 8), np.float32)
    bias = draw((100, 130), np.float32)
    lowering = grouped.lower(q, k, v, bias)
    assert not lowering.fallback and lowering.report().temporary_bytes == 0
    expected = softmax_of(np.einsum("ghid,gjd->ghij", q, k) + bias) @ v[:, None]
    np.testing.assert_allclose(grouped(q, k, v, bias), expected, rtol=1e-3, atol=1e-4)


def test_rows_that_share_no_keys_are_no_block() -> None:
    """One query for each of many heads, as a decoder has it: a block of heads would read keys a head apart."""

    @po.op
    def decode(q: f32[M, D], keys: f32[M, N, D], v: f32[M, N, D]):
        s, y = po.tensors("s y")
        s[i, j] = po.sum(q[i, d] * keys[i, j, d], d)
        weights = po.softmax(s, axis=-1)
        y[i, d] += weights[i, j] * v[i, j, d]
        return y

    report = str(decode.lower(M=32, N=2048, D=128).report())
    assert "one pass" not in report and "i: parallel" in report
    random = np.random.default_rng(0)
    q, keys, v = (random.standard_normal(shape, np.float32) for shape in ((20, 8), (20, 96, 8), (20, 96, 8)))
    weights = softmax_of(np.einsum("id,ijd->ij", q, keys))
    np.testing.assert_allclose(decode(q, keys, v), np.einsum("ij,ijd->id", weights, v), rtol=1e-5, atol=1e-5)


def test_excluded_points_neither_poison_nor_are_read_as_values() -> None:
    q, k, v = inputs(200, 200, 4)
    v[150:] = np.nan
    k[150:] = np.nan
    got = causal(q, k, v)
    assert np.isfinite(got[:150]).all() and np.isnan(got[150:]).all()


def test_one_pass_runs_with_sizes_unknown() -> None:
    @po.op(dynamic=True)
    def dynamic(q: f32[M, D], k: f32[N, D], v: f32[N, E]):
        s, m, y = po.tensors("s m y")
        s[i, j] = po.sum(q[i, d] * k[j, d], d)
        m[i] = po.max(s[i, j], j)
        y[i, d] = po.sum(po.exp(s[i, j] - m[i]) * v[j, d], j) / po.sum(po.exp(s[i, j] - m[i]), j)
        return y

    for rows, columns in ((200, 150), (96, 97), (1, 1)):
        q, k, v = inputs(rows, columns, 8)
        lowering = dynamic.lower(q, k, v)
        assert not lowering.fallback and "one pass" in str(lowering.fusion)
        np.testing.assert_allclose(dynamic(q, k, v), softmax_of(q @ k.T) @ v, rtol=1e-4, atol=1e-5)


def test_strict_numerics_keep_the_passes_apart() -> None:
    @po.op(numerics="strict")
    def strict(q, k, v):
        s, m, y = po.tensors("s m y")
        s[i, j] = po.sum(q[i, d] * k[j, d], d)
        m[i] = po.max(s[i, j], j)
        y[i, d] = po.sum(po.exp(s[i, j] - m[i]) * v[j, d], j)
        return y

    lowering = strict.lower(*inputs(200, 200, 4))
    assert "one pass" not in str(lowering.fusion)


def test_scores_that_something_else_needs_stay_an_array() -> None:
    @po.op
    def with_scores(q, k, v):
        s, m, y = po.tensors("s m y")
        s[i, j] = po.sum(q[i, d] * k[j, d], d)
        m[i] = po.max(s[i, j], j)
        y[i, d] = po.sum(po.exp(s[i, j] - m[i]) * v[j, d], j)
        return y, po.sum(s, axis=0)

    assert "one pass" not in str(with_scores.lower(*inputs(200, 200, 4)).fusion)


def test_parts_that_cannot_share_loops_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyopt.fusion.decide.can_share", lambda *_: False)
    lowering = plain.lower(*inputs(200, 200, 4))
    assert isinstance(lowering, Lowering)
    try:
        assert "one pass" not in str(lowering.fusion)
    except ScheduleError:  # pragma: no cover
        pytest.fail("the plain program must remain")


# --- the factor ---------------------------------------------------------------------------------------------------

M_, X_, B_ = (ir.Read(name, (), f32) for name in "mxb")


def op(name: str, *args: ir.Expr) -> ir.Expr:
    return ir.Op(name, args, f32)


@pytest.mark.parametrize(
    ("summand", "rule"),
    [
        (op("exp", op("sub", X_, M_)), Rescale("exp", 1.0)),
        (op("exp2", op("sub", op("add", X_, B_), M_)), Rescale("exp2", 1.0)),
        (op("exp", op("mul", op("sub", X_, M_), ir.Const(0.125, f32))), Rescale("exp", 0.125)),
        (op("exp", op("sub", M_, X_)), Rescale("exp", -1.0)),
        (op("truediv", ir.Const(1.0, f32), op("exp", op("sub", M_, X_))), Rescale("exp", 1.0)),
        (op("sub", X_, M_), None),
        (op("exp", op("mul", X_, M_)), None),
        (op("mul", op("sub", X_, M_), op("sub", X_, M_)), None),
    ],
)
def test_the_factor_by_which_a_summand_moves(summand: ir.Expr, rule: Rescale | None) -> None:
    assert rescale.solve(summand, lambda expr: expr == M_) == rule


@pytest.mark.parametrize("name", ["d", "i_block", "j_block"])
def test_loops_over_blocks_take_no_axis_s_name(name: str) -> None:
    e = po.index(name)

    @po.op
    def attention(q: f32[M, D], k: f32[N, D], v: f32[N, E]):
        s, m, z, y = po.tensors("s m z y")
        s[i, j] += q[i, d] * k[j, d]
        m[i] = po.max(s[i, j], j)
        z[i] = po.sum(po.exp(s[i, j] - m[i]), j)
        y[i, e] = po.sum(po.exp(s[i, j] - m[i]) * v[j, e], j) / z[i]
        return y

    lowering = attention.lower(M=500, N=500, D=32, E=32)
    assert not lowering.fallback


@po.op
def behind_an_edge(x: f32[M, N], y: f32[M, N]):
    z, row = po.tensor("z", shape=(M,)), po.index("row", extent=M)
    z[row] = po.sum(po.exp(x[row, j] - po.max(y[row - 1, d], d)), j, where=row >= 1)
    return z


@po.op
def below_the_diagonal(x: f32[M, N], y: f32[M, N]):
    z = po.tensor("z")
    z[i] = po.sum(po.exp(x[i, j] - po.max(y[i, d], d)), j, where=j <= i)
    return z


def test_a_maximum_is_taken_in_no_row_without_summands() -> None:
    """Row 0 of the sum is empty, and the maximum would be of row -1 of y."""
    program = behind_an_edge.lower(M=5, N=9).program
    assert lift.maxima(program) is program
    lifted = lift.maxima(below_the_diagonal.lower(M=5, N=9).program)
    assert [tensor.name for tensor in lifted.tensors if tensor.role == "local"] == ["z_max"]
