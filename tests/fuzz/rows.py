"""Random sums along long rows, a few at a time, of one operand or of products."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np

from tests.fuzz.exact import Array, Exact, drawn, source

_TERMS = (
    ("x[{i}, {k}] * y[{k}]", lambda x, y: x * y),
    ("x[{i}, {k}] * y[{k}] + 1", lambda x, y: x * y + 1),
    ("x[{i}, {k}]", lambda x, y: x),
    ("x[{i}, {k}] * x[{i}, {k}]", lambda x, y: x * x),
    ("po.abs(x[{i}, {k}] - y[{k}])", lambda x, y: np.abs(x - y)),
)
_REDUCTIONS = (("po.sum", np.sum), ("po.sum", np.sum), ("po.max", np.max), ("po.min", np.min))


def rows(seed: int, random: Random) -> Exact:
    """One or two reductions along each row, or each second one, from some column on, maybe of a part of the rows."""
    count, run = random.choice((7, 8, 9, 12, 13, 33)), random.choice((130, 1000, 1024, 2047, 4096, 6151))
    step, first, column = random.choice((1, 1, 1, 2)), random.choice((0, 0, 1)), random.choice((0, 0, 1, 3))
    drawn_parts = [(*random.choice(_TERMS), *random.choice(_REDUCTIONS)) for _ in range(random.choice((1, 1, 2)))]
    is_by_equation, sign = random.random() < 0.5, random.choice("+-")
    i, k = f"{step}*i + {first}" if step > 1 or first else "i", f"k + {column}" if column else "k"
    body = [f'i, k = po.index("i", extent={count}), po.index("k", extent={run})']
    names = []
    for number, (text, _, reduction, _) in enumerate(drawn_parts):
        term, name = text.format(i=i, k=k), f"z{number}"
        names.append(f"{name}[i]")
        body.append(f'{name} = po.tensor("{name}", shape=({count},))')
        is_sum = is_by_equation and reduction == "po.sum"
        body.append(f"{name}[i] += {term}" if is_sum else f"{name}[i] = {reduction}({term}, k)")
    body += ['v = po.tensor("v")', f"v[i] = {f' {sign} '.join(names)}", "return v"]
    shapes = [(step * count + first, run + column), (run + column,)]
    dtype, numerics = random.choice(("f32", "f32", "f64")), random.choice(("default", "default", "fast", "strict"))

    def expected(x: Array, y: Array) -> Array:
        x, y = x[first : first + step * count : step, column:], y[column:]
        parts = [np.asarray(reduce(term(x, y), axis=-1)) for _, term, _, reduce in drawn_parts]
        return np.asarray(parts[0] if len(parts) < 2 else parts[0] + parts[1] if sign == "+" else parts[0] - parts[1])

    text = source(dtype, [", ".join(map(str, shape)) for shape in shapes], body, numerics)
    special = random.choice((0, 1)) if numerics != "fast" and random.random() < 0.15 else None
    return drawn(seed, random, text, shapes, dtype, expected, special=special)


def turned(seed: int, random: Random) -> Exact:
    """Elements of one or two arrays whose axes lie in other orders than those of the result."""
    axes = "abc"[: random.choice((2, 2, 3))]
    while True:
        extents = {one: random.choice((1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 70)) for one in axes}
        if 500 <= prod(extents.values()) <= 200_000:
            break
    left, right, result = ("".join(random.sample(axes, len(axes))) for _ in range(3))
    x, y, place = (f"[{', '.join(one)}]" for one in (left, right, result))
    value, of = random.choice(
        (
            (f"x{x}", lambda x, y: x),
            (f"x{x} * 2 + y{y}", lambda x, y: x * 2 + y),
            (f"po.where(x{x} > 0, x{x}, y{y})", lambda x, y: np.where(x > 0, x, y)),
            (f"po.maximum(x{x}, y{y}) - x{x}", lambda x, y: np.maximum(x, y) - x),
        )
    )
    body = [
        *(f'{name} = po.index("{name}", extent={extent})' for name, extent in extents.items()),
        'z = po.tensor("z")',
        f"z{place} = {value}",
        "return z",
    ]

    def expected(x: Array, y: Array) -> Array:
        return np.asarray(of(np.einsum(f"{left}->{result}", x), np.einsum(f"{right}->{result}", y)))

    shapes = [tuple(extents[one] for one in dims) for dims in (left, right)]
    dtype = random.choice(("f32", "f64", "i32", "i8", "bf16"))
    text = source(dtype, [", ".join(map(str, shape)) for shape in shapes], body)
    return drawn(seed, random, text, shapes, dtype, expected)
