"""Random plans: loop orders, fusion, tiles, lanes, threads and storage by chance, kept where they are proved.

The compiler's deciders are answered by chance, so that rewrites and copies are tried where no cost model would have
them; then a plan is drawn from the fused tree by random steps. Most plans are illegal; the proof says so, and what it
accepts must compute what the equations say. So a proof that accepts too much, and a lowering that does not keep its
word, are found where the compiler's own plans would never lead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from random import Random
from typing import TypeVar, assert_never

import numpy as np

from polyopt import picks, strict
from polyopt.dsl.affine import Affine, AxisRef, SizeRef, axes_of, axis, constant
from polyopt.errors import LegalityError, ScheduleError
from polyopt.fuzz.arrays import Argument, Array
from polyopt.loops import verify
from polyopt.pipeline import Lowering
from polyopt.poly import storage
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import (
    Leaf,
    Loop,
    LoopKind,
    Sequence,
    Tree,
    as_schedule,
    numbered,
    sequence,
    statements,
    tree_text,
)
from polyopt.runtime import jit
from polyopt.runtime.calls import Call
from polyopt.runtime.kernel import Kernel
from polyopt.target import Target, host, preset
from polyopt.tiling import apply as tiling
from polyopt.tiling.plan import NestPlan, TilingPlan

TRIES = 4
"""Trees drawn for one plan; the first that is proved is taken."""
ENUMERATED = 200
"""Instances up to which the loop program is walked in Python, which takes some 0.2 ms for each."""
ANSWERED = 0.5
"""Share of plans whose deciders are answered by chance."""
TILES = (1, 2, 2, 3, 4, 4, 5, 7, 8, 16)
CHUNKS = (1, 1, 2, 3)

T = TypeVar("T")


def draw(lowering: Lowering, seed: int) -> Lowering | None:
    """The operator under a random plan that was proved; None where every try was refused."""
    random = Random(seed)
    machine = _machine(lowering.options.target, random)
    if random.random() < ANSWERED:
        lowering = answered(lowering, random)
        if random.random() < 0.5:
            return lowering
    for _ in range(TRIES):
        tree = random_tree(numbered(lowering.fusion.tree), random)
        try:
            return lowering.scheduled(tree, _random_storage(lowering, tree, random), machine)
        except (LegalityError, ScheduleError):
            continue
    return None


def answered(lowering: Lowering, random: Random) -> Lowering:
    """The operator with plans that follow from random answers to what the deciders ask."""
    other = Lowering(lowering.program, lowering.options)
    with picks.decided(lambda question: random.choice(question.options)):
        return other.settled


def _machine(target: Target, random: Random) -> Target:
    """The target with vectors of another width, and perhaps a first cache that no private buffer fits. Wide vectors are
    cut to what this processor has, not emulated: so widths that it lacks can run."""
    bits = random.choice((128, 256, 512))
    here = host()
    base = preset("generic") if bits == 128 or here.vector_bits == 128 else here
    first_cache = random.choice((target.l1_bytes, 4))
    return replace(
        target,
        vector_bits=bits if base is here else 128,
        cpu=base.cpu,
        features=base.features,
        l1_bytes=first_cache,
    )


def run(lowering: Lowering, arguments: SequenceOf[Argument], *, effort: int) -> list[Array]:
    """The results of the operator's kernel, its loops checked by enumeration before if they are few.

    effort: of LLVM's code generator, 0 to 3

    Raises `LegalityError` where the loop program does not do what the schedule says.
    """
    lowering = lowering.settled  # the statements and the loops of one plan
    loops, info = lowering.loops, lowering.info
    program = lowering.program
    given = zip(program.parameters, arguments, strict=True)
    arrays = {name: np.asarray(argument, program.tensor(name).dtype.numpy) for name, argument in given}
    sizes = sizes_of(lowering, arrays)
    if strict.most_instances(lowering, sizes) <= ENUMERATED:
        strict.check(lowering, sizes, arrays)
    else:
        verify.verify(loops)
    kernel = Kernel(info, jit.compile_object(lowering.module.text, lowering.options.target, opt=effort))
    call = Call(kernel, sizes, arrays, {})
    results = call.new_results()
    call.run(list(arrays.values()), results)
    return results


def plan_text(lowering: Lowering, seed: int) -> str:
    """The plan, for a reader."""
    lanes = lowering.options.target.vector_bits
    return f"plan {seed}, vectors of {lanes} bits\n{tree_text(lowering.tree)}\n{lowering.storage}"


def sizes_of(lowering: Lowering, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The values of the sizes that stay symbolic."""
    found: dict[str, int] = {}
    for name, array in arrays.items():
        for extent, length in zip(lowering.program.tensor(name).shape or (), array.shape, strict=True):
            found.update({atom.name: length for atom, _ in extent.terms if isinstance(atom, SizeRef)})
    return found


def random_tree(tree: Tree, random: Random) -> Tree:
    """The tree after a few random steps, tiled and mapped at random; legal or not."""
    for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
        tree = _renumbered(mutated(tree, random))
    if random.random() < 0.6:
        tree = tiling.apply(tree, TilingPlan(tuple(_random_nests(tree, random))))
    for _ in range(random.choice((0, 0, 1, 2))):
        tree = _renumbered(mutated(tree, random))
    return _with_random_threads(tree, random)


def _renumbered(tree: Tree) -> Tree:
    """The tree with names that are unique again."""

    def plain(node: Tree) -> Tree:
        match node:
            case Leaf():
                return node
            case Sequence(children):
                return Sequence(tuple(map(plain, children)))
            case Loop(name=name, body=body):
                return replace(node, name=re.sub(r"#\d+", "", name), body=plain(body))
            case _:
                assert_never(node)

    return numbered(plain(tree))


# --- steps ------------------------------------------------------------------------------------------------------

Step = Callable[[Loop, Random], Tree]


def mutated(tree: Tree, random: Random) -> Tree:
    """The tree with one thing changed at a random place."""
    places = list(places_of(tree))
    if not places:
        return tree
    place = random.choice(places)
    return replaced(tree, place, _changed(place, random))


def places_of(tree: Tree) -> Iterator[Tree]:
    """Every loop and sequence."""
    match tree:
        case Leaf():
            return
        case Sequence(children):
            yield tree
            for child in children:
                yield from places_of(child)
        case Loop(body=body):
            yield tree
            yield from places_of(body)
        case _:
            assert_never(tree)


def replaced(tree: Tree, old: Tree, new: Tree) -> Tree:
    """The tree with another one at the place of `old`."""
    if tree is old:
        return new
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return sequence([replaced(child, old, new) for child in children]) if children else tree
        case Loop(body=body):
            return replace(tree, body=replaced(body, old, new))
        case _:
            assert_never(tree)


def _changed(place: Tree, random: Random) -> Tree:
    if isinstance(place, Sequence):
        return random.choice((shuffled, fused, fused))(place, random)
    assert isinstance(place, Loop), "leaves are no places"
    return random.choice(STEPS)(place, random)


def shuffled(place: Sequence, random: Random) -> Tree:
    """The children in another order."""
    children = list(place.children)
    random.shuffle(children)
    return Sequence(tuple(children))


def fused(place: Sequence, random: Random) -> Tree:
    """Two neighbouring loops in one."""
    pairs = [
        n for n, two in enumerate(zip(place.children, place.children[1:])) if all(isinstance(t, Loop) for t in two)
    ]
    if not pairs:
        return shuffled(place, random)
    at = random.choice(pairs)
    first, second = place.children[at : at + 2]
    assert isinstance(first, Loop) and isinstance(second, Loop), "chosen so"
    both = replace(
        first,
        rows=(*first.rows, *second.rows),
        body=sequence([first.body, second.body]),
        coincident=first.coincident and second.coincident,
        reduction=False,
    )
    return sequence([*place.children[:at], both, *place.children[at + 2 :]])


def with_another_kind(loop: Loop, random: Random) -> Tree:
    kinds: tuple[LoopKind, ...] = ("serial", "parallel", "vector", "unrolled")
    return replace(loop, kind=random.choice([kind for kind in kinds if kind != loop.kind]))


def reversed_rows(loop: Loop, random: Random) -> Tree:
    victims = random.sample(loop.statements, random.randint(1, len(loop.statements)))
    return replace(loop, rows=tuple((name, -row if name in victims else row) for name, row in loop.rows))


def shifted_row(loop: Loop, random: Random) -> Tree:
    victim, distance = random.choice(loop.statements), random.choice((-2, -1, 1, 2))
    return replace(loop, rows=tuple((name, row + distance if name == victim else row) for name, row in loop.rows))


def stretched_rows(loop: Loop, random: Random) -> Tree:
    """Iterations a stride apart."""
    factor = random.choice((2, 2, 3))
    return replace(loop, rows=tuple((name, row * factor) for name, row in loop.rows))


def interchanged(loop: Loop, random: Random) -> Tree:
    inner = loop.body
    if not isinstance(inner, Loop) or set(inner.statements) != set(loop.statements):
        return reversed_rows(loop, random)
    return replace(inner, body=replace(loop, body=inner.body))


def skewed_rows(loop: Loop, random: Random) -> Tree:
    """Another axis added to the rows that have it in a loop inside."""
    inner = loop.body
    if not isinstance(inner, Loop) or set(inner.statements) != set(loop.statements):
        return interchanged(loop, random)
    sign = random.choice((-1, 1))
    return replace(loop, rows=tuple((name, row + inner.row(name) * sign) for name, row in loop.rows))


def strip_mined(loop: Loop, random: Random) -> Tree:
    """Tiles along the loop's rows, or along rows that a second axis skews; numbered, or by their first points."""
    axes = sorted({a for _, row in loop.rows for a in axes_of(row)})
    skew = axis(random.choice(axes)) * random.choice((-1, 1)) if axes and random.random() < 0.3 else Affine(0)
    size = random.choice(TILES)
    scale = random.choice((1, size))
    tiles = tuple(
        (name, (row + skew if axes_of(skew) <= axes_of(row) else row) // size * scale) for name, row in loop.rows
    )
    return replace(loop, name=f"{loop.name}_strip", rows=tiles, body=loop)


def distributed(loop: Loop, random: Random) -> Tree:
    """A loop of its own for what stands before and after a place inside it."""
    inner = loop.body
    if not isinstance(inner, Sequence) or len(inner.children) < 2:
        return with_another_kind(loop, random)
    cut = random.randrange(1, len(inner.children))
    return sequence([_around(loop, sequence(list(part))) for part in (inner.children[:cut], inner.children[cut:])])


def left_out(loop: Loop, random: Random) -> Tree:
    """The body alone: the loop's rows date nothing any more."""
    return loop.body


def _around(loop: Loop, body: Tree) -> Loop:
    inside = set(statements(body))
    return replace(loop, rows=tuple((name, row) for name, row in loop.rows if name in inside), body=body)


STEPS: tuple[Step, ...] = (
    with_another_kind,
    with_another_kind,
    reversed_rows,
    shifted_row,
    stretched_rows,
    interchanged,
    interchanged,
    skewed_rows,
    strip_mined,
    strip_mined,
    distributed,
    distributed,
    left_out,
)


# --- tiles and threads ------------------------------------------------------------------------------------------


def _random_nests(tree: Tree, random: Random) -> Iterator[NestPlan]:
    """A plan, as `tiling.decide` makes them, for chains of coincident loops."""
    match tree:
        case Leaf():
            return
        case Sequence(children):
            for child in children:
                yield from _random_nests(child, random)
        case Loop(coincident=True):
            chain = [tree]
            while isinstance(chain[-1].body, Loop) and chain[-1].body.coincident and random.random() < 0.8:
                chain.append(chain[-1].body)
            yield _random_nest([loop.name for loop in chain], random)
            yield from _random_nests(chain[-1].body, random)
        case Loop(body=body):
            yield from _random_nests(body, random)
        case _:
            assert_never(tree)


def _random_nest(chain: list[str], random: Random) -> NestPlan:
    order = random.sample(chain, len(chain))
    tiles = tuple((name, random.choice(TILES)) for name in order if random.random() < 0.6)
    inner = random.sample(chain, min(len(chain), 2))
    vector = inner[0] if random.random() < 0.7 else None
    rows = inner[1] if len(inner) > 1 and inner[1] in dict(tiles) and random.random() < 0.5 else None
    return NestPlan(tuple(chain), tuple(order), tiles, rows, vector, "drawn")


def _with_random_threads(tree: Tree, random: Random) -> Tree:
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(_with_random_threads(child, random) for child in children))
        case Loop(coincident=True, kind="serial") if random.random() < 0.5:
            return replace(tree, kind="parallel", chunk=random.choice(CHUNKS))
        case Loop(body=body):
            return replace(tree, body=_with_random_threads(body, random))
        case _:
            assert_never(tree)


# --- storage ----------------------------------------------------------------------------------------------------


def _random_storage(lowering: Lowering, tree: Tree, random: Random) -> StoragePlan:
    """The planner's storage, whole arrays, or a mixture with buffers that are made smaller or moved."""
    whole = storage.whole_plan(lowering.scop)
    if random.random() < 0.2:
        return whole
    chosen = storage.decide(lowering.scop, lowering.dependences, tree, as_schedule(tree, lowering.scop))
    if random.random() < 0.6:
        return chosen
    by_array: Mapping[str, Storage] = {buffer.array: buffer for buffer in whole.buffers}
    return StoragePlan(tuple(_other_storage(buffer, by_array[buffer.array], random) for buffer in chosen.buffers))


def _other_storage(buffer: Storage, whole: Storage, random: Random) -> Storage:
    if random.random() < 0.4 or not buffer.extent:
        return random.choice((buffer, whole))
    dimension = random.randrange(len(buffer.extent))
    if random.random() < 0.6 and whole.extent[dimension].is_constant:
        planes = random.randint(1, max(1, whole.extent[dimension].constant))
        folded = replace(whole, modulo=put(whole.modulo, dimension, planes))
        return replace(folded, extent=put(folded.extent, dimension, constant(planes)))
    if not buffer.scope:
        return buffer
    if random.random() < 0.5:
        return replace(buffer, extent=put(buffer.extent, dimension, buffer.extent[dimension] + random.choice((-1, 1))))
    return replace(buffer, scope=buffer.scope[:-1]) if len(buffer.scope) > 1 and not _uses(buffer) else buffer


def _uses(buffer: Storage) -> bool:
    """Whether the innermost loop of the scope decides which elements are held."""
    return any(AxisRef(buffer.scope[-1]) in dict(offset.terms) for offset in buffer.offset)


def put(values: tuple[T, ...], position: int, value: T) -> tuple[T, ...]:
    """The values with another one at a position."""
    return (*values[:position], value, *values[position + 1 :])
