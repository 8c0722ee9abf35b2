"""Sums over divided indices: split by remainders, the same numbers, nothing divided left."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, i32
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, FloorDiv
from polyopt.fusion import residues
from polyopt.fusion.rewrite import fold

H, R, C = po.sizes("H R C")
h, r, c = po.indices("h r c")


@po.op
def scattered(x: f32[C, H], f: f32[C, R]):
    """Every input element adds a scaled filter, two elements further on."""
    y = po.tensor("y")
    y[2 * h + r] += x[c, h] * f[c, r]
    return y


@po.op
def guarded(x: f32[C, H], f: f32[C, R]):
    y = po.tensor("y")
    d = po.index("d", extent=2 * H + R - 2)
    y[d] += po.when((d - r) % 2 == 0, x.pad(0)[c, (d - r) // 2] * f[c, r])
    return y


@po.op
def divided(x: f32[C, H], f: f32[C, R]):
    y = po.tensor("y")
    d, s = po.index("d", extent=2 * H + R - 2), po.index("s", extent=R // 2)
    y[d] += x.pad(0)[c, d // 2 - s] * f[c, 2 * s + d % 2]
    return y


@po.op
def overlapping(x: i32[C, H], f: i32[C, R]):
    """A full convolution: consecutive input elements add to overlapping windows."""
    y = po.tensor("y")
    y[h + r] += x[c, h] * f[c, r]
    return y


def transposed(x: Any, f: Any, step: int) -> Any:
    y = np.zeros(step * (x.shape[1] - 1) + f.shape[1], np.result_type(x, f))
    for at in range(x.shape[1]):
        y[step * at : step * at + f.shape[1]] += x[:, at] @ f
    return y


def arrays(width: int, taps: int, dtype: type = np.float32) -> tuple[Any, Any]:
    numbers = np.random.default_rng(width * 10 + taps)
    return (
        numbers.integers(-4, 5, (8, width)).astype(dtype),
        numbers.integers(-4, 5, (8, taps)).astype(dtype),
    )


def is_divided(program: ir.Program) -> bool:
    found = (affine for equation in program.equations for affine in residues._affines(equation))
    return any(isinstance(atom, FloorDiv) for affine in found for atom, _ in affine.terms)


@pytest.mark.parametrize("op", [scattered, guarded, divided])
@pytest.mark.parametrize(("width", "taps"), [(1, 2), (2, 4), (7, 4), (16, 4), (33, 2)])
def test_a_transposed_convolution_is_one_contraction_for_each_remainder(op: po.Op, width: int, taps: int) -> None:
    x, f = arrays(width, taps)
    np.testing.assert_array_equal(op(x, f), transposed(x, f, 2))
    program = op.lower(x, f).rewritten
    assert sum(equation.is_accumulation for equation in program.equations) == 2
    assert not is_divided(program)


@pytest.mark.parametrize(("width", "taps"), [(0, 3), (1, 1), (5, 3), (20, 3), (3, 20)])
def test_any_number_of_taps_and_elements(width: int, taps: int) -> None:
    x, f = arrays(width, taps)
    if width:
        np.testing.assert_array_equal(scattered(x, f), transposed(x, f, 2))
    x, f = arrays(width, taps, np.int32)
    if width:
        np.testing.assert_array_equal(overlapping(x, f), transposed(x, f, 1))


def test_terms_outside_a_scatter_are_left_out_and_not_multiplied_by_zero() -> None:
    """An infinite filter tap reaches the elements it is added to, and no other."""
    x, f = arrays(5, 4)
    f[:, 3] = np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(scattered(abs(x), f), transposed(abs(x), f, 2))


def test_elements_that_no_term_reaches_are_the_neutral_element() -> None:
    @po.op
    def spread(x: f32[C, H]):
        y = po.tensor("y")
        d = po.index("d", extent=3 * H)
        y[d] += po.when(d % 3 == 1, x[c, d // 3])
        return y

    x, _ = arrays(6, 1)
    wanted = np.zeros(18, np.float32)
    wanted[1::3] = x.sum(0)
    np.testing.assert_array_equal(spread(x), wanted)


def test_a_maximum_is_split_as_a_sum_is() -> None:
    @po.op
    def widest(x: f32[C, H]):
        y = po.tensor("y")
        d = po.index("d", extent=2 * H)
        y[d] = po.max(x[c, d // 2] * po.cast(d % 2 + 1, f32), c)
        return y

    x, _ = arrays(9, 1)
    np.testing.assert_array_equal(widest(x), (x.max(0)[:, None] * [1, 2]).ravel())


def test_strict_numerics_keep_the_order_of_the_terms() -> None:
    x, f = np.random.default_rng(0).random((8, 9), np.float32), np.random.default_rng(1).random((8, 4), np.float32)
    for op in (scattered, guarded, divided):
        strict = po.op(numerics="strict")(op.__wrapped__)
        np.testing.assert_array_equal(strict(x, f), strict.reference(x, f, numerics="strict"))


def test_symbolic_sizes_are_left_as_they_are() -> None:
    program = scattered.lower().program
    assert residues.split(program, fold, reorder=True) == program
    dynamic = po.op(dynamic=True)(scattered.__wrapped__)
    for width, taps in itertools.product((1, 6), (2, 3)):
        x, f = arrays(width, taps)
        np.testing.assert_array_equal(dynamic(x, f), transposed(x, f, 2))


def test_a_sum_of_few_terms_is_not_split() -> None:
    @po.op
    def pairs(x: f32[H, R]):
        y = po.tensor("y")
        d = po.index("d", extent=2 * H)
        y[d] += x[d // 2, r] * po.cast(d % 2, f32)
        return y

    program = pairs.lower(H=5, R=2).program
    assert residues.split(program, fold, reorder=True) == program


def test_multiples_of_an_axis_run_where_the_axis_did() -> None:
    for low, high, divisor in itertools.product(range(-3, 4), range(-3, 6), (2, 3, 5)):
        one = ir.Axis("a", (Affine(low),), (Affine(max(low, high)),))
        found = []
        for remainder in range(divisor):
            (thin,) = residues._thinned((one,), {"a": divisor}, {"a": remainder})
            found += [divisor * n + remainder for n in range(thin.lower[0].constant, thin.upper[0].constant)]
        assert sorted(found) == list(range(low, max(low, high)))


K = po.size("K")
k = po.index("k")


@po.op
def upsampled(x: f32[C, H], f: f32[C, K, 2], b: f32[K]):
    """A sum inside an expression: what follows it is applied to each part."""
    y, d = po.tensor("y"), po.index("d", extent=2 * H)
    y[k, d] = po.relu(po.sum(x[c, d // 2] * f[c, k, d % 2], c) - b[k] * (d % 2))
    return y


@pytest.mark.parametrize(("channels", "length"), [(8, 1), (9, 7), (16, 40)])
def test_a_sum_inside_an_expression_is_split(channels: int, length: int) -> None:
    random = np.random.default_rng(length)
    x, f, b = (random.integers(-3, 4, s).astype(np.float32) for s in ((channels, length), (channels, 5, 2), (5,)))
    wanted = np.maximum(np.einsum("ch,ckp->khp", x, f) - b[:, None, None] * np.arange(2), 0).reshape(5, -1)
    np.testing.assert_array_equal(upsampled(x, f, b), wanted)
    assert not is_divided(upsampled.lower(x, f, b).rewritten)


def test_narrow_sums_inside_an_expression_are_added_up_wide() -> None:
    """The parts hold what the sum is before it is rounded to its tensor's dtype."""

    @po.op
    def wide(x: f16[C, H], f: f16[C, 2]):
        y, d = po.tensor("y"), po.index("d", extent=2 * H)
        y[d] = po.sum(x[c, d // 2] * f[c, d % 2], c)
        return y

    random = np.random.default_rng(0)
    x, f = random.random((64, 21)).astype(np.float16), random.random((64, 2)).astype(np.float16)
    parts = [t for t in wide.lower(x, f).rewritten.tensors if "part" in t.name]
    assert [t.dtype for t in parts] == [f32, f32]
    exact = np.einsum("ch,cp->hp", x.astype(np.float64), f.astype(np.float64)).reshape(-1)
    np.testing.assert_allclose(wide(x, f), exact, rtol=2e-3)


def test_two_sums_in_one_expression_stay_as_they_are() -> None:
    @po.op
    def two(x: i32[C, H], f: i32[C, 2]):
        y, d = po.tensor("y"), po.index("d", extent=2 * H)
        y[d] = po.sum(x[c, d // 2] * f[c, d % 2], c) - po.sum(x[c, d // 2], c)
        return y

    x, f = np.arange(64, dtype=np.int32).reshape(16, 4) % 5, np.arange(32, dtype=np.int32).reshape(16, 2) % 7
    np.testing.assert_array_equal(two(x, f), two.reference(x, f))
    assert is_divided(two.lower(x, f).rewritten)


def test_conditions_around_a_sum_and_inside_it_stay() -> None:
    """A branch of `where` is not computed where it is not taken: what it reads may not exist there."""

    @po.op
    def edge(x: i32[C, H], f: i32[C, 2]):
        y, d = po.tensor("y"), po.index("d", extent=2 * H)
        y[d] = po.where(d >= 2, po.sum(x[c, d // 2 - 1] * f[c, d % 2], c), 9)
        return y

    @po.op
    def few(x: i32[C, H], f: i32[C, 2]):
        y, d = po.tensor("y"), po.index("d", extent=2 * H)
        y[d] = po.sum(x[c, d // 2] * f[c, d % 2], c, where=c <= d) + 1
        return y

    @po.op
    def some(x: i32[C, H], f: i32[C, 2]):
        y, d = po.tensor("y"), po.index("d", extent=2 * H)
        y[d] = po.when(d >= 2, po.sum(x[c, d // 2 - 1] * f[c, d % 2], c))
        y[d] = po.when(d < 2, 7)
        return y

    random = np.random.default_rng(0)
    x, f = random.integers(-3, 4, (9, 5)).astype(np.int32), random.integers(-3, 4, (9, 2)).astype(np.int32)
    for operator in (edge, few, some):
        np.testing.assert_array_equal(operator(x, f), operator.reference(x, f))
        assert not operator.lower(x, f).fallback
