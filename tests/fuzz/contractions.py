"""Random contractions of the sizes that plans are made for, against NumPy, to the bit.

    python -m tests.fuzz.contractions --seconds 600 --seed 0 --log tests/reliability.json

Long sums, products of tensors whose axes lie anyhow, convolutions, and products by cases: the smallest programs that
are packed, turned, summed in parts or over columns, which random programs of a few elements never are. Elements are
whole numbers so small that every sum is exact in any order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt import settings
from polyopt.fuzz import log
from polyopt.fuzz.arrays import LAYOUTS, draw
from polyopt.fuzz.check import load
from polyopt.target import Target

Array = NDArray[Any]

DTYPES = ("f32", "f32", "f64", "i32", "bf16", "i8")
MOST_TERMS = 40_000_000
"""Multiply-adds of one contraction."""
MAGNITUDE = 3
"""Of the elements: no sum of products exceeds 2^24, up to which f32 holds every whole number."""
REWRITES = ("partial", "turned", "columns", "wide")
"""Parts of the names of temporaries that plans for such sizes have."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """One contraction with its arrays.

    source:   of a module with the operator `fuzzed`
    shapes:   of its arguments
    expected: the exact result
    """

    seed: int
    source: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[str, ...]
    threads: int
    expected: Callable[..., Array]

    def __str__(self) -> str:
        shapes = ", ".join(f"{layout} {shape}" for layout, shape in zip(self.layouts, self.shapes, strict=True))
        return f"seed {self.seed}, {self.threads} threads, {shapes}\n{self.source}"

    @property
    def arguments(self) -> list[Array]:
        return [
            draw(shape, self.dtype, -MAGNITUDE, MAGNITUDE, layout, seed=self.seed + number)
            for number, (shape, layout) in enumerate(zip(self.shapes, self.layouts, strict=True))
        ]


def random_contraction(seed: int) -> Contraction:
    """The contraction of a seed."""
    random = Random(seed)
    return random.choice((_long_sum, _long_sum, _of_tensors, _of_tensors, _window, _branches))(seed, random)


def rewrites(contraction: Contraction, target: Target) -> set[str]:
    """Those of `REWRITES` that its plan for a target has."""
    lowering = load(contraction.source).on(target).lower(*contraction.arguments)
    return {rewrite for rewrite in REWRITES if any(rewrite in array.name for array in lowering.scop.arrays)}


def failure(contraction: Contraction, target: Target | None = None) -> str:
    """What is wrong with the result of its kernel for a target, this machine's by default; empty where it is exact."""
    operator = load(contraction.source)
    if target is not None:
        operator = operator.on(target)
    arguments = contraction.arguments
    with settings.override(num_threads=contraction.threads):
        got = operator(*arguments)
    wanted = contraction.expected(*(argument.astype(np.float64) for argument in arguments))
    rounded = wanted.astype(got.dtype).astype(np.float64)
    wrong = np.argwhere(got.astype(np.float64) != rounded)
    if not len(wrong):
        return ""
    place = tuple(map(int, wrong[0]))
    return f"element {place} is {got[place]} and should be {rounded[place]}, {len(wrong)} are wrong: {contraction}"


def _drawn(seed: int, random: Random, source: str, shapes: Sequence[tuple[int, ...]], **fields: Any) -> Contraction:
    layouts = tuple(random.choice(LAYOUTS) if random.random() < 0.25 else "contiguous" for _ in shapes)
    return Contraction(seed, source, shapes=tuple(shapes), layouts=layouts, threads=random.randint(1, 3), **fields)


def _source(dtype: str, annotations: Sequence[str], body: Sequence[str], numerics: str = "default") -> str:
    parameters = ", ".join(f"{name}: po.{dtype}[{dims}]" for name, dims in zip("xyc", annotations))
    lines = ["import polyopt as po", "", f"@po.op(numerics={numerics!r})", f"def fuzzed({parameters}):"]
    return "\n".join([*lines, *(f"    {line}" for line in body)]) + "\n"


def _sizes(labels: str) -> str:
    return ", ".join(f'"{label.upper()}"' for label in labels)


def _product(
    seed: int,
    random: Random,
    labels: tuple[str, str, str],
    extents: dict[str, int],
    dtype: str,
    end: str,
    numerics: str,
) -> Contraction:
    """`z[...] += x[...] * y[...]`, and what comes after it. end: "", "relu", "bias" or "start" """
    left, right, result = labels
    every = sorted(set(left + right))
    element = ", ".join(result)
    body = [
        f"{', '.join(every)} = po.indices({' '.join(every)!r})",
        'z = po.tensor("z")',
        *([f"z[{element}] = c[{element}]"] if end == "start" else []),
        f"z[{element}] += x[{', '.join(left)}] * y[{', '.join(right)}]",
    ]
    if end in ("relu", "bias"):
        value = f"po.maximum(z[{element}], 0)" if end == "relu" else f"z[{element}] + c[{element}]"
        body += ['w = po.tensor("w")', f"w[{element}] = {value}", "return w"]
    else:
        body.append("return z")
    used = labels if end in ("bias", "start") else labels[:2]

    def expected(x: Array, y: Array, c: Array | None = None) -> Array:
        total = np.einsum(f"{left},{right}->{result}", x, y, optimize=True)
        return np.maximum(total, 0) if end == "relu" else total if c is None else total + c

    return _drawn(
        seed,
        random,
        _source(dtype, [_sizes(one) for one in used], body, numerics),
        [tuple(extents[label] for label in one) for one in used],
        dtype=dtype,
        expected=expected,
    )


def _long_sum(seed: int, random: Random) -> Contraction:
    """A product of matrices with many terms, now and then in a batch."""
    while True:
        extents = {
            "i": random.choice((1, 3, 16, 17, 31, 33, 33, 64, 65)),
            "j": random.choice((1, 5, 16, 31, 32, 33, 48, 64, 130)),
            "k": random.choice((1000, 1024, 2047, 4096, 4097, 5000, 6151, 8192, 9001)),
            "b": 2,
        }
        if prod(extents.values()) <= 2 * MOST_TERMS:
            break
    left, right, result = random.choice(("ik", "ki")), random.choice(("kj", "jk")), "ij"
    if random.random() < 0.25:
        left, right, result = "b" + left, random.choice(("", "b")) + right, "b" + result
    dtype = random.choice(DTYPES)
    ends = ("", "", "relu", "bias", "start") if dtype in ("f32", "f64", "i32") else ("", "relu")
    numerics = random.choice(("default", "default", "fast", "strict"))
    return _product(seed, random, (left, right, result), extents, dtype, random.choice(ends), numerics)


def _of_tensors(seed: int, random: Random) -> Contraction:
    """A product of tensors whose axes of each kind lie anyhow."""
    least = random.choice((2000, 500_000))
    while True:
        counts = [random.choice(choices) for choices in ((0, 0, 1), (1, 2), (1, 2), (1, 2))]
        letters = iter("abcdefgh")
        batch, rows, columns, summed = ([next(letters) for _ in range(count)] for count in counts)
        every = [*batch, *rows, *columns, *summed]
        extents = {label: random.choice((1, 2, 3, 7, 8, 12, 16, 17, 24, 32, 48)) for label in every}
        if least <= prod(extents.values()) <= MOST_TERMS:
            break
    left, right, result = (
        "".join(random.sample(one, len(one)))
        for one in ([*batch, *rows, *summed], [*batch, *columns, *summed], [*batch, *rows, *columns])
    )
    numerics = random.choice(("default", "default", "fast"))
    return _product(seed, random, (left, right, result), extents, random.choice(DTYPES), "", numerics)


_CONDITIONS: tuple[tuple[str, Callable[[Array, Array, Array], Array]], ...] = (
    ("k < 5", lambda i, j, k: k < 5),
    ("i < j", lambda i, j, k: i < j),
    ("j >= k", lambda i, j, k: j >= k),
    ("(i + k) % 3 == 1", lambda i, j, k: (i + k) % 3 == 1),
    ("i == 2", lambda i, j, k: i == 2),
    ("(k < 9) | (j % 2 == 0)", lambda i, j, k: (k < 9) | (j % 2 == 0)),
)
_CASES: tuple[tuple[str, Callable[[Array, Array, Array], Array]], ...] = (
    ("c[i, k] * {y}", lambda x, y, c: c * y),
    ("x[i, k] * 2 * {y}", lambda x, y, c: x * 2 * y),
    ("c[i, k] * {y} * 2", lambda x, y, c: c * y * 2),
    ("x[i, k]", lambda x, y, c: x),
    ("{y}", lambda x, y, c: y),
)


def _branches(seed: int, random: Random) -> Contraction:
    """A product of matrices by cases, which read operands again: each copy holds what all cases need of it."""
    rows, columns, terms = random.choice((17, 33, 64)), random.choice((33, 64, 96, 130)), random.choice((17, 37, 64))
    is_turned = random.random() < 0.5
    y = "y[k, j]" if is_turned else "y[j, k]"
    (first, is_first), (second, is_second) = random.sample(_CONDITIONS, 2)
    case, of_case = random.choice(_CASES)
    is_nested = random.random() < 0.5
    value = f"po.where({first}, x[i, k] * {y}, {case.format(y=y)})"
    body = [
        *(f"{name} = po.index({name!r}, extent={extent})" for name, extent in zip("ijk", (rows, columns, terms))),
        'z = po.tensor("z")',
        f"z[i, j] += po.where({second}, {value}, x[i, k] * {y} * 3)" if is_nested else f"z[i, j] += {value}",
        "return z",
    ]

    def expected(x: Array, y: Array, c: Array) -> Array:
        i, j, k = np.ogrid[:rows, :columns, :terms]
        x, y, c = x[:, None], (y.T if is_turned else y)[None], c[:, None]
        found = np.where(is_first(i, j, k), x * y, of_case(x, y, c))
        total: Array = (np.where(is_second(i, j, k), found, x * y * 3) if is_nested else found).sum(-1)
        return total

    shapes = [(rows, terms), (terms, columns) if is_turned else (columns, terms), (rows, terms)]
    dtype, numerics = (
        random.choice(("f32", "f32", "f64", "i32")),
        random.choice(("default", "default", "fast", "strict")),
    )
    source = _source(dtype, [", ".join(map(str, shape)) for shape in shapes], body, numerics)
    return _drawn(seed, random, source, shapes, dtype=dtype, expected=expected)


def _window(seed: int, random: Random) -> Contraction:
    """A convolution with zeros around the image, or without."""
    while True:
        batch, channels, filters = random.choice((1, 2, 3, 8)), random.choice((1, 3, 16, 33, 64)), random.randint(1, 66)
        height, width = random.choice((5, 7, 8, 14, 15)), random.choice((5, 7, 8, 14, 17, 33))
        size, stride = random.choice((1, 3, 3, 5)), random.choice((1, 1, 2))
        if batch * channels * filters * height * width * size * size <= MOST_TERMS:
            break
    tall, wide = -(-height // stride), -(-width // stride)
    dtype, half = random.choice(("f32", "f32", "f64", "i32", "i8")), size // 2
    body = [
        "b, c, o, h, w, r, s = po.indices('b c o h w r s')",
        f'z = po.tensor("z", shape=(x.shape[0], y.shape[0], {tall}, {wide}))',
        f"z[b, o, h, w] += x.pad(0)[b, c, {stride}*h + r - {half}, {stride}*w + s - {half}] * y[o, c, r, s]",
        "return z",
    ]

    def expected(x: Array, y: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (half, size), (half, size)))
        total = np.zeros((batch, filters, tall, wide))
        for r in range(size):
            for s in range(size):
                seen = padded[:, :, r : r + stride * tall : stride, s : s + stride * wide : stride]
                total += np.einsum("bchw,oc->bohw", seen, y[:, :, r, s], optimize=True)
        return total

    source = _source(dtype, [_sizes("bchw"), _sizes("ocrs")], body)
    shapes = [(batch, channels, height, width), (filters, channels, size, size)]
    return _drawn(seed, random, source, shapes, dtype=dtype, expected=expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="add the totals to this log")
    options = parser.parse_args()
    seed, failures, until = options.seed, 0, time.monotonic() + options.seconds
    while time.monotonic() < until:
        if report := failure(random_contraction(seed)):
            failures += 1
            sys.stdout.write(f"{report}\n")
        seed += 1
    count = seed - options.seed
    sys.stdout.write(f"seeds {options.seed} to {seed - 1}: {count - failures} of {count} are exact\n")
    if options.log is not None:
        counts = {"contractions": count}
        log.add(options.log, log.Entry("contractions", log.commit(), counts, failures, ((options.seed, seed - 1),)))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
