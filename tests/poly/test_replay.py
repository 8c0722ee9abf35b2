"""Instances one by one in the order of a tree: equal to the reference, and an error where the order is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f64, i64
from polyopt.errors import LegalityError
from polyopt.poly.replay import points, replay
from polyopt.poly.tree import Sequence, loops
from tests.poly.operators import M, N, gauss_seidel, histogram, jacobi_1d, layernorm, prefix, product, softmax


def replayed(op: po.Op, *arguments: object) -> tuple[np.ndarray, ...]:
    lowering = op.lower(*arguments)
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    inputs = dict(zip(lowering.program.parameters, arrays, strict=True))
    found = replay(lowering.scop, lowering.tree, inputs)
    assert set(found) == set(lowering.program.results)
    return tuple(found[name] for name in lowering.program.results)


NUMBERS = np.random.default_rng(0)
CASES: dict[str, Any] = {
    "gauss_seidel": (gauss_seidel, NUMBERS.random((4, 5))),
    "jacobi_1d": (jacobi_1d, NUMBERS.random(6), 3),
    "layernorm": (layernorm, *(NUMBERS.random(s, np.float32) for s in ((3, 4), 4, 4))),
    "prefix": (prefix, NUMBERS.random(5)),
    "product": (product, NUMBERS.random((2, 3), np.float32), NUMBERS.random((3, 4), np.float32)),
    "softmax": (softmax, NUMBERS.random((2, 3), np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_replaying_the_final_tree_gives_the_reference(name: str) -> None:
    op, *arguments = CASES[name]
    (result,) = replayed(op, *arguments)
    np.testing.assert_allclose(result, op.reference(*arguments), rtol=1e-5)


def test_every_form_of_value_can_be_replayed() -> None:
    @po.op
    def forms(x: f64[M, N], ids: i64[N]):
        a, b, c, d = po.tensors("a b c d")
        i, j = po.index("i", extent=M), po.index("j", extent=N)
        a[i, j] = po.where(i < j, x.pad(2.0)[i - 1, j], x.clamp()[i + 1, j + 1]) + po.cast(i, f64)
        b[j] = po.max(x[i, j], i) * x.wrap()[0, j + 1] - x[0, ids[j]]
        c[j] = po.reduce(lambda p, q: po.maximum(p, q) + 0.0, x[i, j], i, init=-9.0)
        d[()] = po.prod(x[i, 0], i)
        return a, b, c, d, po.min(x), po.any(x > 0.9), po.all(x > 0.0)

    arguments = NUMBERS.random((3, 4)), np.array([3, 0, 2, 1])
    for found, wanted in zip(replayed(forms, *arguments), forms.reference(*arguments), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_scatter_is_replayed_element_by_element() -> None:
    lowering = histogram.lower(N=4, count=3)
    inputs = {"bins": np.array([0, 2, 2, 0]), "weights": np.arange(4.0)}
    assert replay(lowering.scop, lowering.tree, inputs)["h"].tolist() == [3.0, 0.0, 3.0]


def test_an_order_that_reads_too_early_is_noticed_with_the_element() -> None:
    lowering = prefix.lower(N=5)
    (loop,) = loops(lowering.tree)
    backwards = replace(loop, rows=tuple((name, -row) for name, row in loop.rows))
    assert isinstance(lowering.tree, Sequence)
    children = tuple(backwards if child == loop else child for child in lowering.tree.children)
    with pytest.raises(LegalityError, match="before it is written") as caught:
        replay(lowering.scop, Sequence(children), {"x": np.ones(5)})
    assert caught.value.facts == {"array": "s", "element": (3,)}


def test_all_instances_of_a_statement_are_its_points() -> None:
    scop = prefix.lower(N=4).scop
    assert sorted(point["t"] for point in points(scop.statement("s_1"))) == [1, 2, 3]
    assert list(points(scop.statement("s"))) == [{}]
