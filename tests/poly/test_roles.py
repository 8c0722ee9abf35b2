"""What a statement's axes do, read off its subscripts."""

from __future__ import annotations

from typing import Any

import polyopt as po
from polyopt import f32, i64
from polyopt.poly.roles import AxisRoles, Roles, roles_of
from polyopt.poly.scop import Statement
from tests.poly.operators import K, M, N, histogram, i, j, k, product, softmax


def update_of(op: po.Op, **sizes: Any) -> Statement:
    return next(s for s in op.lower(**sizes).scop.statements if s.is_update)


def test_a_matrix_product_is_a_contraction() -> None:
    assert roles_of(update_of(product, M=4, N=5, K=6)) == AxisRoles(
        ("i", "j"), ("k",), (frozenset("j"), frozenset("i")), contraction=True
    )


def test_a_matrix_times_a_vector_is_none_for_one_operand_is_not_reused_apart_from_the_other() -> None:
    @po.op
    def matvec(a: f32[M, K], x: f32[K]):
        y = po.tensor("y")
        y[i] += a[i, k] * x[k]
        return y

    found = roles_of(update_of(matvec, M=4, K=5))
    assert not found.contraction and found.reuse == (frozenset(), frozenset("i"))
    assert found.axes == ("i", "k")


def test_an_outer_product_sums_over_nothing_and_is_no_contraction() -> None:
    @po.op
    def outer(x: f32[M], y: f32[N]):
        z = po.tensor("z")
        z[i, j] = x[i] * y[j]
        return z

    (statement,) = outer.lower(M=3, N=4).scop.statements
    assert roles_of(statement) == AxisRoles(("i", "j"), (), (frozenset("j"), frozenset("i")), contraction=False)


def test_free_axes_come_in_the_order_of_the_written_element() -> None:
    @po.op
    def turned(x: f32[M, N]):
        y = po.tensor("y")
        y[j, i] = x[i, j]
        return y

    (statement,) = turned.lower(M=3, N=4).scop.statements
    assert roles_of(statement).free == ("j", "i")


def test_a_scatter_reduces_over_the_axes_of_its_data_subscripts() -> None:
    found = roles_of(update_of(histogram, N=4, count=3))
    assert found.free == () and found.reduced == ("i",)


def test_a_read_depends_on_the_axes_inside_its_data_subscripts() -> None:
    @po.op
    def gather(x: f32[M, N], ids: i64[K]):
        y = po.tensor("y")
        y[k, j] = x[ids[k], j]
        return y

    (statement,) = gather.lower(M=3, N=4, K=5).scop.statements
    by_array = dict(zip([a.read.tensor for a in statement.reads], roles_of(statement).reuse, strict=True))
    assert by_array == {"x": frozenset(), "ids": frozenset("j")}


def test_sizes_are_known_in_bytes_unless_symbolic() -> None:
    roles = Roles.of(softmax.lower(M=3, N=4).scop)
    assert roles.bytes("x") == 3 * 4 * 4
    assert set(roles.by_statement) == set(roles.statements)

    @po.op(dynamic=True)
    def copy(x: f32[M]):
        y = po.tensor("y")
        y[i] = x[i]
        return y

    assert Roles.of(copy.lower().scop).bytes("x") == 0
