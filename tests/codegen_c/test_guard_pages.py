"""Nothing behind the last element of an array is touched, whatever the type, the length and the step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyopt as po
from polyopt.dsl.ir import Cast
from polyopt.dtypes import ALL, DType, f32
from polyopt.loops.ir import Block
from polyopt.target import host
from polyopt.testing.guarded import guarded_copy, survives
from tests.codegen_c.kernels import guarded, i, load, loop, op, run, store

LENGTHS = (1, 2, 3, 15, 17, 31, 33, 65, 127)


def copies(dtype: DType, vector_bits: int) -> None:
    """Converts, copies, gathers with a step and scatters with one, between arrays that end at a guard page."""
    for n in LENGTHS:
        x, wide = guarded(np.ones(n, dtype.numpy)), guarded(np.zeros(n, np.float32))
        y, spread = guarded(np.zeros(n, dtype.numpy)), guarded(np.zeros(3 * n - 2, dtype.numpy))
        value = load("x", i, dtype=dtype)
        stretched = load("spread", op("mul", i, 3), dtype=dtype)
        body = Block(
            (
                loop("i", n, store("wide", [i], Cast(value, f32)), kind="vector"),
                loop("i", n, store("spread", [op("mul", i, 3)], Cast(load("wide", i), dtype)), kind="vector"),
                loop("i", n, store("y", [i], stretched), kind="vector"),
            )
        )
        run(body, {"x": x, "wide": wide, "spread": spread, "y": y}, vector_bits=vector_bits)
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(np.delete(spread, slice(None, None, 3)), 0)


def every_dtype(vector_bits: int) -> None:
    for dtype in ALL:
        sys.stdout.write(f"{dtype}\n")
        sys.stdout.flush()
        copies(dtype, vector_bits)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("vector_bits", [128, 256, 512])
def test_no_access_leaves_an_array(vector_bits: int) -> None:
    call = f"from tests.codegen_c.test_guard_pages import every_dtype; every_dtype({vector_bits})"
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"an access behind an array of {done.stdout.split()[-1:]}\n{done.stderr}"


def outer_products() -> None:
    """Tiles of 16 columns over 29: what a full tile reads, whatever the row, stays within the full tiles."""
    m, n, k = po.sizes("M N K")
    r, c, s = po.indices("r c s")

    @po.op
    def product(x: po.i8[m, k], y: po.i8[k, n]):
        z = po.tensor("z")
        z[r, c] += x[r, s] * y[s, c]
        return z

    for columns in (13, 29, 31, 33):
        x, y = guarded(np.ones((17, 1), np.int8)), guarded(np.full((1, columns), 2, np.int8))
        np.testing.assert_array_equal(product(x, y), np.full((17, columns), 2, np.int32))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_full_tiles_read_nothing_where_tiles_are_partial() -> None:
    call = "from tests.codegen_c.test_guard_pages import outer_products; outer_products()"
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("guard", ["pad", "where", "bounds"])
def test_a_block_of_columns_is_read_where_all_of_them_are(guard: str) -> None:
    """A column whose guard is true when it is written out brought its neighbours along, whose guards are false."""
    lanes = host().lanes(32)
    rows, columns = 4 * lanes, lanes - 3
    a, b, c = po.index("a", 0, lanes), po.index("b", 0, rows), po.index("c")

    @po.op
    def turned(x: po.f32[rows, columns]):
        y = po.tensor("y", shape=(lanes, rows))
        if guard == "pad":
            y[a, b] = x.pad(0)[b, a] + 1
        elif guard == "where":
            y[a, b] = po.where(a < columns, x[b, a], -1) + 1
        else:
            y[a, b] = 1
            y[a, b] += po.where(a + c < columns, x[b, a + c], 0)
        return y

    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    padded = np.pad(x, ((0, 0), (0, 3)), constant_values=-1 if guard == "where" else 0).T
    wanted = 1 + (np.cumsum(padded[::-1], 0)[::-1] if guard == "bounds" else padded)
    np.testing.assert_array_equal(turned(x), wanted)
    assert survives(lambda: turned(guarded_copy(x).array))
