"""The enumeration behind `po.strict_checks()` finds faults that are planted in a loop program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import api, f64, strict
from polyopt.loops.ir import Block, For, Load, LoopProgram, Store, integer, walk_expr

K, M, N = po.sizes("K M N")
r, c = po.indices("r c")
t = po.index("t", 1, N)


@po.op
def running_sum(x: f64[N]):
    y = po.tensor("y")
    y[0] = x[0]
    y[t] = y[t - 1] + x[t]
    return y


@dataclass(frozen=True)
class Faulty:
    """A lowering whose loops were changed."""

    loops: LoopProgram
    scop: Any
    dependences: Any
    program: Any
    tree: Any
    storage: Any


def parts(loops: LoopProgram) -> tuple[Any, For]:
    assert isinstance(loops.body, Block)
    first, loop = loops.body.body
    assert isinstance(loop, For)
    return first, loop


def with_body(loops: LoopProgram, *body: Any) -> LoopProgram:
    return replace(loops, body=Block(body))


def changed(loops: LoopProgram, **fields: Any) -> LoopProgram:
    first, loop = parts(loops)
    return with_body(loops, first, replace(loop, **fields))


FAULTS: dict[str, Callable[[LoopProgram], LoopProgram]] = {
    "an iteration too many": lambda loops: changed(loops, upper=integer(7)),
    "an iteration too few": lambda loops: changed(loops, upper=integer(5)),
    "a parallel mark on a recurrence": lambda loops: changed(loops, kind="parallel"),
    "a vector mark on a recurrence": lambda loops: changed(loops, kind="vector"),
    "the start after the steps": lambda loops: with_body(loops, *reversed(parts(loops))),
    "an iteration twice": lambda loops: with_body(loops, *parts(loops), replace(parts(loops)[1], lower=integer(5))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    lowering = running_sum.lower(N=6)
    inputs = {"x": np.arange(6.0)}
    strict.check(lowering, {"N": 6}, inputs)
    loops = FAULTS[fault](lowering.loops)
    faulty: Any = Faulty(loops, lowering.scop, lowering.dependences, lowering.program, lowering.tree, lowering.storage)
    with pytest.raises(po.LegalityError):
        strict.check(faulty, {"N": 6}, inputs)


def test_a_dynamic_kernel_is_walked_at_the_sizes_of_the_call() -> None:
    lowering = running_sum.lower()
    strict.check(lowering, {"N": 5}, {"x": np.arange(5.0)})
    assert strict.points(lowering.scop.statements[-1], {"N": 5})
    (dependence, *_) = lowering.dependences.ordered
    assert list(strict.pairs(dependence, lowering.scop, {"N": 3}))


def test_wrong_values_are_found_and_the_element_is_named() -> None:
    lowering, inputs = running_sum.lower(N=6), {"x": np.arange(6.0)}
    strict.check_results(lowering, {"N": 6}, inputs, [np.cumsum(np.arange(6.0))])
    wrong = np.cumsum(np.arange(6.0))
    wrong[4] += 1e-12
    with pytest.raises(po.LegalityError) as failure:
        strict.check_results(lowering, {"N": 6}, inputs, [wrong])
    assert failure.value.facts["index"] == (4,)


def test_strict_numerics_allow_no_difference() -> None:
    lowering = po.op(numerics="strict")(running_sum.__wrapped__).lower(N=6)
    wrong = np.cumsum(np.full(6, 0.1))
    strict.check_results(lowering, {"N": 6}, {"x": np.full(6, 0.1)}, [wrong])
    wrong[5] = np.nextafter(wrong[5], 1)
    with pytest.raises(po.LegalityError):
        strict.check_results(lowering, {"N": 6}, {"x": np.full(6, 0.1)}, [wrong])


def test_the_machine_codes_own_results_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    op = po.op(running_sum.__wrapped__)
    x = np.arange(9.0)
    with po.strict_checks():
        assert (op(x) == np.cumsum(x)).all()

    def zeros(_: Any, inputs: Any, outs: Any) -> list[Any]:
        return [np.zeros(len(inputs["x"]))]

    monkeypatch.setattr(api, "_results", zeros)
    with po.strict_checks(), pytest.raises(po.LegalityError):
        op(np.arange(7.0))
    assert (op(np.arange(7.0)) == np.cumsum(np.arange(7.0))).all()


@po.op
def doubled(x: f64[M, N]):
    y = po.tensor("y")
    y[r, c] = x[r, c] * 2
    return y


def packed(m: int, n: int) -> Any:
    """An array whose elements lie at odd addresses."""
    return np.zeros((m, n), [("tag", "i1"), ("value", "f8")])["value"]


OUTS: dict[str, Callable[[int, int], Any]] = {
    "every fortieth row": lambda m, n: np.zeros((m * 40, n))[::40],
    "transposed": lambda m, n: np.zeros((n, m)).T,
    "backwards": lambda m, n: np.zeros((m, n))[::-1, ::-1],
    "every third column, backwards": lambda m, n: np.zeros((m, 3 * n))[:, ::-3],
    "unaligned": packed,
}


@pytest.mark.parametrize("place", OUTS)
def test_results_are_checked_where_they_lie_as_in_out(place: str) -> None:
    op = po.op(doubled.__wrapped__)
    x, out = np.random.default_rng(0).random((10, 12)), OUTS[place](10, 12)
    with po.strict_checks():
        assert op(x, out=out) is out
    np.testing.assert_array_equal(out, 2 * x)


def test_a_checked_call_stays_inside_the_memory_of_its_results() -> None:
    code = """if True:
        import numpy as np, polyopt as po
        from tests.test_strict import OUTS, doubled
        x, out = np.ones((300, 64)), OUTS["every fortieth row"](300, 64)
        with po.strict_checks():
            doubled(x, out=out)
        assert (out == 2).all()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]


def test_large_calls_are_not_walked_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    x = np.ones(strict.MOST_INSTANCES + 1)
    with po.strict_checks():
        assert po.op(running_sum.__wrapped__)(x)[-1] == x.size
    assert "smaller arrays" in caplog.text


def test_dependences_of_many_pairs_are_not_enumerated_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chained products of n**3 instances relate n**4 pairs: minutes and gigabytes."""
    monkeypatch.setattr(strict, "MOST_PAIRS", 100)
    i, j, k = po.indices("i j k")

    @po.op
    def chain(a: f64[N, N]):
        t, y = po.tensors("t y")
        t[i, j] += a[i, k] * a[k, j]
        y[i, j] = po.sum(t[i, k] * a[k, j], k)
        return y

    a = np.ones((4, 4))
    with po.strict_checks():
        assert (chain(a) == 16).all()
    assert "relates 256 pairs" in caplog.text


def test_subscripts_that_the_kernel_computes_are_checked_by_running_the_loops() -> None:
    i, j = po.indices("i j")

    @po.op
    def largest(x: f64["M", "N"]):  # noqa: UP037 - strings name sizes
        where, y = po.argmax(x, axis=1), po.tensor("y")
        y[i] = x[i, where[i]] + 0 * po.max(x[i, j], j)
        return y

    x = np.random.default_rng(0).standard_normal((4, 5))
    with po.strict_checks():
        assert (largest(x) == x.max(1)).all()


i = po.index("i", 0, N)


@po.op
def mixed(x: f64[N], y: f64[N], m: po.bool_[N]):
    a, b, c, d, e = po.tensors("a b c d e")
    a[i] = po.where(po.cast(i, po.i64) > 3, x[i], y[i])
    b[i] = po.where(po.where(i < 3, m[i], False), x[i], y[i])
    c[i] = po.where((i * i > 9) & m[i], x[i], y[i])
    d[i] = po.where(m[i], x[i], y[i])
    e[i] = po.where(m.pad(1)[-1 - i], x[i], y[i])
    return a, b, c, d, e


def test_an_element_that_no_branch_needs_may_be_left_unread() -> None:
    """Loops are cut where a choice is decided, and the branch that is not taken is gone: that was called illegal."""
    x, m = np.arange(40.0), np.arange(40) % 2 == 0
    with po.strict_checks():
        results = mixed(x, -x, m)
    place = np.arange(40)
    chosen = (place > 3, (place < 3) & m, (place > 3) & m, m, place >= 0)
    for result, where in zip(results, chosen, strict=True):
        assert (result == np.where(where, x, -x)).all()


@po.op
def beside(w: f64[M, K], at: po.i32[N]):
    z = po.tensor("z")
    z[i] = w.pad(1)[at[i], i - 40]
    return z


def test_where_in_the_padding_an_element_lies_may_be_left_unread() -> None:
    """The first 40 are 1, whatever `at` holds: that nobody looks there was called illegal."""
    with po.strict_checks():
        result = beside(np.zeros((1, 4)), np.zeros(64, np.int32))
    assert (result == [i not in range(40, 44) for i in range(64)]).all()


def test_an_element_that_data_may_choose_must_be_read() -> None:
    @po.op
    def chosen(x: f64[N], y: f64[N], m: po.bool_[N]):
        z = po.tensor("z")
        z[i] = po.where(m[i], x[i], y[i])
        return z

    lowering = chosen.lower(N=6)
    inputs = {"x": np.arange(6.0), "y": np.arange(6.0), "m": np.ones(6, bool)}
    strict.check(lowering, {"N": 6}, inputs)
    loop = lowering.loops.body
    assert isinstance(loop, For) and isinstance(loop.body, Store)
    only_x = next(node for node in walk_expr(loop.body.value) if isinstance(node, Load) and node.buffer == "x")
    loops = replace(lowering.loops, body=replace(loop, body=replace(loop.body, value=only_x)))
    faulty: Any = Faulty(loops, lowering.scop, lowering.dependences, lowering.program, lowering.tree, lowering.storage)
    with pytest.raises(po.LegalityError) as failure:
        strict.check(faulty, {"N": 6}, inputs)
    assert "does not read" in str(failure.value)


def test_the_plan_that_was_fallen_back_to_is_the_one_that_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows axes apart that the richer one has joined: the loops of one were held against the statements of the
    other."""
    i, j, k = po.indices("i j k")

    @po.op
    def summed(x: f64[M, N, K]):
        y = po.tensor("y")
        y[i, j] += x[i, j, k]
        return y

    monkeypatch.setattr("polyopt.pipeline.MOST_LINES", 1)
    x = np.arange(30.0).reshape(3, 5, 2)
    lowering = summed.lower(x)
    assert lowering.fallback and lowering.scop.statement("y_update").axes == ("i_j", "k")
    with po.strict_checks():
        np.testing.assert_array_equal(summed(x), x.sum(2))
