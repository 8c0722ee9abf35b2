"""The fixture `polyopt_check` passes right ops and fails wrong ones, saying where."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64, i32, i64
from polyopt.reference.compare import Tolerance, difference, flatten, rebuild
from polyopt.testing.check import Checker
from polyopt.testing.guarded import guarded, guarded_copy, survives
from polyopt.testing.inputs import random_inputs, subscript_ceilings

pytest_plugins = ["pytester"]

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
RNG = np.random.default_rng(0)


@po.op
def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


@po.op
def both(x: f64[N], alpha: f64, steps: int = 2):
    s, d = po.tensors("s d")
    s[()] += x[i]
    d[i] = x[i] * alpha * steps
    return {"sum": s, "scaled": d}


@po.op
def lookup(table: f32[M, N], ids: i64[K], shift: i32[K]):
    y = po.tensor("y")
    y[k, j] = table[ids[k], j] + po.cast(shift[k], f32)
    return y


@po.op
def rounded(x: f16[N]):
    y = po.tensor("y")
    y[i] = po.exp(x[i]) / 3
    return y


@po.op
def root(x: f64[N]):
    y = po.tensor("y")
    y[i] = po.sqrt(x[i])
    return y


@po.op(numerics="strict")
def strict_sum(x: f32[M, N]):
    y = po.tensor("y")
    y[i] += x[i, j]
    return y


@pytest.mark.parametrize("op", [linear_relu, lookup, rounded, root, strict_sum], ids=lambda op: op.signature.name)
def test_right_ops_pass_on_random_inputs(op, polyopt_check):
    sizes = {"M": 5, "N": 7, "K": 6}
    polyopt_check(op, **{name: size for name, size in sizes.items() if name in str(op.signature)})


def test_right_ops_pass_on_given_arrays(polyopt_check):
    x, w, b = (RNG.random(shape).astype(np.float32) for shape in [(5, 6), (6, 7), (7,)])
    result = polyopt_check(linear_relu, x, w, b, expected=np.maximum(x @ w + b, 0))
    assert result.dtype == np.float32
    polyopt_check(linear_relu, x=x[::-1], w=w, b=b)


def test_structures_scalars_and_constants(polyopt_check):
    polyopt_check(both, N=9, alpha=2.5)
    polyopt_check(both, N=9, alpha=2.5, steps=4)
    x = RNG.random(9)
    polyopt_check(both, x, 0.5, expected={"sum": x.sum(), "scaled": x})


def test_sizes_zero_and_one(polyopt_check):
    for size in (0, 1):
        polyopt_check(linear_relu, M=size, N=1, K=size)
    polyopt_check(linear_relu, M=3, N=0, K=2)


def test_fixed_inputs_replace_random_ones(polyopt_check):
    table = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    result = polyopt_check(lookup, M=3, N=2, K=4, inputs={"table": table, "shift": np.zeros(4, np.int32)})
    assert set(result[:, 0]) <= {0.0, 2.0, 4.0}


class Gain:
    factor = 3.0

    @po.op
    def apply(self, x: f64[N], /):
        return x * self.factor


def test_methods_and_positional_only_parameters_are_checked(polyopt_check):
    np.testing.assert_array_equal(polyopt_check(Gain().apply, np.ones(3)), np.full(3, 3.0))
    assert polyopt_check(Gain().apply, N=4).shape == (4,)


def test_what_is_expected_is_found_by_key(polyopt_check):
    x = RNG.random(9)
    polyopt_check(both, x, 0.5, expected={"scaled": x, "sum": x.sum()})
    for wrong in ({"sum": x.sum(), "scale": x}, {"scaled": x}, (x.sum(), x), x):
        with pytest.raises(pytest.fail.Exception, match="expected must be a dictionary with the keys 'sum', 'scaled'"):
            polyopt_check(both, x, 0.5, expected=wrong)


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda check: check(linear_relu, M=3), "needs a value for K, N"),
        (lambda check: check(linear_relu, M=3, N=4, K=5, inputs={"X": 1}), "inputs= holds 'X'"),
        (lambda check: check(linear_relu, M=3, N=4, K=5, Q=6), "no size or compile-time parameter 'Q'"),
        (lambda check: check(linear_relu, np.ones((3, 4), np.float32), N=4), "missing a required argument: 'w'"),
        (lambda check: check(lambda x: x, N=4), "decorate the function with @po.op"),
    ],
    ids=["sizes", "inputs", "unknown size", "an array missing", "no op"],
)
def test_a_check_that_is_asked_for_wrongly_says_so(check, says, polyopt_check):
    with pytest.raises(po.ArgumentError, match=says):
        check(polyopt_check)


# --- each check fails on a planted fault ----------------------------------------------------------------------


class Faulty:
    """An op whose calls go wrong in one way."""

    def __init__(self, op: Any, fault: Any) -> None:
        self.op, self.fault, self.signature = op, fault, op.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fault(self.op, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self.op.lower(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        return self.op.compile(*args, **kwargs)


def wrong_element(op, *args, **kwargs):
    result = op(*args, **kwargs)
    result[2, 3] += 0.25
    return result


def wrong_dtype(op, *args, **kwargs):
    return op(*args, **kwargs).astype(np.float64)


def wrong_shape(op, *args, **kwargs):
    return op(*args, **kwargs)[:-1]


def changes_input(op, x, w, b, **kwargs):
    result = op(x, w, b, **kwargs)
    b[4] += 1
    return result


def writes_before(op, *args, out=None, **kwargs):
    if out is not None:
        start = np.lib.stride_tricks.as_strided(out.reshape(-1), (1,), (-4,))
        np.lib.stride_tricks.as_strided(start, (2,), (-4,))[1] = 7
    return op(*args, **kwargs) if out is None else op(*args, out=out, **kwargs)


def writes_behind(op, *args, out=None, **kwargs):
    if out is not None:
        np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 1,), (4,))[-1] = 7
    return op(*args, **kwargs) if out is None else op(*args, out=out, **kwargs)


def other_with_out(op, *args, out=None, **kwargs):
    result = op(*args, **kwargs)
    if out is not None:
        out[...] = np.nextafter(result, 1e9)
    return result


FAULTS = {
    wrong_element: [
        "result[2, 3] is",
        "allowed",
        "1 of 35 elements are off",
        "seed 0",
        "vector for",
        "differs from the reference",
    ],
    wrong_dtype: ["result is float64 and should be float32"],
    wrong_shape: ["has shape (4, 7) and should have (5, 7)"],
    changes_input: ["the input 'b' was changed, first at (4,)"],
    writes_before: ["bytes before the start of the result 'out' were written"],
    writes_behind: ["touches memory behind the end of an array"],
    other_with_out: ["another call, with out=, gives another result"],
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_fails_with_its_place(fault, polyopt_check):
    with pytest.raises(pytest.fail.Exception) as caught:
        polyopt_check(Faulty(linear_relu, fault), M=5, N=7, K=6)
    for part in FAULTS[fault]:
        assert part in str(caught.value)


def test_a_wrong_expectation_fails(polyopt_check):
    x, w, b = (RNG.random(shape).astype(np.float32) for shape in [(5, 6), (6, 7), (7,)])
    with pytest.raises(pytest.fail.Exception, match="differs from expected="):
        polyopt_check(linear_relu, x, w, b, expected=x @ w)
    with pytest.raises(pytest.fail.Exception, match="expected= has"):
        polyopt_check(linear_relu, x, w, b, expected=(x @ w)[0])
    polyopt_check(linear_relu, x, w, b, expected=x @ w + b + 0.5, rtol=0, atol=0.6)


@pytest.mark.parametrize("kind", [AssertionError, Exception, pytest.fail.Exception])
def test_a_failure_is_caught_as_an_assertion_and_as_one_of_pytest(kind, polyopt_check):
    with pytest.raises(kind, match=r"differs from expected=[\s\S]*loops:"):
        polyopt_check(linear_relu, M=5, N=7, K=6, expected=np.ones((5, 7), np.float32))


def test_an_access_behind_an_array_is_found_and_the_process_lives_on():
    array = guarded((5,), np.dtype("f4")).array
    beyond = np.lib.stride_tricks.as_strided(array, (6,), (4,))
    assert survives(lambda: beyond[:5].fill(3)) and (array == 3).all()
    assert not survives(lambda: beyond.fill(7)) or sys.platform == "win32"
    assert not survives(lambda: beyond.sum()) or sys.platform == "win32"
    with pytest.raises(ZeroDivisionError):
        survives(lambda: 1 // 0)


def test_guarded_arrays_hold_what_is_put_there():
    for shape in [(), (0,), (3, 5), (4096,)]:
        array = np.asarray(RNG.random(shape))
        copy = guarded_copy(array)
        assert copy.is_intact and copy.array.flags.c_contiguous
        np.testing.assert_array_equal(copy.array, array)
    assert guarded((2,), np.dtype("i1")).array.dtype == np.int8


# --- parts ----------------------------------------------------------------------------------------------------


def test_subscripts_are_drawn_in_range():
    program = lookup.lower(M=3, N=2, K=100).program
    assert subscript_ceilings(program, {}) == {"ids": 3}
    inputs = random_inputs(program, {}, 0, {})
    assert set(inputs["ids"]) == {0, 1, 2}
    assert inputs["shift"].min() < 0
    np.testing.assert_array_equal(inputs["ids"], random_inputs(program, {}, 0, {})["ids"])
    assert (inputs["ids"] != random_inputs(program, {}, 1, {})["ids"]).any()


def test_subscripts_are_drawn_in_range_where_the_first_elements_are_not():
    @po.op
    def odd(x: f32[K], ids: i64[N]):
        y, i = po.tensor("y"), po.index("i")
        y[i] = x[2 * ids[i] - 1]
        return y

    ids = random_inputs(odd.lower(N=20, K=7).program, {}, 0, {})["ids"]
    assert set(ids) <= {1, 2, 3, 4} and len(set(ids)) > 1


def test_inputs_are_positive_where_others_give_nan():
    inputs = random_inputs(root.lower(N=50).program, {}, 0, {})
    assert (inputs["x"] > 0).all()


def test_difference_understands_nan_infinities_and_integers():
    inf, nan = np.inf, np.nan
    zero = np.zeros(3)
    assert difference("r", np.array([nan, inf, 1]), np.array([nan, inf, 1]), zero) is None
    for got, expected, index in [
        ([nan, 0, 1], [0, 0, 1], 0),
        ([0, inf, 1], [0, -inf, 1], 1),
        ([0, 0, inf], [0, 0, 1], 2),
    ]:
        worst = difference("r", np.array(got, float), np.array(expected, float), zero + 100)
        assert worst is not None and worst.index == (index,)
    big = difference("r", np.array([2**63], np.uint64), np.array([2**63 + 1], np.uint64), np.zeros(1))
    assert big is not None and big.off == 1
    mixed = difference("r", np.array([2**53 + 1], np.uint64), np.array([2**53]), np.zeros(1))
    assert mixed is not None and mixed.off == 1
    assert difference("r", np.array(7, np.uint8), np.array(7), np.zeros(())) is None
    low = np.array([-(2**63)])
    worst = difference("r", low, -low - 1, np.zeros(1))
    assert worst is not None and worst.off == 2.0**64


def test_tolerances_are_the_bound_unless_overridden():
    expected, bound = np.array([100.0, np.inf]), np.array([1e-3, 1e-3])
    np.testing.assert_array_equal(Tolerance().allowed(expected, bound), bound)
    np.testing.assert_allclose(Tolerance(rtol=0.1).allowed(expected, bound), [10.001, 1e-3])
    np.testing.assert_array_equal(Tolerance(atol=0.5).allowed(expected, bound), [0.5, 0.5])


def test_structures_are_flattened_and_rebuilt():
    value = {"a": (1, [2, 3]), "b": 4}
    flat = flatten(value)
    assert flat == {"result['a'][0]": 1, "result['a'][1][0]": 2, "result['a'][1][1]": 3, "result['b']": 4}
    assert rebuild(value, [5, 6, 7, 8]) == {"a": (5, [6, 7]), "b": 8}


# --- the plugin -----------------------------------------------------------------------------------------------

TEST_FILE = """
    import polyopt as po
    from polyopt import f32
    N = po.size("N")
    i = po.index("i")

    @po.op
    def double(x: f32[N]):
        y = po.tensor("y")
        y[i] = x[i] * 2
        return y

    def test_double(polyopt_check):
        polyopt_check(double, N=5)

    def test_wrong(polyopt_check):
        polyopt_check(double, N=5, inputs={"x": [1, 2, 3, 4, 5]}, atol=-1)
"""


def test_the_plugin_offers_fixture_and_options(pytester):
    pytester.makepyfile(TEST_FILE)
    result = pytester.runpytest("--polyopt-seed=3", "--polyopt-target=cpu")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*check.py*")
    result.stdout.fnmatch_lines(["*double: the result differs from the reference*", "*seed 3 (--polyopt-seed=3*"])


def test_kernels_for_a_gpu_run_where_they_can() -> None:
    assert Checker(("cpu", "cuda"))(linear_relu, M=5, N=6, K=7).shape == (5, 6)


def test_a_target_that_is_not_here_is_skipped(pytester, monkeypatch):
    monkeypatch.setattr("polyopt.compilation.gpu_here", lambda: None)
    monkeypatch.setattr("polyopt.runtime.emulator.build.compiler", lambda: None)
    pytester.makepyfile(TEST_FILE)
    result = pytester.runpytest("--polyopt-target=cuda", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*target cuda: the CUDA emulator cannot be used here*"])


def test_loading_the_plugin_does_not_load_the_compiler():
    code = "import sys, polyopt.testing; assert not {'islpy', 'llvmlite', 'polyopt.testing.check'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_checker_works_outside_pytest():
    assert Checker()(linear_relu, M=2, N=2, K=2).shape == (2, 2)


class Elsewhere:
    """An array of another library, known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries_are_checked(polyopt_check):
    x = np.linspace(0, 1, 5)
    polyopt_check(root, Elsewhere(x))
    polyopt_check(root, N=5, inputs={"x": Elsewhere(x)})


def test_a_long_product_of_large_integers_passes() -> None:
    @po.op
    def op(x: i64[N, M]):
        y = po.tensor("y")
        y[i] = po.prod(x[i, k], k)
        return y

    Checker(forks=False)(op, np.full((2, 40), 3**18 + 2, np.int64))
