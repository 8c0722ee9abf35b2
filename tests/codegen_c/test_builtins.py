"""Every builtin on every dtype that it allows gives what its NumPy form gives, in lanes, one by one, and in C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyopt.dsl.builtins import BUILTINS, Builtin
from polyopt.dsl.ir import Cast, Const, Op
from polyopt.dtypes import ALL, DType, bf16, bool_, f16, f32, from_numpy
from polyopt.loops.ir import Block, Expr, Stmt
from tests.codegen_c.kernels import GCC, i, load, loop, op, run, run_c, store

N = 261
TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-6, "f64": 1e-14}

Arrays = dict[str, np.ndarray[Any, Any]]


def allows(row: Builtin, dtype: DType) -> bool:
    rules = {
        "number": not dtype.is_bool,
        "float": dtype.is_float,
        "integer": dtype.is_integer,
        "logic": not dtype.is_float,
        "any": True,
    }
    return rules[row.operands]


def sample(dtype: DType, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Special and ordinary values, in any order."""
    if dtype.is_bool:
        return random.integers(0, 2, N).astype(bool)
    if dtype.is_float:
        special = [0, -0.0, 1, -1, 0.5, -0.5, 2, 3, -3, 7.5, np.inf, -np.inf, np.nan, 1e-3, 100, 1e-8, 6e-5, 65504, 2.5]
        usual = random.standard_normal(N // 2) * random.choice([0.1, 1, 5, 30], N // 2)
        with np.errstate(all="ignore"):
            return np.concatenate([random.choice(special, N - N // 2), usual]).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    special = [0, 1, 2, 3, 5, 7, limits.max, limits.min, limits.max - 1, limits.min + 1]
    values = np.concatenate(
        [
            random.choice(np.array(special, dtype.numpy), N // 2),
            random.integers(limits.min, limits.max, N // 4, dtype=dtype.numpy, endpoint=True),
            random.integers(max(-12, limits.min), 13, N - N // 2 - N // 4).astype(dtype.numpy),
        ]
    )
    random.shuffle(values)
    return values


def operands(row: Builtin, dtype: DType, random: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    values = [sample(dtype, random) for _ in range(row.arity)]
    if row.name == "select":
        values[0] = sample(bool_, random)
    if row.name == "pow" and dtype.is_integer:
        values[1][20:] = random.integers(0, 10, N - 20)
    return values


def expected(row: Builtin, dtype: DType, values: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """16-bit floats are computed in f32 and rounded."""
    result = bool_ if row.result == "bool" else dtype
    wide = [v.astype(np.float32) if dtype in (f16, bf16) and v.dtype != bool else v for v in values]
    with np.errstate(all="ignore"):
        return np.asarray(row.numpy(*wide)).astype(result.numpy)


def program(row: Builtin, kind: str) -> tuple[Stmt, Arrays, dict[str, np.ndarray[Any, Any]]]:
    """One store per dtype, with its arrays and the expected values."""
    random = np.random.default_rng(sum(map(ord, row.name)))
    arrays: Arrays = {}
    wanted: dict[str, np.ndarray[Any, Any]] = {}
    body: list[Stmt] = []
    for dtype in (dtype for dtype in ALL if allows(row, dtype)):
        values = operands(row, dtype, random)
        for number, value in enumerate(values):
            arrays[f"x{number}_{dtype}"] = value
        loads = [load(f"x{n}_{dtype}", i, dtype=from_numpy(v.dtype)) for n, v in enumerate(values)]
        result = bool_ if row.result == "bool" else dtype
        name = f"y_{dtype}"
        computed: Expr = Op(row.name, tuple(loads), result)
        body.append(loop("i", N, store(name, [i], computed), kind=kind))
        arrays[name] = np.zeros(N, result.numpy)
        wanted[name] = expected(row, dtype, values)
    return Block(tuple(body)), arrays, wanted


def check(row: Builtin, arrays: Arrays, wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, values in wanted.items():
        found = arrays[name]
        dtype = name.removeprefix("y_")
        if row.ulp and dtype in TOLERANCE:
            rtol, atol = TOLERANCE[dtype], 1e-7 if dtype == "f16" else 0.0
            close = np.isclose(found.astype(float), values.astype(float), rtol=rtol, atol=atol, equal_nan=True)
        else:
            close = (found == values) | ((found != found) & (values != values))
        wrong = np.nonzero(~close)[0][:3]
        inputs = [arrays[key][wrong] for key in arrays if key.endswith(f"_{dtype}") and key.startswith("x")]
        assert close.all(), f"{row.name} {dtype}: {inputs} gave {found[wrong]}, not {values[wrong]}"


@pytest.mark.parametrize("name", BUILTINS)
@pytest.mark.parametrize(("kind", "vector_bits"), [("vector", 512), ("vector", 128), ("serial", 512)])
def test_a_builtin_gives_what_numpy_gives(name: str, kind: str, vector_bits: int) -> None:
    body, arrays, wanted = program(BUILTINS[name], kind)
    run(body, arrays, vector_bits=vector_bits)
    check(BUILTINS[name], arrays, wanted)


@pytest.mark.skipif(GCC is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", BUILTINS)
def test_a_builtin_gives_the_same_in_c(name: str, tmp_path: Path) -> None:
    body, arrays, wanted = program(BUILTINS[name], "vector")
    run_c(body, arrays, tmp_path)
    check(BUILTINS[name], arrays, wanted)


@pytest.mark.parametrize("divisor", [1, 2, 7, 8, -3])
@pytest.mark.parametrize("name", ["floordiv", "mod"])
def test_a_constant_divisor_follows_the_sign_of_python(name: str, divisor: int) -> None:
    i32 = from_numpy(np.dtype(np.int32))
    x = np.array([-9, -8, -7, -1, 0, 1, 7, 8, 9, -(2**31), 2**31 - 1], np.int32)
    y = np.zeros_like(x)
    value: Expr = Op(name, (load("x", i, dtype=i32), Const(divisor, i32)), i32)
    run(loop("i", x.size, store("y", [i], value), kind="vector"), {"x": x, "y": y})
    np.testing.assert_array_equal(y, BUILTINS[name].numpy(x.astype(np.int64), divisor).astype(np.int32))


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_integer], ids=str)
@pytest.mark.parametrize("vector_bits", [128, 256])
def test_extrema_with_the_ends_of_a_range(dtype: DType, vector_bits: int) -> None:
    """LLVM 22 made `x + 1` of `max(x, ~0) - min(x, ~0)`, unsigned and in lanes."""
    limits = np.iinfo(dtype.numpy)
    ends = (int(limits.min), int(limits.max), int(limits.max) - 1, 0, 1)
    x = np.array([*ends, 5, 77] * 5, dtype.numpy)
    for end in ends:
        y = np.zeros_like(x)
        extrema: list[Expr] = [
            Op(name, (load("x", i, dtype=dtype), Const(end, dtype)), dtype) for name in ("maximum", "minimum")
        ]
        value: Expr = Op("sub", tuple(extrema), dtype)
        run(loop("i", x.size, store("y", [i], value), kind="vector"), {"x": x, "y": y}, vector_bits=vector_bits)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                y, np.maximum(x, dtype.numpy.type(end)) - np.minimum(x, dtype.numpy.type(end))
            )


@pytest.mark.parametrize("dtype", [d for d in ALL if d.is_integer], ids=str)
@pytest.mark.parametrize("vector_bits", [128, 256])
@pytest.mark.parametrize("is_computed", [False, True])
def test_differences_from_the_ends_of_a_range(dtype: DType, vector_bits: int, is_computed: bool) -> None:
    """The same where a comparison chooses, and where the end is all bits of `~(x * 0)`."""
    limits = np.iinfo(dtype.numpy)
    x = np.array([int(limits.min), int(limits.max), int(limits.max) - 1, 0, 1, 5, 77] * 5, dtype.numpy)
    read = load("x", i, dtype=dtype)
    for number in (int(limits.min), int(limits.max), 1):
        end: Expr = Const(number, dtype)
        if is_computed:
            end, number = Op("not", (Op("mul", (read, Const(0, dtype)), dtype),), dtype), -1 % (1 << limits.bits)
            number -= (1 << limits.bits) * (dtype.kind == "i")
        pairs = (read, end), (end, read)
        above, below = (Op("sub", pair, dtype) for pair in pairs)
        for name, apart in (("gt", np.greater), ("lt", np.less), ("ge", np.greater_equal), ("le", np.less_equal)):
            for operands in pairs:
                y = np.zeros_like(x)
                value: Expr = Op("select", (Op(name, operands, bool_), above, below), dtype)
                run(loop("i", x.size, store("y", [i], value), kind="vector"), {"x": x, "y": y}, vector_bits=vector_bits)
                other = dtype.numpy.type(number)
                chosen = apart(x, other) if operands[0] is read else apart(other, x)
                with np.errstate(over="ignore"):
                    np.testing.assert_array_equal(y, np.where(chosen, x - other, other - x))


# --- conversions ----------------------------------------------------------------------------------------------


def convertible(source: DType, target: DType, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values of `source` whose conversion NumPy defines."""
    x = sample(source, random)
    if source.is_float and target.is_integer:
        limits = np.iinfo(target.numpy)
        scale = random.choice([1.0, float(limits.max) / 64], N)
        wide = np.nan_to_num(x.astype(np.float64), posinf=0, neginf=0) * scale
        x = np.clip(wide, float(limits.min) * 0.99, float(limits.max) * 0.99)
        with np.errstate(all="ignore"):
            x = x.astype(source.numpy)
        x[~np.isfinite(x.astype(np.float64))] = 0
    return x


def conversions(source: DType, kind: str) -> tuple[Stmt, Arrays, dict[str, np.ndarray[Any, Any]]]:
    random = np.random.default_rng(7)
    arrays: Arrays = {}
    wanted: dict[str, np.ndarray[Any, Any]] = {}
    body: list[Stmt] = []
    for target in (dtype for dtype in ALL if dtype != source):
        x = convertible(source, target, random)
        name = f"y_{target}"
        arrays[f"x_{target}"], arrays[name] = x, np.zeros(N, target.numpy)
        with np.errstate(all="ignore"):
            wanted[name] = x.astype(target.numpy)
        value = Cast(load(f"x_{target}", i, dtype=source), target)
        body.append(loop("i", N, store(name, [i], value), kind=kind))
    return Block(tuple(body)), arrays, wanted


def check_equal(arrays: Arrays, wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, values in wanted.items():
        found = arrays[name]
        same = (found == values) | ((found != found) & (values != values))
        if found.dtype.kind == "f":
            same &= (np.signbit(found) == np.signbit(values)) | (values != values)
        wrong = np.nonzero(~same)[0][:3]
        inputs = arrays[name.replace("y_", "x_")][wrong]
        assert same.all(), f"to {name}: {inputs!r} gave {found[wrong]!r}, not {values[wrong]!r}"


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize(("kind", "vector_bits"), [("vector", 512), ("vector", 128), ("serial", 512)])
def test_a_conversion_is_that_of_astype(source: DType, kind: str, vector_bits: int) -> None:
    body, arrays, wanted = conversions(source, kind)
    run(body, arrays, vector_bits=vector_bits)
    check_equal(arrays, wanted)


@pytest.mark.skipif(GCC is None, reason="there is no C compiler")
@pytest.mark.parametrize("source", ALL, ids=str)
def test_a_conversion_is_the_same_in_c(source: DType, tmp_path: Path) -> None:
    body, arrays, wanted = conversions(source, "vector")
    run_c(body, arrays, tmp_path)
    check_equal(arrays, wanted)


def test_floats_that_do_not_fit_give_the_lowest_integer_and_never_trap() -> None:
    i32 = from_numpy(np.dtype(np.int32))
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2147483520.0, -2147483648.0], np.float32)
    y = np.zeros(x.size, np.int32)
    run(loop("i", x.size, store("y", [i], Cast(load("x", i), i32)), kind="vector"), {"x": x, "y": y})
    low = -(2**31)
    np.testing.assert_array_equal(y, [low, low, low, low, low, 2147483520, low])


def test_an_index_is_a_number_too() -> None:
    y = np.zeros(40, np.float32)
    run(loop("i", 40, store("y", [i], Cast(op("mul", i, 3), f32)), kind="vector"), {"y": y})
    np.testing.assert_array_equal(y, np.arange(40, dtype=np.float32) * 3)
