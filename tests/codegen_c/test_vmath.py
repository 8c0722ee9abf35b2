"""The math functions are within 2 ulp, right in every special case, and the same in LLVM, C and NumPy."""

from __future__ import annotations

import itertools
import math
import re
import shutil

import mpmath  # type: ignore[import-untyped]  # it has no types
import numpy as np
import pytest

from polyopt.codegen_c import vmath
from polyopt.codegen_c.vmath import FUNCTIONS, LlvmBuilder, c_source, emit_call
from polyopt.codegen_c.vmath import numpy as vmath_numpy
from polyopt.codegen_c.vmath.builder import F32, Builder
from polyopt.dsl.builtins import BUILTINS
from polyopt.dtypes import f32, f64
from polyopt.target import host
from tests.codegen_c.vmath_support import (
    Array,
    around,
    c_instance,
    exact_values,
    llvm_instance,
    random_bits,
    same_bits,
    sampled_bits,
    ulp_error,
    worst,
)

INF, NAN = math.inf, math.nan
UNARY = [f.name for f in FUNCTIONS.values() if f.arity == 1]
DTYPES = ["float32", "float64"]
EXTENDED = np.finfo(np.longdouble).nmant > 60

# Where formulas change or results leave the range: overflow, underflow, switches between polynomials.
TURNING_POINTS = {
    "float32": [1e-45, 1.1754944e-38, 2.0**-25, 0.25, 0.34657, 0.5, 0.70710677, 1.0, 1.25, 1.4142135, 3.9375, 9.01]
    + [10.0, 17.3, 18.0, 65536.0, 87.33655, 88.722835, 89.41599, 103.97208, 126.0, 128.0, 149.0, 150.0, 3.4e38],
    "float64": [5e-324, 2.3e-308, 2.0**-54, 0.25, 0.34657, 0.5, 0.7071067811865476, 1.0, 1.4142135623730951, 5.92]
    + [6.0, 19.1, 20.0, 37.4, 2.0**25, 708.3964185322641, 709.782712893384, 710.4758600739439, 745.1332191019412]
    + [1022.0, 1024.0, 1074.0, 1075.0, 1.7e308],
}


def arguments(dtype: str) -> Array:
    """Stratified over all bit patterns, dense around the turning points, dense where functions have their shape."""
    generator = np.random.default_rng(7)
    ranges = [generator.uniform(-r, r, 1 << 14).astype(dtype) for r in (1.5, 7.0, 40.0, 760.0, 1e6)]
    return np.concatenate([random_bits(dtype, 1 << 15, generator), around(TURNING_POINTS[dtype], dtype, 200), *ranges])


def pairs(dtype: str) -> tuple[Array, Array]:
    """Operands of pow: any two, and a second chosen so that the result is in range or on its edges."""
    generator = np.random.default_rng(8)
    x = np.abs(
        np.concatenate([random_bits(dtype, 1 << 16, generator), generator.uniform(0.5, 2, 1 << 16).astype(dtype)])
    )
    exponents = generator.uniform(*((-152, 130) if dtype == "float32" else (-1078, 1026)), x.size)
    with np.errstate(all="ignore"):
        fitting = (exponents / np.log2(x.astype(np.longdouble))).astype(dtype)
    any_two = random_bits(dtype, 1 << 16, generator), random_bits(dtype, 1 << 16, generator)
    return np.concatenate([x, any_two[0]]), np.concatenate([fitting, any_two[1]])


def operands(name: str, dtype: str) -> tuple[Array, ...]:
    return (arguments(dtype),) if FUNCTIONS[name].arity == 1 else pairs(dtype)


# --- accuracy ---


@pytest.mark.parametrize("name", UNARY)
def test_f32_is_within_two_ulp_over_the_whole_range(name: str) -> None:
    x = np.concatenate([sampled_bits("float32", 4093), around(TURNING_POINTS["float32"], "float32", 2000)])
    error, where = worst(name, llvm_instance(name, "float32", 16)(x), exact_values(name, x), x)
    assert error <= 2.0, where


@pytest.mark.skipif(not EXTENDED, reason="the oracle needs an extended format")
@pytest.mark.parametrize("name", [name for name in UNARY if name != "erf"])
def test_f64_is_within_two_ulp_of_the_extended_format(name: str) -> None:
    x = arguments("float64")
    error, where = worst(name, llvm_instance(name, "float64", 8)(x), exact_values(name, x), x)
    assert error <= 2.0, where


@pytest.mark.skipif(not EXTENDED, reason="the oracle needs an extended format")
@pytest.mark.parametrize("dtype", DTYPES)
def test_pow_is_within_one_ulp(dtype: str) -> None:
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    error, where = worst("pow", llvm_instance("pow", dtype, 8)(x, y), exact, x, y)
    assert error <= 1.0, where


EXACT = {
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
}


@pytest.mark.parametrize("name", UNARY)
def test_f64_is_within_two_ulp_of_the_exact_value(name: str) -> None:
    generator = np.random.default_rng(9)
    x = np.concatenate([generator.uniform(-r, r, 150) for r in (1e-5, 1.0, 1.5, 7.0, 40.0, 700.0)])
    x = np.abs(x) if name in ("log", "log2", "log1p") else x
    result = llvm_instance(name, "float64", 4)(x)
    with mpmath.workprec(200):
        function = EXACT.get(name) or getattr(mpmath, name)
        errors = [ulp_of_exact(y, function(mpmath.mpf(a))) for a, y in zip(x.tolist(), result.tolist(), strict=True)]
    at = int(np.argmax(errors))
    assert errors[at] <= 2.0, f"{name}({x[at]!r}) = {result[at]!r}: {errors[at]:.3f} ulp"


def ulp_of_exact(result: float, exact: mpmath.mpf) -> float:
    if exact == 0:
        return 0.0 if result == 0 else INF
    exponent = max(int(mpmath.floor(mpmath.log(abs(exact), 2))), -1022)
    return float(abs(mpmath.mpf(result) - exact) / mpmath.mpf(2) ** (exponent - 52))


# --- arguments that are hard to reduce ---


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_f64_trigonometry_holds_next_to_multiples_of_half_pi(name: str) -> None:
    generator = np.random.default_rng(10)
    with mpmath.workprec(1400):
        multiples = [int(2.0**e) + int(k) for e, k in zip(generator.uniform(0, 1020, 300), range(300), strict=True)]
        near = [float(k * mpmath.pi / 2) for k in multiples if k < 1 << 1022]
        # the first is the f64 number closest to a multiple of pi/2 [Muller16, chapter 11]
        x = np.array([6381956970095103.0 * 2.0**797, 1e22, 2.0**25, np.finfo(float).max, *near])
        result = llvm_instance(name, "float64", 8)(x)
        function = getattr(mpmath, name)
        errors = [ulp_of_exact(y, function(mpmath.mpf(a))) for a, y in zip(x.tolist(), result.tolist(), strict=True)]
    assert max(errors) <= 2.0, f"{name}({x[int(np.argmax(errors))]!r})"


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_f32_trigonometry_holds_next_to_multiples_of_half_pi(name: str) -> None:
    multiples = np.concatenate([np.arange(1, 50000), np.exp2(np.linspace(16, 127, 20000))])
    x = (np.floor(multiples) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([x, np.array([16367173.0 * 2.0**72], dtype=np.float32)])
    error, where = worst(name, llvm_instance(name, "float32", 16)(x), exact_values(name, x), x)
    assert error <= 2.0, where


def test_a_lane_with_a_huge_argument_leaves_the_others_alone() -> None:
    x = np.linspace(-3, 3, 160, dtype=np.float32)
    alone = llvm_instance("sin", "float32", 16)(x)
    x[5::16] = 1e30
    together = llvm_instance("sin", "float32", 16)(x)
    kept = np.ones(160, dtype=bool)
    kept[5::16] = False
    assert same_bits(alone[kept], together[kept]).all()


# --- special values ---

SPECIAL_VALUES = {
    "exp": [(-INF, 0.0), (INF, INF), (0.0, 1.0), (-0.0, 1.0)],
    "exp2": [(-INF, 0.0), (INF, INF), (0.0, 1.0), (3.0, 8.0), (-20.0, 2.0**-20)],
    "expm1": [(-INF, -1.0), (INF, INF), (0.0, 0.0), (-0.0, -0.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (1.0, 0.0)],
    "log2": [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (1.0, 0.0), (32.0, 5.0)],
    "log1p": [(-1.0, -INF), (-1.5, NAN), (-INF, NAN), (INF, INF), (0.0, 0.0), (-0.0, -0.0)],
    "sin": [(INF, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "cos": [(INF, NAN), (-INF, NAN), (0.0, 1.0), (-0.0, 1.0)],
    "tan": [(INF, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "sinh": [(INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0)],
    "cosh": [(INF, INF), (-INF, INF), (0.0, 1.0)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0)],
    "sigmoid": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5), (-0.0, 0.5)],
    "erf": [(INF, 1.0), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0)],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_those_of_annex_f(name: str, dtype: str) -> None:
    cases = [*SPECIAL_VALUES[name], (NAN, NAN)]
    x, expected = (np.array(column, dtype=dtype) for column in zip(*cases, strict=True))
    result = llvm_instance(name, dtype, 4)(x)
    assert same_bits(result, expected).all(), f"{name}: {list(zip(x, result, expected, strict=True))}"


@pytest.mark.parametrize("name", ["expm1", "log1p", "sin", "tan", "sinh", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_arguments_are_not_flushed(name: str, dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = tiny * np.arange(1, 1000, dtype=dtype)
    assert same_bits(llvm_instance(name, dtype, 4)(x), x).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log2_and_exp2_are_exact_on_powers_of_two(dtype: str) -> None:
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp, dtype=dtype)
    powers = np.ldexp(np.ones_like(exponents), exponents.astype(np.int32))
    assert same_bits(llvm_instance("exp2", dtype, 4)(exponents), powers).all()
    assert same_bits(llvm_instance("log2", dtype, 4)(powers), exponents).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_pow_has_all_special_cases_of_annex_f(dtype: str) -> None:
    info = np.finfo(dtype)
    odd_limit = 2.0 ** (info.nmant + 1) - 1
    values = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 7.0, odd_limit, odd_limit + 1, float(info.max), float(info.tiny), 1e-5, INF]
    signed = np.array([*values, float(info.smallest_subnormal), NAN, *(-v for v in values)], dtype=dtype)
    x, y = (np.array(column, dtype=dtype) for column in zip(*itertools.product(signed, signed), strict=True))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        expected = exact.astype(dtype)
    result = llvm_instance("pow", dtype, 4)(x, y)
    special = ~np.isfinite(expected) | (expected == 0) | (np.abs(expected) == 1)
    wrong = special & ~same_bits(result, expected)
    assert not wrong.any(), list(zip(x[wrong], y[wrong], result[wrong], expected[wrong], strict=True))[:5]
    assert (ulp_error(result, exact) <= 1.0).all()
    assert (np.isnan(result) | (np.signbit(result) == np.signbit(expected))).all()


# --- the instances agree ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_llvm_c_and_numpy_agree_bit_for_bit(name: str, dtype: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    arrays = tuple(a[::3] for a in operands(name, dtype))
    expected = vmath_numpy.call(name, *arrays)
    instances = {f"{lanes} lanes": llvm_instance(name, dtype, lanes) for lanes in (1, 4, 16)}
    instances["C"] = c_instance(name, dtype)
    for label, kernel in instances.items():
        differs = np.nonzero(~same_bits(kernel(*arrays), expected))[0]
        assert not differs.size, f"{label}: {name}{tuple(a[differs[0]] for a in arrays)}, {differs.size} in all"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "pow"])
def test_a_machine_without_fused_multiply_add_gives_the_same_bits(name: str, dtype: str) -> None:
    arrays = tuple(a[::5] for a in operands(name, dtype))
    generic = llvm_instance(name, dtype, 4, native=False)
    assert same_bits(generic(*arrays), llvm_instance(name, dtype, 8)(*arrays)).all()


def test_half_precision_is_computed_in_f32_and_rounded_once() -> None:
    x = np.linspace(-5, 5, 1001, dtype=np.float16)
    result = vmath_numpy.call("exp", x)
    assert result.dtype == np.float16
    assert same_bits(result, vmath_numpy.call("exp", x.astype(np.float32)).astype(np.float16)).all()


def test_numpy_operands_broadcast_and_keep_their_shape() -> None:
    x, y = np.full((3, 1), 2.0), np.arange(4.0)
    assert (vmath_numpy.call("pow", x, y) == np.broadcast_to([1.0, 2.0, 4.0, 8.0], (3, 4))).all()
    assert vmath_numpy.call("exp", np.float64(0.0)).shape == ()
    assert vmath_numpy.call("sin", np.zeros((0, 2))).shape == (0, 2)


# --- the texts ---


def test_every_float_function_of_the_language_is_here() -> None:
    wanted = {row.name for row in BUILTINS.values() if row.ulp > 0}
    assert wanted == set(FUNCTIONS)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_llvm_code_holds_no_fast_math(name: str) -> None:
    lines: list[str] = []

    def emit(text: str) -> str:
        lines.append(text)
        return f"%v{len(lines)}"

    builder = LlvmBuilder(emit, f32, 8)
    emit_call(builder, name, f32, ("%x", "%y")[: FUNCTIONS[name].arity])
    text = "\n".join([*lines, builder.module.text()])
    assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|fmuladd)\b", text)


def test_functions_share_their_helpers_within_a_module() -> None:
    module = vmath.LlvmModule()
    builder = LlvmBuilder(lambda text: "%v", f64, 4, module)
    for _ in range(2):
        emit_call(builder, "sin", f64, ("%x",))
        emit_call(builder, "cos", f64, ("%x",))
    assert sorted(module.definitions) == ["polyopt_cos_f64x4", "polyopt_sin_f64x4"]
    assert len(module.constants) == 1


def test_the_instances_are_builders() -> None:
    """For the type checker, which compares them with the protocol."""
    texts: tuple[Builder[str], ...] = LlvmBuilder(str, f32), c_source.CBuilder(F32)
    arrays: Builder[Array] = vmath_numpy.NumpyBuilder(F32)
    assert {b.format for b in texts} | {arrays.format} == {F32}


def test_c_functions_are_named_after_their_dtype() -> None:
    symbol, text = c_source.function("tanh", "f64")
    assert symbol == "polyopt_tanh_f64"
    assert text.startswith("static inline double polyopt_tanh_f64(double x0)\n{")


@pytest.mark.skipif(not host().has("avx512f"), reason="only AVX-512 scales at once")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["exp", "exp2", "tanh", "sinh", "cosh", "expm1", "sigmoid"])
def test_scaling_at_once_gives_the_bits_of_two_factors(name: str, dtype: str) -> None:
    lanes, x = (16 if dtype == "float32" else 8), arguments(dtype)
    x = x[: len(x) // lanes * lanes]
    plain, scaled = (llvm_instance(name, dtype, lanes, has_scaling=has) for has in (False, True))
    assert same_bits(plain(x), scaled(x)).all()
