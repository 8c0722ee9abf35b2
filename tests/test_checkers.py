"""Each check fails on a planted fault: schedules, marks, dependences and storage are corrupted on purpose.

Thousands of random schedules, legal and illegal, are judged by the proof and by enumeration (`tests.brute_force`). The
proof never calls an illegal one legal; where no lanes are combined it calls no legal one illegal either.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.dsl.affine import Affine, axes_of, axis
from polyopt.errors import LegalityError
from polyopt.loops import lower as loops_lower
from polyopt.loops.interpret import interpret
from polyopt.pipeline import Lowering
from polyopt.poly import legality, storage
from polyopt.poly.dependence import Dependences
from polyopt.poly.scop import Scop
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Loop, LoopKind, Sequence, Tree, as_schedule, loops
from tests import brute_force

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
MUTANTS_PER_OPERATOR = 720


@po.op
def product(x: f32[M, K], w: f32[K, N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j], 0)
    return out


@po.op
def softmax(x: f32[M, N]):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = po.exp(x[i, j] - top[i]) / total[i]
    return y


@po.op
def scan(x: f64[N]):
    s = po.tensor("s")
    t = po.index("t", 1, N)
    s[0] = x[0]
    s[t] = s[t - 1] + x[t]
    return s


@po.op
def jacobi(start: f64[N], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = start[i]
    u[t + 1, i] = po.where((i == 0) | (i == N - 1), u[t, i], u[t, i - 1] + u[t, i] + u[t, i + 1])
    return u[steps]


@po.op
def seidel(start: f64[N, N]):
    a = po.tensor("a")
    a[i, j] = po.where((i == 0) | (j == 0), start[i, j], a[i - 1, j] + a[i, j - 1] + start[i, j])
    return a


@po.op
def cholesky(a: f64[N, N]):
    low = po.tensor("low")
    low[j, j] = po.sqrt(a[j, j] - po.sum(low[j, k] ** 2, k, where=k < j))
    low[i, j] = po.when(j < i, (a[i, j] - po.sum(low[i, k] * low[j, k], k, where=k < j)) / low[j, j])
    low[i, j] = po.when(j > i, 0.0)
    return low


@po.op
def rabbits(x: f64[N]):
    young, old = po.tensors("young old")
    t = po.index("t", 1, N)
    young[0] = x[0]
    old[0] = 0 * x[0]
    young[t] = old[t - 1] * x[t]
    old[t] = old[t - 1] + young[t - 1]
    return old


@po.op
def blur_in_tiles(x: f64[M, N]):
    across, down = po.tensors("across down")
    across[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1]) + po.sqrt(x[i, j + 2])
    down[i, j] = across[i, j] * across[i + 1, j] * across[i + 2, j]
    return down


LOWERED: dict[str, Callable[[], Lowering]] = {
    "product": lambda: product.lower(M=4, N=3, K=5),
    "softmax": lambda: softmax.lower(M=3, N=4),
    "scan": lambda: scan.lower(N=6),
    "jacobi": lambda: jacobi.lower(N=5, steps=4),
    "seidel": lambda: seidel.lower(N=5),
    "cholesky": lambda: cholesky.lower(N=4),
    "rabbits": lambda: rabbits.lower(N=6),
}
every_operator = pytest.mark.parametrize("name", LOWERED)


# --- mutations of schedules -------------------------------------------------------------------------------------


def mutated(tree: Tree, draw: random.Random) -> Tree:
    """The tree with one thing changed at a random place."""
    places = list(_places(tree))
    if not places:
        return tree
    target = draw.choice(places)
    return _replaced(tree, target, _changed(target, draw))


def _places(tree: Tree) -> list[Tree]:
    match tree:
        case Sequence(children):
            return [tree, *(place for child in children for place in _places(child))] if children else []
        case Loop(body=body):
            return [tree, *_places(body)]
        case _:
            return []


def _replaced(tree: Tree, old: Tree, new: Tree) -> Tree:
    if tree is old:
        return new
    match tree:
        case Sequence(children):
            return Sequence(tuple(_replaced(child, old, new) for child in children))
        case Loop(body=body):
            return replace(tree, body=_replaced(body, old, new))
        case _:
            return tree


def _changed(place: Tree, draw: random.Random) -> Tree:
    if isinstance(place, Sequence):
        children = list(place.children)
        draw.shuffle(children)
        return Sequence(tuple(children))
    assert isinstance(place, Loop), "leaves are no places"
    changes: tuple[Callable[[Loop, random.Random], Tree], ...] = (
        _with_another_kind,
        _reversed_row,
        _shifted_row,
        _interchanged,
        _strip_mined,
        _left_out,
    )
    return draw.choice(changes)(place, draw)


def _with_another_kind(loop: Loop, draw: random.Random) -> Loop:
    kinds: tuple[LoopKind, ...] = ("serial", "parallel", "vector", "unrolled")
    return replace(loop, kind=draw.choice([kind for kind in kinds if kind != loop.kind]))


def _reversed_row(loop: Loop, draw: random.Random) -> Loop:
    victims = draw.sample(loop.statements, draw.randint(1, len(loop.statements)))
    return replace(loop, rows=tuple((name, -row if name in victims else row) for name, row in loop.rows))


def _shifted_row(loop: Loop, draw: random.Random) -> Loop:
    victim, distance = draw.choice(loop.statements), draw.choice((-2, -1, 1, 2))
    return replace(loop, rows=tuple((name, row + distance if name == victim else row) for name, row in loop.rows))


def _interchanged(loop: Loop, draw: random.Random) -> Loop:
    inner = loop.body
    if not isinstance(inner, Loop) or set(inner.statements) != set(loop.statements):
        return _reversed_row(loop, draw)
    return replace(inner, body=replace(loop, body=inner.body))


def _strip_mined(loop: Loop, draw: random.Random) -> Loop:
    """Tiles of two along the loop's rows, or along rows that a second axis skews."""
    axes = [a for _, row in loop.rows for a in sorted(axes_of(row))]
    skew = axis(draw.choice(axes)) * draw.choice((-1, 1)) if axes and draw.random() < 0.5 else Affine(0)
    tiles = tuple((name, (row + skew if axes_of(skew) <= axes_of(row) else row) // 2) for name, row in loop.rows)
    return replace(loop, name=f"{loop.name}_tile_{draw.randrange(1 << 30)}", rows=tiles, body=loop)


def _left_out(loop: Loop, draw: random.Random) -> Tree:
    """The body alone: the loop's rows date nothing any more."""
    return loop.body


def is_proved(scop: Scop, dependences: Dependences, tree: Tree, places: StoragePlan | None = None) -> bool:
    kinds = {loop.name: loop.kind for loop in loops(tree)}
    plan = storage.whole_plan(scop) if places is None else places
    try:
        legality.prove(scop, dependences, as_schedule(tree, scop), kinds, plan)
    except LegalityError:
        return False
    return True


def combines_lanes(scop: Scop, tree: Tree) -> bool:
    """Whether a vector loop scans updates: there the proof may refuse what happens to be harmless."""
    found = (loop for loop in loops(tree) if loop.kind == "vector")
    return any(scop.statement(name).is_update for loop in found for name in loop.statements)


@every_operator
def test_the_verdict_on_random_schedules_is_that_of_enumeration(name: str) -> None:
    lowering = LOWERED[name]()
    scop, dependences = lowering.scop, lowering.dependences
    needed = brute_force.pairs(scop)
    draw = random.Random(name)
    verdicts = {True: 0, False: 0}
    for _ in range(MUTANTS_PER_OPERATOR):
        tree = lowering.tree
        for _ in range(draw.randint(1, 3)):
            tree = mutated(tree, draw)
        broken = brute_force.violation(needed, tree)
        proved = is_proved(scop, dependences, tree)
        assert not (proved and broken), f"{broken} is broken and the schedule was proved:\n{tree}"
        assert proved or broken or combines_lanes(scop, tree), f"a legal schedule was refused:\n{tree}"
        verdicts[proved] += 1
    assert min(verdicts.values()) >= MUTANTS_PER_OPERATOR // 20, f"one-sided mutants: {verdicts}"


@every_operator
def test_the_schedule_that_was_chosen_is_legal_by_enumeration(name: str) -> None:
    lowering = LOWERED[name]()
    assert brute_force.violation(brute_force.pairs(lowering.scop), lowering.tree) is None


# --- dependences ------------------------------------------------------------------------------------------------


@every_operator
def test_dependences_are_exactly_the_pairs_of_enumeration(name: str) -> None:
    lowering = LOWERED[name]()
    needed = brute_force.pairs(lowering.scop)
    found = {pair for d in lowering.dependences.ordered for pair in _related(d.source, d.target, d.relation)}
    assert found == set(needed.ordered)
    updates = {frozenset(p) for d in lowering.dependences.reductions for p in _related(d.source, d.target, d.relation)}
    assert updates == {frozenset(pair) for pair in needed.updates}


def _related(source: str, target: str, relation: isl.Map) -> set[tuple[brute_force.Key, brute_force.Key]]:
    """The pairs of instances of a relation."""
    size = relation.dim(isl.dim_type.in_)
    flat = brute_force.points(relation.wrap().flatten())
    return {((source, point[:size]), (target, point[size:])) for point in flat}


@every_operator
def test_a_schedule_is_refused_for_any_pair_that_is_added(name: str) -> None:
    """A dependence against the chosen order must be noticed: swap the ends of each one in turn."""
    lowering = LOWERED[name]()
    for place, dependence in enumerate(lowering.dependences.ordered):
        if dependence.source == dependence.target:
            turned = replace(dependence, relation=dependence.relation.reverse())
        else:
            turned = replace(
                dependence,
                source=dependence.target,
                target=dependence.source,
                relation=dependence.relation.reverse(),
            )
        ordered = lowering.dependences.ordered
        wrong = replace(lowering.dependences, ordered=(*ordered[:place], turned, *ordered[place + 1 :]))
        assert not is_proved(lowering.scop, wrong, lowering.tree), str(turned)


# --- storage ----------------------------------------------------------------------------------------------------


FOLDED = {
    "jacobi": lambda: jacobi.lower(N=5, steps=4),
    "softmax": lambda: softmax.lower(M=5, N=7),
    "product": lambda: product.lower(M=5, N=3, K=4),
    "blur_in_tiles": lambda: blur_in_tiles.lower(M=20, N=40),
}


@pytest.mark.parametrize("name", FOLDED)
def test_storage_that_is_too_small_is_refused(name: str) -> None:
    """A smaller buffer is refused, or does no harm: the loop program with it still gives the right result."""
    lowering = FOLDED[name]()
    planted = 0
    for buffer in lowering.storage.buffers:
        for wrong in smaller(buffer):
            buffers = tuple(wrong if b is buffer else b for b in lowering.storage.buffers)
            planted += 1
            if is_proved(lowering.scop, lowering.dependences, lowering.tree, StoragePlan(buffers)):
                assert gives_right_numbers(lowering, StoragePlan(buffers)), f"{wrong} was proved"
    assert planted, "no buffer of the operator could be made smaller"


def smaller(buffer: Storage) -> list[Storage]:
    """The buffer with one dimension made one smaller, or moved by one element."""
    found = []
    for dimension, modulo in enumerate(buffer.modulo):
        if modulo is not None and modulo > 1:
            found.append(replace(buffer, modulo=_put(buffer.modulo, dimension, modulo - 1)))
        if modulo is None and buffer.scope:
            extent, offset = buffer.extent[dimension], buffer.offset[dimension]
            found.append(replace(buffer, extent=_put(buffer.extent, dimension, extent - 1)))
            found.append(replace(buffer, offset=_put(buffer.offset, dimension, offset + 1)))
    return found


def _put(values: tuple[Any, ...], position: int, value: object) -> tuple[Any, ...]:
    return (*values[:position], value, *values[position + 1 :])


def gives_right_numbers(lowering: Lowering, places: StoragePlan) -> bool:
    """Whether the loop program with another storage plan computes what the one with whole arrays computes."""
    whole = storage.whole_plan(lowering.scop)
    return all(np.array_equal(a, b) for a, b in zip(_results(lowering, places), _results(lowering, whole), strict=True))


def _results(lowering: Lowering, places: StoragePlan) -> list[np.ndarray]:
    program = lowering.program
    loop_program = loops_lower.lower(
        lowering.scop, lowering.tree, places, parameters=program.parameters, results=program.results, strides={}
    )
    numbers = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for buffer in loop_program.arguments:
        shape = tuple(int(extent.constant) for extent in program.tensor(buffer.name).shape or ())
        arrays[buffer.name] = np.zeros(shape, buffer.dtype.numpy)
        if buffer.name not in loop_program.written:
            arrays[buffer.name] = numbers.uniform(0.5, 1.5, shape).astype(buffer.dtype.numpy)
    interpret(loop_program, arrays, {})
    return [arrays[name] for name in program.results]
