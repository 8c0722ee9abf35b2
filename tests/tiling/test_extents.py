"""Trip counts as the cost models see them."""

from __future__ import annotations

import pytest

import polyopt as po
from examples.cholesky import cholesky
from polyopt import f32
from polyopt.dsl.affine import Affine, axis
from polyopt.tiling.extents import ASSUMED, Extents
from tests import brute_force
from tests.poly.operators import M, N, blurred, gauss_seidel, i, j, jacobi_1d, lower_triangle_solve, product

STATIC = {
    "gauss_seidel": lambda: gauss_seidel.lower(M=5, N=7),
    "jacobi_1d": lambda: jacobi_1d.lower(N=9, steps=3),
    "lower_triangle_solve": lambda: lower_triangle_solve.lower(N=6),
    "product": lambda: product.lower(M=3, N=4, K=5),
}


@pytest.mark.parametrize("name", STATIC)
def test_extents_are_those_of_the_box_around_the_points(name: str) -> None:
    scop = STATIC[name]().scop
    extents = Extents(scop)
    for statement in scop.statements:
        points = brute_force.points(statement.domain)
        for position, axis_name in enumerate(statement.axes):
            values = [point[position] for point in points]
            assert extents.axis(statement.name, axis_name) == max(values) - min(values) + 1
        assert len(points) <= extents.instances(statement.name)


def test_instances_of_a_box_are_its_points() -> None:
    extents = Extents(product.lower(M=3, N=4, K=5).scop)
    assert [extents.instances(name) for name in ("y_init", "y_update", "out")] == [12, 60, 12]


def test_points_of_a_triangle_are_counted_and_not_those_of_its_box() -> None:
    """192^3 / 6 updates of a Cholesky factorisation, and not 192^3: threads are woken for what there is to do."""
    scop = cholesky.lower(N=24).scop
    extents = Extents(scop)
    for statement in scop.statements:
        counted, box = len(brute_force.points(statement.domain)), extents.instances(statement.name)
        assert abs(extents.points(statement.name) - counted) <= 0.1 * counted + 2 <= box + 2


def test_points_of_a_box_are_exact() -> None:
    extents = Extents(product.lower(M=3, N=4, K=5).scop)
    assert [extents.points(name) for name in ("y_init", "y_update", "out")] == [12, 60, 12]


def test_what_a_tile_computes_counts_once_per_tile() -> None:
    """The rows of a producer lie within the tile that is its first axis: no tile computes the whole array."""
    scop = blurred.lower(M=3002, N=3002).scop
    producer, consumer = scop.statement("across"), scop.statement("down")
    assert producer.axes == ("i_tile", "j_tile", "i", "j"), "attached by tiles"
    extents = Extents(scop)
    assert extents.instances(consumer.name) == 3000 * 3000
    assert extents.instances(producer.name) <= 1.2 * 3000 * 3000


def test_a_row_has_as_many_values_as_the_sum_of_its_axes() -> None:
    @po.op
    def nothing(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j]
        return y

    scop = nothing.lower(M=3, N=10).scop
    extents = Extents(scop)
    assert extents.row("y", axis("i")) == 3
    assert extents.row("y", axis("i") + axis("j") * 2) == 3 + 2 * 10
    assert extents.row("y", Affine(5)) == 1
    assert extents.row("y", axis("j") // 3 * 3) == 4


def test_symbolic_extents_are_assumed() -> None:
    @po.op(dynamic=True)
    def copy(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j]
        return y

    extents = Extents(copy.lower().scop)
    assert extents.axis("y", "i") == ASSUMED and extents.instances("y") == ASSUMED**2


def test_an_axis_of_a_symbolic_size_has_what_it_gains_when_the_size_does() -> None:
    """Long known rows counted as 512, and tiles as if there were one for each point."""

    @po.op(dynamic=["M"])
    def halves(x: f32[M, N]):
        y = po.tensor("y", shape=(M - 3, N))
        z = po.tensor("z", shape=(M // 2, N))
        y[i, j] = x[i + 3, j]
        z[i, j] = x[2 * i, j]
        return y, z

    extents = Extents(halves.lower(N=2048).scop)
    assert extents.axis("y", "i") == ASSUMED and extents.axis("z", "i") == ASSUMED // 2
    assert extents.points("y") == ASSUMED * 2048
