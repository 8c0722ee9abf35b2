"""Long reductions with few results, shared out among threads: which ones, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i32, i64, u8
from polyopt.fusion import long_sums
from polyopt.target import host, preset

Array = np.ndarray[Any, Any]

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")
MACHINE = preset("avx512")
EAGER = replace(host(), parallel_ns=2)
"""This machine, as if its threads repaid every little work."""


def total(x: f32[N]):
    s = po.tensor("s")
    s[()] += x[i]
    return s


def norm(x: f64[N]):
    s = po.tensor("s")
    s[()] = po.sqrt(po.sum(x[i] * x[i], i))
    return s


def spread(x: f32[M, N]):
    mean, s = po.tensors("mean s")
    mean[()] = po.sum(x[i, j], (i, j)) / (M * N)
    s[()] = po.sum((x[i, j] - mean[()]) ** 2, (i, j)) / (M * N)
    return mean, s


def moments(x: f32[N]):
    """The last one takes longest, and would have more parts."""
    s, q, e = po.tensors("s q e")
    s[()] += x[i]
    q[()] += x[i] * x[i]
    e[()] = po.log(po.sum(po.exp(x[i]), i))
    return s, q, e


def columns(x: f32[M, N]):
    s = po.tensor("s")
    s[j] += x[i, j]
    return s


def rows(x: f32[M, N]):
    s = po.tensor("s")
    s[i] = po.max(x[i, j], j)
    return s


def least(x: i32[N]):
    s = po.tensor("s")
    s[()] = po.min(x[i], i)
    return s


def product(x: f64[N]):
    s = po.tensor("s")
    s[()] = po.prod(x[i], i)
    return s


def place(x: f32[N]):
    s = po.tensor("s")
    s[()] = po.argmax(x[i], i)
    return s


def distances(x: f32[N], y: f32[N]):
    far, near = po.tensors("far near")
    far[()] = po.max(po.abs(x[i] - y[i]), i)
    near[()] = po.sum(po.abs(x[i] - y[i]), i)
    return far, near


def counted(x: u8[N]):
    s = po.tensor("s")
    s[()] += po.cast(x[i], i32)
    return s


def made_beside(x: f32[N]):
    y, s = po.tensors("y s")
    y[i] = po.exp(x[i])
    s[()] += y[i]
    return y, s


def error_of_a_product(x: f32[M, 64], w: f32[64, N], t: f32[M, N]):
    y, s = po.tensors("y s")
    y[i, j] += x[i, k] * w[k, j]
    s[()] = po.sum((y[i, j] - t[i, j]) ** 2, (i, j))
    return s


def softmax(x: f32[N]):
    top, total, y = po.tensors("top total y")
    top[()] = po.max(x[i], i)
    total[()] += po.exp(x[i] - top[()])
    y[i] = po.exp(x[i] - top[()]) / total[()]
    return y


def softmax_of_rows(x: f32[M, N]):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = po.exp(x[i, j] - top[i]) / total[i]
    return y


def losses(x: f32[M, N], mean: f32[M], at: i64[M]):
    s = po.tensor("s")
    s[i] = po.sum((x[i, j] - mean[i]) ** 2, j) + x[i, at[i]]
    return s


def halves(x: f32[N]):
    s = po.tensor("s")
    s[()] = po.sum(x[i], i, where=i < N // 2)
    return s


def plan(define: Callable[..., Any], dynamic: list[str] | None = None, **sizes: int) -> list[str]:
    lowering = po.op(dynamic=dynamic or [])(define).lower(target=MACHINE, **sizes)
    assert lowering.fallback == ""
    return [line.strip() for line in str(lowering.report()).splitlines() if ": few results" in line]


def test_a_long_sum_has_parts_for_the_threads() -> None:
    assert plan(total, N=10**7) == ["s: 16 partial sums of 625024 terms along i: few results, and x to pass over"]
    lowering = po.op(total).lower(N=10**7, target=MACHINE)
    (loop,) = lowering.mapping.parallel
    assert (loop.name, loop.chunk) == ("i_part", 1)
    assert plan(total, N=400_000) == ["s: 8 partial sums of 50048 terms along i: few results, and x to pass over"]
    assert plan(total, N=100_000) == [], "a core's own cache gives them as fast"


def test_of_an_open_size_the_terms_of_a_part_are_fixed() -> None:
    (found,) = plan(total, ["N"])
    assert found.startswith("s: (N + 32767)//32768 partial sums of 32768 terms along i")
    lowering = po.op(dynamic=True)(total).lower(target=MACHINE)
    assert [loop.name for loop in lowering.mapping.parallel] == ["i_part"]


def test_parts_are_of_the_longest_axis_and_results_in_lanes_count_as_one() -> None:
    assert plan(columns, M=10**5, N=64)[0].startswith("s: 16 partial sums of 6272 terms along i")
    assert plan(columns, ["M"], N=64)[0].startswith("s: (M + 511)//512 partial sums of 512 terms along i")
    assert plan(columns, M=10**4, N=8192) == [], "strips of columns are work enough"
    assert plan(columns, ["N"], M=10**4) == [], "and may be"
    assert plan(rows, M=4, N=10**6)[0].startswith("s: 16 partial maxima of 62528 terms along j")
    assert plan(rows, M=64, N=10**6) == [] and plan(rows, ["M"], N=10**6) == []
    assert plan(losses, M=512, N=2048) == [], "what each row reads once runs along the rows, and they do not"
    assert len(plan(spread, M=2000, N=3000)) == 2
    lowering = po.op(columns).lower(M=10**5, N=64, target=MACHINE)
    assert [loop.name for loop in lowering.mapping.parallel] == ["i_part"]


def test_what_is_made_or_used_as_it_passes_by_stays_whole() -> None:
    assert plan(made_beside, N=10**7) == [] and plan(halves, N=10**7) == []
    assert plan(error_of_a_product, M=2000, N=2100) == []
    assert plan(softmax_of_rows, M=4, N=20_000) == [], "a row's exponentials are kept for the quotients"
    assert po.op(numerics="strict")(total).lower(N=10**7).report().temporary_bytes == 0


def test_reductions_of_one_array_still_pass_over_it_once() -> None:
    """In parts of their own a sum and a sum of squares took two passes, twice as long on one thread."""
    for dynamic in ([], ["N"]):
        lowering = po.op(dynamic=dynamic)(moments).lower(target=MACHINE, **({} if dynamic else {"N": 10**6}))
        assert str(lowering.loops).count("parallel for") == 1 and lowering.fallback == ""
        found = [line.partition(": ")[2] for line in str(lowering.report()).splitlines() if ": few results" in line]
        assert len(found) == 3 and len({line.split(" of ")[1] for line in found}) == 1


def test_a_reduction_that_is_split_already_is_left_alone() -> None:
    program = po.op(total).lower(N=10**7, target=MACHINE).program
    assert long_sums.decide(program, MACHINE) and not long_sums.decide(program, MACHINE, {"s"})


@pytest.mark.parametrize("dynamic", [[], True], ids=["known", "open"])
@pytest.mark.parametrize(
    "define", [total, norm, least, product, place, distances, counted, moments, made_beside, softmax, halves]
)
def test_vectors_of_any_length(polyopt_check: Any, define: Callable[..., Any], dynamic: Any) -> None:
    op = po.op(dynamic=dynamic, target=EAGER)(define)
    for length in (1, 15, 16, 17, 64, 100, 1000, 2049):
        polyopt_check(op, N=length)


@pytest.mark.parametrize("dynamic", [[], ["M"], ["N"], True], ids=str)
@pytest.mark.parametrize("define", [spread, columns, rows])
def test_matrices_of_any_shape(polyopt_check: Any, define: Callable[..., Any], dynamic: Any) -> None:
    op = po.op(dynamic=dynamic, target=EAGER)(define)
    for shape in ((1, 1), (3, 100), (100, 3), (64, 64), (7, 1000), (1000, 7)):
        polyopt_check(op, M=shape[0], N=shape[1])


def test_a_sum_of_nothing_is_zero_and_a_nan_reaches_the_result() -> None:
    op = po.op(dynamic=True, target=EAGER)(total)
    assert op(np.ones(0, np.float32)) == 0
    x = np.ones(1000, np.float32)
    x[777] = np.nan
    assert np.isnan(op(x)) and op(x[:777]) == 777
