"""Random products large enough for four warps together, with what stands around them, on the emulator."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32
from polyopt.target import gpu_preset
from tests.codegen_cuda.running import Array, emulate, lowered
from tests.codegen_cuda.test_emulated import inputs, needs_compiler

B, M, N, K = po.sizes("B M N K")
b, i, j, k, c, r, s = po.indices("b i j k c r s")
AFTER = ("nothing", "nothing", "bias", "relu", "wider", "residual")


def whole(random: Random, dtype: Any, *shape: int) -> Array:
    """Small multiples of a half: their sums are exact in f32."""
    values = np.random.default_rng(random.randrange(1 << 30)).integers(-4, 5, shape) / 2
    found: Array = values.astype(dtype.numpy)
    return found


def finished(z: Any, at: tuple[Any, ...], column: Any, after: str, bias: Any, more: Any) -> object:
    """What is done with a product z at an element."""
    if after == "nothing":
        return z
    out = po.tensor("out")
    value = z[at]
    match after:
        case "bias":
            out[at] = value + bias[column]
        case "relu":
            out[at] = po.maximum(value, 0)
        case "wider":
            out[at] = po.cast(value, f32) * 0.5
        case _:
            out[at] = value + more[at]
    return out


def product(random: Random) -> tuple[Op, tuple[Array, ...]]:
    """A product of matrices in any layout, of a batch or not, onto a start or not."""
    dtype, after, wide = random.choice((bf16, f16)), random.choice(AFTER), random.choice((None, f32))
    left, right = random.choice(("mk", "km")), random.choice(("kn", "nk"))
    extents = {
        "m": random.choice((128, 120, 250)),
        "n": random.choice((256, 234, 512)),
        "k": random.choice((256, 198, 322)),
    }
    batch, is_shared, is_onto = random.choice((0, 0, 2)), random.random() < 0.5, random.random() < 0.3
    front = (batch,) if batch else ()
    x = whole(random, dtype, *front, *(extents[name] for name in left))
    y = whole(random, dtype, *(() if is_shared else front), *(extents[name] for name in right))
    bias, more = whole(random, dtype, extents["n"]), whole(random, dtype, *front, extents["m"], extents["n"])
    symbols, indices = {"m": M, "n": N, "k": K}, {"m": i, "n": j, "k": k}

    def multiply(x: Any, y: Any, bias: Any, more: Any) -> object:
        z = po.tensor("z", dtype=wide)
        at = (b, i, j) if batch else (i, j)
        first = tuple(indices[name] for name in left)
        second = tuple(indices[name] for name in right)
        if is_onto:
            z[at] = more[at] * 2
        z[at] += x[(b, *first) if batch else first] * y[(b, *second) if batch and not is_shared else second]
        return finished(z, at, j, after, bias, more)

    outer = (B,) if batch else ()
    multiply.__annotations__ = {
        "x": dtype[(*outer, *(symbols[name] for name in left))],
        "y": dtype[(*(() if is_shared else outer), *(symbols[name] for name in right))],
        "bias": dtype[(N,)],
        "more": dtype[(*outer, M, N)],
    }
    return po.op(multiply), (x, y, bias, more)


def convolution(random: Random) -> tuple[Op, tuple[Array, ...]]:
    """Windows over images, whose rows and columns are one side of the tiles."""
    dtype, after = random.choice((bf16, f16)), random.choice(("nothing", "relu", "wider"))
    batch, (height, width) = random.choice((1, 2)), random.choice(((8, 15), (16, 8), (5, 24), (10, 13)))
    rows, columns, channels = random.choice(((3, 3, 32), (1, 3, 72), (2, 2, 64), (1, 1, 256)))
    step, is_padded, is_turned = random.choice((1, 2)), random.random() < 0.5, random.random() < 0.5
    spare = (0, 0) if is_padded else (rows - step, columns - step)
    x = whole(random, dtype, batch, height * step + spare[0], width * step + spare[1], channels)
    f = whole(random, dtype, *((240, rows, columns, channels) if is_turned else (rows, columns, channels, 240)))

    def slide(x: Any, f: Any) -> object:
        y, h, w = po.tensor("y"), po.index("h", extent=height), po.index("w", extent=width)
        up, left = (rows // 2, columns // 2) if is_padded else (0, 0)
        source = x.pad(0) if is_padded else x
        weight = f[j, r, s, c] if is_turned else f[r, s, c, j]
        y[b, h, w, j] += source[b, step * h + r - up, step * w + s - left, c] * weight
        return finished(y, (b, h, w, j), j, after, None, None)

    slide.__annotations__ = {"x": dtype[x.shape], "f": dtype[f.shape]}
    return po.op(slide), (x, f)


@needs_compiler
@pytest.mark.parametrize("seed", range(16))
def test_kernels_give_what_the_reference_gives(seed: int) -> None:
    random = Random(seed)
    op, args = (convolution if seed % 3 == 0 else product)(random)
    lowering = lowered(op, *args, target=gpu_preset("sm_90", sms=random.choice((1, 2))))
    assert not lowering.fallback
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    np.testing.assert_array_equal(outcome.results[0], op.reference(*args, numerics="strict"))


def test_nearly_all_of_them_are_of_four_warps() -> None:
    found = []
    for seed in range(16):
        op, args = (convolution if seed % 3 == 0 else product)(Random(seed))
        found.append("wgmma" in str(lowered(op, *args, target=gpu_preset("sm_90", sms=1)).mapping))
    assert sum(found) >= 12, found
