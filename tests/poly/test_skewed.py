"""Tables of wavefronts: stored by antidiagonals, so that lanes read neighbours, and the same numbers."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.loops.ir import For, Stmt, stores_of, walk
from polyopt.runtime import pool
from tests.poly.operators import M, N

Array = np.ndarray[Any, Any]

B = po.size("B")
b, p, q = po.indices("b p q")


@po.op
def common(x: i32[M], y: i32[N]):
    """The length of the longest common subsequence."""
    length, row, column = po.tensor("length", dtype=i32), po.index("row", extent=M + 1), po.index("column", 1, N + 1)
    length[row, 0] = 0
    length[0, column] = 0
    length[p + 1, q + 1] = po.where(x[p] == y[q], length[p, q] + 1, po.maximum(length[p, q + 1], length[p + 1, q]))
    return length[M, N]


@po.op
def table(x: i32[M], y: i32[N]):
    """The edit distances of all prefixes."""
    d, row, column = po.tensor("d", dtype=i32), po.index("row", extent=M + 1), po.index("column", 1, N + 1)
    d[row, 0] = po.cast(row, i32)
    d[0, column] = po.cast(column, i32)
    d[p + 1, q + 1] = po.minimum(po.minimum(d[p, q + 1], d[p + 1, q]) + 1, d[p, q] + po.where(x[p] == y[q], 0, 1))
    return d


@po.op
def warped(x: f32[B, M], y: f32[N]):
    """Dynamic time warping of a batch."""
    d, down, right = po.tensor("d"), po.index("down", 0, M - 1), po.index("right", 0, N - 1)
    d[b, 0, 0] = po.abs(x[b, 0] - y[0])
    d[b, down + 1, 0] = d[b, down, 0] + po.abs(x[b, down + 1] - y[0])
    d[b, 0, right + 1] = d[b, 0, right] + po.abs(x[b, 0] - y[right + 1])
    d[b, down + 1, right + 1] = po.abs(x[b, down + 1] - y[right + 1]) + po.minimum(
        po.minimum(d[b, down, right + 1], d[b, down + 1, right]), d[b, down, right]
    )
    return d[:, M - 1, N - 1]


def vectors(body: Stmt) -> list[For]:
    return [loop for loop in walk(body) if isinstance(loop, For) and loop.kind == "vector"]


def words(m: int, n: int) -> tuple[Array, Array]:
    random = np.random.default_rng(m * 1000 + n)
    return random.integers(0, 3, m).astype(np.int32), random.integers(0, 3, n).astype(np.int32)


def distances(x: Array, y: Array) -> Array:
    d = np.zeros((len(x) + 1, len(y) + 1), np.int32)
    d[:, 0], d[0] = range(len(x) + 1), range(len(y) + 1)
    for row, column in itertools.product(range(len(x)), range(len(y))):
        step = d[row, column] + (x[row] != y[column])
        d[row + 1, column + 1] = min(d[row, column + 1] + 1, d[row + 1, column] + 1, step)
    return d


SIZES = [(1, 1), (2, 3), (15, 17), (33, 31), (40, 40), (64, 33), (33, 120), (100, 35)]


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_tables_give_the_reference(m: int, n: int) -> None:
    x, y = words(m, n)
    assert common(x, y) == common.reference(x, y)
    np.testing.assert_array_equal(table(x, y), distances(x, y))
    rows = np.stack([x, 2 - x, x % 2]).astype(np.float32)
    np.testing.assert_array_equal(warped(rows, y.astype(np.float32)), warped.reference(rows, y.astype(np.float32)))


def test_lanes_find_their_neighbours_and_no_two_elements_share_a_place() -> None:
    """A lane is one row further down and one column further left."""
    for lowered, name in (
        (common.lower(M=70, N=50), "length"),
        (table.lower(M=70, N=50), "d_table"),
        (warped.lower(B=2, M=60, N=70), "d"),
    ):
        found = lowered.storage.of(name)
        assert found is not None and found.strides is not None
        down, right = found.strides[-2:]
        assert abs(down - right) == 1 and "antidiagonal" in str(lowered.storage)
        shape = [extent.constant for extent in found.extent]
        places = [sum(s * i for s, i in zip(found.strides, element)) for element in np.ndindex(*shape)]
        assert len(set(places)) == len(places)
        waves = [store for loop in vectors(lowered.loops.body) for store in stores_of(loop) if store.buffer == name]
        assert waves, "the table is computed in lanes"


def test_a_result_is_copied_from_its_table() -> None:
    lowered = table.lower(M=70, N=50)
    assert "d is copied from a table" in str(lowered.fusion) and "d_table" in str(lowered.loops)
    assert "d_table" not in str(table.lower(M=20, N=50).loops)  # short ones stay where they are


def test_a_table_that_would_grow_too_much_keeps_its_rows() -> None:
    """Lanes run down the table: with few columns there are many antidiagonals, each of them almost empty."""
    for m, n, is_skewed in ((40, 4000, True), (4000, 40, False), (20_000, 20_000, False)):
        found = common.lower(M=m, N=n).storage.of("length")
        assert found is not None and (found.strides is not None) == is_skewed
        assert ("d_table" in str(table.lower(M=m, N=n).loops)) == is_skewed


def test_what_others_read_often_keeps_its_rows() -> None:
    @po.op
    def summed_up(x: i32[M], y: i32[N], w: i32[B, M]):
        d, s = po.tensor("d", dtype=i32), po.tensor("s")
        d[p, q] = po.maximum(d.pad(0)[p - 1, q], d.pad(0)[p, q - 1]) + x[p] * y[q]
        s[b, q] += w[b, p] * d[p, q]
        return s

    x, y = words(40, 50)
    w = np.arange(400, dtype=np.int32).reshape(10, 40) % 7
    found = summed_up.lower(x, y, w).storage.of("d")
    assert found is not None and found.strides is None
    np.testing.assert_array_equal(summed_up(x, y, w), summed_up.reference(x, y, w))


def test_recurrences_that_rows_settle_are_no_wavefronts() -> None:
    @po.op
    def pascal(x: i32[N]):
        """Each row needs the one above alone."""
        d, row, column = po.tensor("d"), po.index("row", extent=40), po.index("column", extent=N)
        d[0, column] = x[column]
        d[row + 1, column] = d[row, column] + d.pad(0)[row, column - 1]
        return d

    assert "table" not in str(pascal.lower(N=50).loops)


def test_every_size_is_checked_against_an_enumeration() -> None:
    x, y = words(37, 34)
    with po.strict_checks():
        np.testing.assert_array_equal(table(x, y), distances(x, y))


@pytest.mark.parametrize("printed", [False, True])
def test_saved_kernels_have_room_for_the_table(tmp_path: Path, printed: bool) -> None:
    """The library, and what gcc makes of the printed source, agree."""
    x, y = words(45, 60)
    saved = table.lower(M=45, N=60).save(str(tmp_path / "table"))
    binary = saved.binary
    if printed:
        binary = tmp_path / "printed.so"
        subprocess.run(["gcc", "-std=c11", "-O1", "-shared", "-fPIC", str(saved.source), "-o", str(binary)], check=True)
    d = np.zeros((46, 61), np.int32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, d)]
    assert ctypes.CDLL(str(binary)).table(*pointers) == 0
    np.testing.assert_array_equal(d, distances(x, y))


@pytest.mark.parametrize("threads", [1, 4])
def test_small_tables_of_a_batch_are_by_diagonals_too(threads: int) -> None:
    """A table for each thread, small enough for its stack."""
    random = np.random.default_rng(3)
    x, y = random.integers(0, 5, (9, 40)).astype(np.float32), random.integers(0, 5, 40).astype(np.float32)
    found = warped.lower(x, y).storage.of("d")
    assert found is not None and found.scope and found.strides is not None
    po.set_num_threads(threads)
    try:
        np.testing.assert_array_equal(warped(x, y), warped.reference(x, y))
    finally:
        po.set_num_threads(pool.usable_cores())


def test_tables_that_depend_on_each_other_stay_where_they_are() -> None:
    @po.op
    def gaps(x: i32[M], y: i32[N]):
        """Two tables, of which each element of one needs the other."""
        best, open_ = po.tensor("best", dtype=i32), po.tensor("open_", dtype=i32)
        open_[p, q] = po.maximum(best.pad(0)[p - 1, q] - 3, open_.pad(0)[p - 1, q] - 1) + 0 * x[p] * y[q]
        best[p, q] = po.maximum(best.pad(0)[p, q - 1] - 2, open_[p, q]) + x[p] * y[q]
        return best, open_

    x, y = words(40, 50)
    for found, wanted in zip(gaps(x, y), gaps.reference(x, y), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert "table" not in str(gaps.lower(x, y).loops)


def test_a_table_that_something_of_an_open_size_reads_stays_in_rows() -> None:
    """Its points were counted: "can only convert integer Val to python"."""
    batches = po.size("batches")

    @po.op(dynamic=["batches"])
    def copies(x: i32[M], y: i32[N], z: i32[batches]):
        d, copy = po.tensor("d", dtype=i32), po.tensor("copy")
        row, column = po.index("row", extent=M + 1), po.index("column", 1, N + 1)
        d[row, 0] = po.cast(row, i32)
        d[0, column] = po.cast(column, i32)
        d[p + 1, q + 1] = po.minimum(po.minimum(d[p, q + 1], d[p + 1, q]) + 1, d[p, q] + x[p] * y[q])
        copy[b, q] = d[M, q + 1] + z[b]
        return copy

    x, y = words(40, 50)
    z = np.arange(3, dtype=np.int32)
    np.testing.assert_array_equal(copies(x, y, z), copies.reference(x, y, z))
