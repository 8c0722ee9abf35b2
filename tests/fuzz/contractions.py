"""Random contractions of the sizes that plans are made for, against NumPy, to the bit.

    python -m tests.fuzz.contractions --seconds 600 --seed 0 --log tests/reliability.json

Long sums, products of tensors whose axes lie anyhow, convolutions, products by cases, rows side by side and turned
results: the smallest programs that are packed, turned, summed in parts or over columns, which random programs of a few
elements never are. Elements are whole numbers so small that every sum is exact in any order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from random import Random

import numpy as np

from polyopt.fuzz import log
from tests.fuzz.exact import MOST_TERMS, Array, Exact, drawn, failure, source
from tests.fuzz.rows import rows, turned
from tests.fuzz.windows import window

DTYPES = ("f32", "f32", "f64", "i32", "bf16", "i8")


def random_contraction(seed: int) -> Exact:
    """The contraction of a seed."""
    random = Random(seed)
    kinds = (_long_sum, _long_sum, _of_tensors, _of_tensors, window, window, window, _branches, rows, turned)
    return random.choice(kinds)(seed, random)


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
) -> Exact:
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

    return drawn(
        seed,
        random,
        source(dtype, [_sizes(one) for one in used], body, numerics),
        [tuple(extents[label] for label in one) for one in used],
        dtype,
        expected,
    )


def _long_sum(seed: int, random: Random) -> Exact:
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


def _of_tensors(seed: int, random: Random) -> Exact:
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


def _branches(seed: int, random: Random) -> Exact:
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
    text = source(dtype, [", ".join(map(str, shape)) for shape in shapes], body, numerics)
    return drawn(seed, random, text, shapes, dtype, expected)


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
