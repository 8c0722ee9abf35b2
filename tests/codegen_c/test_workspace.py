"""Temporaries that are needed one after the other have one place in the workspace."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyopt as po
from polyopt import f32, f64
from polyopt.codegen_c import workspace
from polyopt.codegen_c.abi import ALIGNMENT, SLACK_BYTES
from polyopt.dsl.ir import Const
from polyopt.loops.ir import Block, Buffer, Expr, For, If, index_var, integer
from polyopt.runtime import pool
from tests.loops.nests import SUM, less, load, loop, store

N = po.size("N")
i, j, k = po.indices("i j k")


def scratch(name: str, *shape: int | str) -> Buffer:
    return Buffer(name, f64, tuple(integer(n) if isinstance(n, int) else index_var(n) for n in shape), "workspace")


def step(*names: str) -> For:
    """A loop that uses buffers."""
    return loop("t", 4, Block(tuple(store(f"{name}_def", name, ("t",), load(name, "t")) for name in names)))


def number(offset: Expr) -> int:
    assert isinstance(offset, Const)
    return int(offset.value)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9), st.integers(0, 4)), max_size=12))
def test_buffers_that_are_needed_at_once_lie_apart(needed: list[tuple[int, int, int]]) -> None:
    """(size, first step, steps more)"""
    buffers = [scratch(f"b{n}", size) for n, (size, _, _) in enumerate(needed)]
    steps = [[f"b{n}" for n, (_, first, more) in enumerate(needed) if first <= s <= first + more] for s in range(15)]
    body = Block(tuple(replace(step(*names), kind="parallel") for names in steps if names))
    found, whole = workspace.offsets(buffers, body, ())
    assert found.keys() == {buffer.name for buffer in buffers}
    starts = {name: number(offset) for name, offset in found.items()}
    places = {f"b{n}": range(starts[f"b{n}"], starts[f"b{n}"] + 8 * size) for n, (size, _, _) in enumerate(needed)}
    for names in steps:
        for one, other in combinations(names, 2):
            assert places[one].stop <= places[other].start or places[other].stop <= places[one].start
    sizes = [-(-8 * size // ALIGNMENT) * ALIGNMENT for size, _, _ in needed]
    assert max((place.stop for place in places.values()), default=0) + SLACK_BYTES <= number(whole) or not needed
    assert number(whole) <= sum(sizes) + SLACK_BYTES


def test_one_place_is_enough_for_what_is_needed_in_turn() -> None:
    buffers = [scratch("a", 8), scratch("b", 100), scratch("c", 50), scratch("d", 100)]
    found, whole = workspace.offsets(buffers, Block((step("a"), step("b"), step("c"), step("d"))), ())
    assert set(found.values()) == {integer(0)} and number(whole) == 832 + SLACK_BYTES


def test_buffers_of_open_sizes_share_a_place_if_they_have_one_size() -> None:
    buffers = [scratch("a", "N"), scratch("b", "M"), scratch("c", "N"), scratch("d", 8)]
    found, _ = workspace.offsets(buffers, Block((step("a"), step("b"), step("c"), step("d"))), ())
    assert found["a"] == found["c"] and len(set(found.values())) == 3


def test_what_registers_keep_from_one_statement_to_the_next_is_needed_by_both() -> None:
    """The sum that a loop adds up is stored behind the last statement."""
    start, last = (store("a_def", "a", (0,), load("c", 0)), store("b_def", "b", (0,), load("c", 0)))
    total = loop("t", 4, store("a_sum", "a", (0,), load("c", "t"), SUM))
    found, _ = workspace.offsets([scratch("a", 8), scratch("b", 8)], Block((start, total, last)), ())
    assert found["a"] != found["b"]


def test_the_parts_of_a_choice_are_steps() -> None:
    buffers = [scratch(name, 8) for name in "abc"]
    body = If(less("N", 4), Block((step("a"), step("b"))), Block((step("c"),)))
    found, whole = workspace.offsets(buffers, body, ())
    assert set(found.values()) == {integer(0)} and number(whole) == 64 + SLACK_BYTES


def test_buffers_that_nothing_uses_have_no_place() -> None:
    assert workspace.offsets([scratch("a", 8)], Block((step("b"),)), ()) == ({}, integer(0))


@po.op
def chain(x: f32[N, N], w: f32[N, N]) -> object:
    h = x
    for _ in range(8):
        s, z = po.tensors("s z")
        s[i, j] += h[i, k] * w[k, j]
        z[i, j] = po.maximum(s[i, j], 0) + h[i, j]
        h = z
    return h


@pytest.mark.parametrize("n", [5, 64, 200])
def test_a_chain_of_products_has_two_of_its_temporaries_at_a_time(n: int) -> None:
    random = np.random.default_rng(n)
    x, w = (random.integers(-1, 2, (n, n)).astype(np.float32) for _ in range(2))
    w /= 2 ** (n.bit_length())
    lowering = chain.lower(x, w)
    whole = sum(prod(int(extent.constant) for extent in b.extent) for b in lowering.storage.buffers if not b.scope) * 4
    assert n < 64 or lowering.report().temporary_bytes <= whole / 2
    before = pool.num_threads()
    try:
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            np.testing.assert_allclose(chain(x, w), chain.reference(x, w), rtol=1e-5, atol=1e-6)
    finally:
        pool.set_num_threads(before)
