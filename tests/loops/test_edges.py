"""Last tiles with the rows and lanes that are left: known lengths wherever sizes are, and the same instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32
from polyopt.loops import edges
from polyopt.loops.affine import as_affine
from polyopt.loops.instances import enumerate_instances
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import For, If, LoopProgram, walk
from polyopt.target import preset
from tests.poly.operators import K, M, N, i, j, k, linear_relu, product


@po.op
def lower_triangle(x: f32[N, K]):
    z = po.tensor("z")
    z[i, j] += po.when(j <= i, x[i, k] * x[j, k])
    return z


@po.op
def matrix_vector(x: f32[M, K], y: f32[K]):
    z = po.tensor("z")
    z[i] += x[i, k] * y[k]
    return z


def lengths(program: LoopProgram, variable: str) -> set[int | None]:
    """Iterations of the loops over the points of a tile; None for a number that is not known."""
    found: set[int | None] = set()
    for loop in walk(program.body):
        if isinstance(loop, For) and loop.var == variable and loop.kind in ("unrolled", "vector"):
            lower, upper = as_affine(loop.lower), as_affine(loop.upper)
            known = lower is not None and upper is not None and (upper - lower).is_constant
            found.add((upper - lower).constant if known and lower is not None and upper is not None else None)
    return found


@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("sizes", [(129, 129, 16), (17, 70, 8), (40, 513, 600)], ids=str)
def test_every_tile_of_a_product_has_a_known_length(target: str, sizes: tuple[int, int, int]) -> None:
    m, n, depth = sizes
    program = product.lower(M=m, N=n, K=depth, target=preset(target)).loops
    for variable in ("i", "j"):
        assert None not in lengths(program, variable)


def test_the_last_tile_has_the_rows_that_are_left() -> None:
    program = product.lower(M=129, N=64, K=64, target=preset("avx512")).loops
    full, rest = sorted(length or 0 for length in lengths(program, "i"))[::-1]
    assert rest == 129 % full


def test_tiles_that_fill_their_axis_are_written_once() -> None:
    program = product.lower(M=24, N=64, K=16, target=preset("avx2")).loops
    assert lengths(program, "i") == {next(iter(lengths(program, "i")))} and not any(
        isinstance(inner, If) for inner in walk(program.body)
    )


def test_rows_of_a_triangle_end_where_their_tile_does() -> None:
    """Their lanes end at the diagonal, as before."""
    program = lower_triangle.lower(N=50, K=16, target=preset("avx512")).loops
    ends = {str(loop.upper) for loop in walk(program.body) if isinstance(loop, For) and loop.kind == "unrolled"}
    assert not any("minimum" in end for end in ends)


def test_symbolic_sizes_keep_their_bounds() -> None:
    body = product.lower(target=preset("avx512")).loops.body
    assert isinstance(body, If) and body.otherwise is not None, "a version for many rows, one for few"
    assert not any(isinstance(inner, If) for nest in (body.then, body.otherwise) for inner in walk(nest))


@pytest.mark.parametrize("sizes", [(5, 7, 2), (17, 34, 2), (9, 130, 1)], ids=str)
def test_the_same_instances_in_the_same_order(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]) -> None:
    m, n, depth = sizes

    def instances() -> list[tuple[str, tuple[int, ...]]]:
        program = linear_relu.lower(M=m, N=n, K=depth, target=preset("avx2")).loops
        return [(one.statement, one.point) for one in enumerate_instances(program)]

    cut = instances()
    monkeypatch.setattr(edges, "split", lambda program: program)
    assert cut == instances()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 33, 63, 65])
def test_products_of_every_remainder_are_exact(size: int) -> None:
    numbers: Any = np.random.default_rng(size)
    x, y = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((size, 40), (40, size + 2)))
    np.testing.assert_array_equal(product(x, y), np.maximum(x @ y, 0))


@pytest.mark.parametrize("rows", [8, 9, 11, 30, 33])
def test_rows_a_tile_apart_are_as_many_as_there_are_tiles(rows: int) -> None:
    program = matrix_vector.lower(M=rows, K=2000, target=preset("avx512")).loops
    apart = -(-rows // 4)
    most = -(-rows // apart)
    wanted = {most} if rows % apart == 0 else {most, most - 1}
    assert lengths(program, "i") == wanted
    places = [*enumerate_instances(program)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(("slope", "offset", "rows", "depth"), [(2, 37, 20, 3), (8, 154, 21, 12)])
def test_slopes_of_products_that_end_in_few_quotients(slope: int, offset: int, rows: int, depth: int) -> None:
    """The quotient stayed inside the smaller of two ends, and the loop was taken apart for it again and again."""

    @po.op
    def sloped(x: f32[M, K], y: f32[K, N]):
        z = po.tensor("z", shape=(M, N))
        z[i, j] = po.sum(x[i, k] * y[k, j], k, where=slope * i <= k + offset)
        return z

    numbers: Any = np.random.default_rng(rows)
    x, y = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((rows, depth), (depth, 64)))
    expected = sloped.reference(x, y)
    for target in ("avx2", "avx512"):
        lowering = sloped.lower(x, y, target=preset(target))
        assert not lowering.fallback
        z = np.zeros((rows, 64), np.float32)
        interpret(lowering.loops, {"x": x, "y": y, "z": z}, seed=1)
        np.testing.assert_array_equal(z, expected)
    np.testing.assert_array_equal(sloped(x, y), expected)
