"""The rows of the benchmark: what is computed, on which inputs, and what float64 says the result is.

A case is one operator at one size. Its inputs come from a fixed seed, so that every process sees the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
DTYPES: Mapping[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "i64": np.int64,
}
QUICK = frozenset({
    "gemm_256", "gemm_127x513x255", "batched_512x32", "gemv_1024", "conv3x3_28x28x128_b1", "attention_1x512x64",
    "softmax_512x2048", "layernorm_128x64", "chain_1e6", "bias_relu_2048", "adam_1e6", "blur_2048",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    name:      unique
    family:    rows of a family share one weight in the mean over all
    kind:      which operator; what the peers' tables are keyed by
    sizes:     of this row
    flops:     operations, counted for the definition (padding included)
    traffic:   bytes that must be read and written once
    dtype:     of the inputs; decides the peak that flops are held against
    tolerance: of the largest error against the largest magnitude of a result; 0 for equal
    fused:     whether a compiler of graphs could do better than a library call
    """

    name: str
    family: str
    kind: str
    sizes: Mapping[str, int]
    flops: float
    traffic: float
    dtype: str = "f32"
    tolerance: float = 2e-5
    fused: bool = False

    @property
    def memory(self) -> float:
        """Bytes that one process may need, roughly: inputs, results, and temporaries of a peer that fuses nothing."""
        return 4 * self.traffic


def inputs(case: Case) -> list[Array]:
    """The inputs, from a seed that depends on the row alone."""
    random = np.random.default_rng(sum(map(ord, case.name)))
    s = case.sizes

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, np.float32)

    def of(dtype: str, *shape: int) -> Array:
        if dtype == "i8":
            return random.integers(-128, 128, shape, np.int8)
        return normal(*shape).astype(DTYPES[dtype])

    match case.kind:
        case "gemm":
            return [of(case.dtype, s["m"], s["k"]), of(case.dtype, s["k"], s["n"])]
        case "gemm_tn":
            return [normal(s["k"], s["m"]), normal(s["k"], s["n"])]
        case "batched":
            return [normal(s["b"], s["n"], s["n"]), normal(s["b"], s["n"], s["n"])]
        case "gemv":
            return [normal(s["n"], s["n"]), normal(s["n"])]
        case "conv":
            return [normal(s["b"], s["c"], s["h"], s["h"]), normal(s["o"], s["c"], s["r"], s["r"])]
        case "conv_bias_relu":
            return [normal(s["b"], s["c"], s["h"], s["h"]), normal(s["o"], s["c"], s["r"], s["r"]), normal(s["o"])]
        case "depthwise":
            return [normal(s["b"], s["c"], s["h"], s["h"]), normal(s["c"], s["r"], s["r"])]
        case "mttkrp":
            return [normal(s["i"], s["j"], s["k"]), normal(s["j"], s["r"]), normal(s["k"], s["r"])]
        case "ttm":
            return [normal(s["n"], s["n"], s["n"]), *(normal(s["n"], s["r"]) for _ in range(3))]
        case "bilinear":
            return [normal(s["b"], s["n"]), normal(s["o"], s["n"], s["n"]), normal(s["b"], s["n"])]
        case "tensordot":
            n = s["n"]
            return [normal(n, n, n, n), normal(n, n, n, n)]
        case "attention" | "attention_causal":
            return [normal(s["h"], s["s"], s["d"]) for _ in range(3)]
        case "softmax":
            return [3 * normal(s["m"], s["n"])]
        case "layernorm":
            return [normal(s["m"], s["n"]), normal(s["n"]), normal(s["n"])]
        case "rmsnorm":
            return [normal(s["m"], s["n"]), normal(s["n"])]
        case "nll":
            return [3 * normal(s["m"], s["n"]), random.integers(0, s["n"], s["m"])]
        case "chain":
            return [random.random(s["n"], np.float32) + np.float32(0.5), random.random(s["n"], np.float32)]
        case "gelu":
            return [normal(s["n"])]
        case "bias_relu":
            return [normal(s["n"], s["n"]), normal(s["n"])]
        case "gelu_linear":
            return [normal(s["n"], s["n"]), normal(s["n"], s["n"]), normal(s["n"])]
        case "adam":
            n = s["n"]
            return [normal(n), normal(n), 0.1 * normal(n), 0.01 * random.random(n, np.float32)]
        case "blur" | "unsharp" | "harris":
            return [random.random((s["n"], s["n"]), np.float32)]
    raise ValueError(f"no inputs for {case.kind}")


def expected(case: Case, arrays: list[Array]) -> list[Array]:
    """The results in float64, exact integers where the operator is one of integers."""
    exact = [
        array.astype(np.int64 if case.dtype == "i8" or array.dtype == np.int64 else np.float64) for array in arrays
    ]
    return _EXPECTED[case.kind](*exact)


# --- meaning, in NumPy ------------------------------------------------------------------------------------------

BLUR = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def _matmul(a: Array, b: Array) -> list[Array]:
    if a.dtype == np.int64:  # exact in float64: 1024 * 2**14 is far below 2**53
        return [(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)]
    return [a @ b]


def _conv(x: Array, f: Array) -> list[Array]:
    h, r = x.shape[2], f.shape[2]
    p = r // 2
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    out = np.zeros((x.shape[0], f.shape[0], h, h))
    for dy in range(r):
        for dx in range(r):
            window = padded[:, :, dy : dy + h, dx : dx + h].reshape(x.shape[0], x.shape[1], h * h)
            out += (f[:, :, dy, dx] @ window).reshape(out.shape)
    return [out]


def _depthwise(x: Array, f: Array) -> list[Array]:
    h, r = x.shape[2], f.shape[1]
    p = r // 2
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    windows = (
        f[None, :, dy, dx, None, None] * padded[:, :, dy : dy + h, dx : dx + h] for dy in range(r) for dx in range(r)
    )
    return [sum(windows, np.zeros(x.shape))]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _attention(q: Array, k: Array, v: Array) -> list[Array]:
    return [softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])) @ v]


def _causal(q: Array, k: Array, v: Array) -> list[Array]:
    score = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
    score[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    return [softmax(score) @ v]


def _layernorm(x: Array, g: Array, b: Array) -> list[Array]:
    centred = x - x.mean(axis=1, keepdims=True)
    return [centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * g + b]


def _nll(x: Array, target: Array) -> list[Array]:
    top = x.max(axis=1)
    logsum = np.log(np.exp(x - top[:, None]).sum(axis=1)) + top
    return [np.asarray((logsum - x[np.arange(len(x)), target]).mean())]


def _chain(x: Array, y: Array) -> list[Array]:
    a = x * y + 1.5
    b = np.sqrt(a) + np.exp(-x)
    c = np.tanh(b * y) - 0.25 * a
    return [np.maximum(c, -1.0) / (1.0 + y * y)]


def _erf(x: Array) -> Array:
    """The error function, element by element: slow, and right."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _adam(p: Array, g: Array, m: Array, v: Array) -> list[Array]:
    m2 = BETA1 * m + (1 - BETA1) * g
    v2 = BETA2 * v + (1 - BETA2) * g * g
    return [p - LEARNING_RATE * m2 / (np.sqrt(v2) + EPSILON), m2, v2]


def _blurred(x: Array) -> Array:
    h, w = x.shape
    padded = np.pad(x, 2, mode="edge")
    across = sum(BLUR[r] * padded[:, r : r + w] for r in range(5))
    return np.asarray(sum(BLUR[r] * across[r : r + h] for r in range(5)))


def _harris(x: Array) -> list[Array]:
    """Corner response on the inner points: Sobel gradients, their products summed over 3 x 3, det - 0.04 trace^2."""
    n = x.shape[0]

    def at(a: Array, dy: int, dx: int, size: int) -> Array:
        return a[dy : dy + size, dx : dx + size]

    inner = n - 2
    gx = sum(w * (at(x, r, 2, inner) - at(x, r, 0, inner)) for r, w in enumerate((1, 2, 1))) / 8
    gy = sum(w * (at(x, 2, c, inner) - at(x, 0, c, inner)) for c, w in enumerate((1, 2, 1))) / 8
    size = inner - 2

    def box(a: Array) -> Array:
        return np.asarray(sum(at(a, r, c, size) for r in range(3) for c in range(3)))

    gx, gy = np.asarray(gx), np.asarray(gy)
    xx, yy, xy = box(gx * gx), box(gy * gy), box(gx * gy)
    return [xx * yy - xy * xy - 0.04 * (xx + yy) ** 2]


def _unsharp(x: Array) -> list[Array]:
    return [np.clip(x + 1.5 * (x - _blurred(x)), 0, 1)]


_EXPECTED: Mapping[str, Callable[..., list[Array]]] = {
    "gemm": _matmul,
    "gemm_tn": lambda a, b: [a.T @ b],
    "batched": lambda a, b: [a @ b],
    "gemv": lambda a, x: [a @ x],
    "conv": _conv,
    "conv_bias_relu": lambda x, f, b: [np.maximum(_conv(x, f)[0] + b[:, None, None], 0)],
    "depthwise": _depthwise,
    "mttkrp": lambda t, b, c: [np.einsum("ijr,jr->ir", np.tensordot(t, c, 1), b)],
    "ttm": lambda x, a, b, c: [np.einsum("ijk,ia,jb,kc->abc", x, a, b, c, optimize=True)],
    "bilinear": lambda x, w, z: [np.einsum("bi,oij,bj->bo", x, w, z, optimize=True)],
    "tensordot": lambda x, w: [np.einsum("aebf,fced->abcd", x, w, optimize=True)],
    "attention": _attention,
    "attention_causal": _causal,
    "softmax": lambda x: [softmax(x)],
    "layernorm": _layernorm,
    "rmsnorm": lambda x, g: [x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * g],
    "nll": _nll,
    "chain": _chain,
    "gelu": lambda x: [_gelu(x)],
    "bias_relu": lambda x, b: [np.maximum(x + b, 0)],
    "gelu_linear": lambda x, w, b: [_gelu(x @ w + b)],
    "adam": _adam,
    "blur": lambda x: [_blurred(x)],
    "unsharp": _unsharp,
    "harris": _harris,
}


# --- the rows ---------------------------------------------------------------------------------------------------


def all_cases() -> list[Case]:
    """Every row, families together."""
    return [
        *_gemms(),
        *_low_precision(),
        *_batched(),
        *_gemvs(),
        *_convolutions(),
        *_tensors(),
        *_epilogues(),
        *_attentions(),
        *_rows(),
        *_chains(),
        *_images(),
    ]


SQUARES = (16, 31, 64, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2048)
SHAPES = ((127, 513, 255), (8192, 64, 64), (64, 8192, 64), (64, 64, 8192), (128, 768, 3072), (8, 1024, 1024))


def _gemm(name: str, family: str, m: int, n: int, k: int, dtype: str = "f32", tolerance: float = 2e-5) -> Case:
    item, out = {"f32": (4, 4), "f64": (8, 8), "bf16": (2, 2), "i8": (1, 4)}[dtype]
    traffic = item * (m * k + k * n) + out * m * n
    return Case(name, family, "gemm", {"m": m, "n": n, "k": k}, 2.0 * m * n * k, traffic, dtype, tolerance)


def _gemms() -> Iterator[Case]:
    for n in SQUARES:
        yield _gemm(f"gemm_{n}", "gemm", n, n, n)
    for m, n, k in SHAPES:
        yield _gemm(f"gemm_{m}x{n}x{k}", "gemm", m, n, k)
    for n in (256, 1024):
        yield _gemm(f"dgemm_{n}", "gemm", n, n, n, "f64", 1e-12)
    yield Case("gemm_transposed_512", "gemm", "gemm_tn", {"m": 512, "n": 512, "k": 512}, 2.0 * 512**3, 12.0 * 512**2)


def _low_precision() -> Iterator[Case]:
    for n in (256, 1024):
        yield _gemm(f"bf16_{n}", "low precision", n, n, n, "bf16", 8e-3)
        yield _gemm(f"int8_{n}", "low precision", n, n, n, "i8", 0.0)


def _batched() -> Iterator[Case]:
    for b, n in ((4000, 8), (1000, 16), (512, 32), (128, 64)):
        yield Case(f"batched_{b}x{n}", "batched", "batched", {"b": b, "n": n}, 2.0 * b * n**3, 12.0 * b * n * n)


def _gemvs() -> Iterator[Case]:
    for n in (256, 1024, 4096):
        yield Case(f"gemv_{n}", "gemv", "gemv", {"n": n}, 2.0 * n * n, 4.0 * (n * n + 2 * n))


def _convolution(name: str, kind: str, b: int, c: int, o: int, h: int, r: int) -> Case:
    flops = 2.0 * b * c * o * h * h * r * r
    traffic = 4.0 * (b * (c + o) * h * h + c * o * r * r)
    sizes = {"b": b, "c": c, "o": o, "h": h, "r": r}
    return Case(name, "conv", kind, sizes, flops, traffic, fused=kind == "conv_bias_relu")


def _convolutions() -> Iterator[Case]:
    for b in (1, 8):
        for c, h in ((64, 56), (128, 28), (256, 14), (512, 7)):
            yield _convolution(f"conv3x3_{h}x{h}x{c}_b{b}", "conv", b, c, c, h, 3)
        yield _convolution(f"conv1x1_56x56_64to256_b{b}", "conv", b, 64, 256, 56, 1)
        yield _convolution(f"conv1x1_14x14_1024to256_b{b}", "conv", b, 1024, 256, 14, 1)
        sizes, points = {"b": b, "c": 128, "h": 56, "r": 3}, b * 128 * 56 * 56
        yield Case(f"depthwise_56x56x128_b{b}", "conv", "depthwise", sizes, 18.0 * points, 8.0 * points + 4 * 9 * 128)
        yield _convolution(f"conv_bias_relu_56x56x64_b{b}", "conv_bias_relu", b, 64, 64, 56, 3)


def _tensors() -> Iterator[Case]:
    i, r = 128, 32
    yield Case(
        "mttkrp_128_32", "tensors", "mttkrp", {"i": i, "j": i, "k": i, "r": r}, 2.0 * i**3 * r, 4.0 * (i**3 + 3 * i * r)
    )
    n, r = 96, 32
    flops = 2.0 * (n**3 * r + n * n * r * r + n * r**3)
    yield Case("ttm_96_32", "tensors", "ttm", {"n": n, "r": r}, flops, 4.0 * (n**3 + 3 * n * r + r**3), tolerance=5e-5)
    b, n, o = 128, 64, 64
    flops = 2.0 * b * o * n * n + 2.0 * b * o * n
    yield Case(
        "bilinear_128_64", "tensors", "bilinear", {"b": b, "n": n, "o": o}, flops,
        4.0 * (2 * b * n + o * n * n + b * o), fused=True,
    )  # fmt: skip
    n = 32
    yield Case("tensordot_abcd_32", "tensors", "tensordot", {"n": n}, 2.0 * n**6, 12.0 * n**4)


def _epilogues() -> Iterator[Case]:
    for n in (128, 512):
        yield Case(
            f"gelu_linear_{n}", "epilogues", "gelu_linear", {"n": n}, 2.0 * n**3, 12.0 * n * n + 4 * n, fused=True
        )


def _attentions() -> Iterator[Case]:
    for h, s, d in ((1, 512, 64), (8, 1024, 64), (4, 2048, 128)):
        sizes, traffic = {"h": h, "s": s, "d": d}, 16.0 * h * s * d
        flops = 4.0 * h * s * s * d
        yield Case(f"attention_{h}x{s}x{d}", "attention", "attention", sizes, flops, traffic, fused=True)
        half = 4.0 * h * d * s * (s + 1) / 2
        yield Case(f"causal_{h}x{s}x{d}", "attention", "attention_causal", sizes, half, traffic, fused=True)


def _rows() -> Iterator[Case]:
    for m, n in ((4096, 4096), (512, 2048), (128, 64)):
        at, points = f"{m}x{n}", float(m * n)
        sizes = {"m": m, "n": n}
        yield Case(f"softmax_{at}", "rows", "softmax", sizes, 5 * points, 8 * points, fused=True)
        yield Case(f"layernorm_{at}", "rows", "layernorm", sizes, 8 * points, 8 * points + 8 * n, fused=True)
        yield Case(f"rmsnorm_{at}", "rows", "rmsnorm", sizes, 4 * points, 8 * points + 4 * n, fused=True)
        yield Case(f"nll_{at}", "rows", "nll", sizes, 4 * points, 4 * points + 8 * m, fused=True)


def _chains() -> Iterator[Case]:
    for n, text in ((10**6, "1e6"), (10**8, "1e8")):
        yield Case(f"chain_{text}", "chains", "chain", {"n": n}, 12.0 * n, 12.0 * n, fused=True, tolerance=1e-5)
    yield Case("bias_relu_2048", "chains", "bias_relu", {"n": 2048}, 2.0 * 2048**2, 8.0 * 2048**2, fused=True)
    yield Case("gelu_4M", "chains", "gelu", {"n": 1 << 22}, 8.0 * (1 << 22), 8.0 * (1 << 22), fused=True)
    for n, text in ((10**6, "1e6"), (10**7, "1e7")):
        yield Case(f"adam_{text}", "chains", "adam", {"n": n}, 14.0 * n, 28.0 * n, fused=True)


def _images() -> Iterator[Case]:
    n = 2048
    yield Case("blur_2048", "images", "blur", {"n": n}, 18.0 * n * n, 8.0 * n * n, fused=True)
    yield Case("unsharp_2048", "images", "unsharp", {"n": n}, 22.0 * n * n, 8.0 * n * n, fused=True)
    yield Case("harris_2048", "images", "harris", {"n": n}, 50.0 * n * n, 8.0 * n * n, fused=True, tolerance=5e-5)
