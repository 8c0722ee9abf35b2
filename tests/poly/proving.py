"""The proof with some of its stages replaced, and trees to replace them by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import islpy as isl
import pytest

from polyopt.dsl.affine import axis
from polyopt.errors import LegalityError
from polyopt.pipeline import Lowering
from polyopt.poly import dependence, legality, storage
from polyopt.poly.dependence import Dependences
from polyopt.poly.legality import Proof
from polyopt.poly.scop import Scop
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Leaf, Loop, LoopKind, Sequence, Tree, as_schedule, kinds, loops
from tests.poly.operators import product


def prove(
    lowering: Lowering,
    *,
    tree: Tree | None = None,
    scop: Scop | None = None,
    dependences: Dependences | None = None,
    storage: StoragePlan | None = None,
    schedule: isl.Schedule | None = None,
) -> Proof:
    """The proof of a lowering with some of its stages replaced."""
    tree, scop = tree or lowering.tree, scop or lowering.scop
    return legality.prove(
        scop,
        dependences or (lowering.dependences if scop is lowering.scop else dependence.compute(scop)),
        schedule or as_schedule(tree, scop),
        kinds(tree),
        storage or lowering.storage,
    )


def refused(lowering: Lowering, **replaced: Any) -> LegalityError:
    with pytest.raises(LegalityError) as caught:
        prove(lowering, **replaced)
    assert caught.value.why, "a refusal says for example where"
    return caught.value


def with_loops(tree: Tree, change: Callable[[Loop], Tree]) -> Tree:
    """The tree with every loop changed, inner ones first."""
    match tree:
        case Sequence(children):
            return Sequence(tuple(with_loops(child, change) for child in children))
        case Loop():
            return change(replace(tree, body=with_loops(tree.body, change)))
        case _:
            return tree


def with_loop(tree: Tree, chosen: str, **fields: Any) -> Tree:
    assert chosen in {loop.name for loop in loops(tree)}
    return with_loops(tree, lambda loop: replace(loop, **fields) if loop.name == chosen else loop)


def without_loop(tree: Tree, name: str) -> Tree:
    return with_loops(tree, lambda loop: loop.body if loop.name == name else loop)


def pair(error: LegalityError) -> tuple[dict[str, int], dict[str, int]]:
    """The two instances of a refusal."""
    source: Any = error.facts["source"]
    target: Any = error.facts["target"]
    return source[1], target[1]


def nest(*names: str, body: Leaf, kind: LoopKind = "serial") -> Tree:
    """Loops around one statement, each over the axis of its name; the innermost of the given kind."""
    tree: Tree = body
    for depth, name in enumerate(reversed(names)):
        row = ((body.statement, axis(name.partition("#")[0])),)
        tree = Loop(name, row, tree, kind=kind if depth == 0 else "serial")
    return tree


def plain_product() -> tuple[Lowering, Tree]:
    """A product with a nest of plain loops for each of its statements."""
    nests = (("y_init", "i", "j"), ("y_update", "i#2", "j#2", "k"), ("out", "i#3", "j#3"))
    return product.lower(M=3, N=4, K=5), Sequence(tuple(nest(*names, body=Leaf(name)) for name, *names in nests))


def whole(lowering: Lowering) -> StoragePlan:
    return storage.whole_plan(lowering.scop)
