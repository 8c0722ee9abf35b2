"""Nests that a kernel repeats are written once, and called."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f32, f64, i32, i64, pipeline
from polyopt.codegen_c import emit
from polyopt.dsl.ir import Cast, Const
from polyopt.dsl.ir import Op as Operation
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, LoopProgram, Store, index_var, integer
from polyopt.runtime import pool

M, N, D = po.sizes("M N D")
i, j, k, r = po.indices("i j k r")
RANDOM = np.random.default_rng(0)


def layers(x: Any, w: Any, number: int) -> Any:
    """`h = tanh(h w) + h`, again and again."""
    h = x
    for _ in range(number):
        s, z = po.tensors("s z")
        s[i, j] += h[i, k] * w[k, j]
        z[i, j] = po.tanh(s[i, j]) + h[i, j]
        h = z
    return h


@po.op
def network(x: f32[N, D], w: f32[D, D]) -> object:
    return layers(x, w, 5)


@po.op(dynamic=True)
def open_network(x: f32[N, D], w: f32[D, D]) -> object:
    return layers(x, w, 5)


@po.op
def squares(x: f64[N, N], y: f64[N, N]) -> object:
    """A product of a matrix with itself is no product of two."""
    a, b, c, d = po.tensors("a b c d")
    a[i, j] += x[i, k] * y[k, j]
    b[i, j] += a[i, k] * a[k, j]
    c[i, j] += a[i, k] * b[k, j]
    d[i, j] += c[i, k] * c[k, j]
    return d


@po.op
def rows(x: f64[M, N]) -> object:
    """A softmax of a softmax: each has rows of its own."""
    return po.softmax(po.softmax(po.softmax(x, -1), -1), -1)


@po.op
def lookups(a: i32[N], b: i32[N], t: f64[M]) -> object:
    """Each has a check, for a message of its own."""
    y, z = po.tensors("y z")
    y[i] = po.sum(t[a[i]] * po.exp(t[r]), r)
    z[i] = po.sum(t[b[i]] * po.exp(t[r]), r)
    return y, z


def calls(op: Op, *args: Any, **sizes: Any) -> dict[str, int]:
    """How often the kernel calls each nest."""
    found = re.findall(r"call void @(polyopt_nest\d+)\(", op.lower(*args, **sizes).module.text)
    return {name: found.count(name) for name in dict.fromkeys(found)}


def signs(*shape: int, dtype: Any = np.float32) -> Any:
    return RANDOM.integers(-1, 2, shape).astype(dtype)


def agrees(op: Op, *args: Any) -> None:
    found, wanted = op(*args), op.reference(*args)
    several = isinstance(found, tuple)
    for one, other in zip(found if several else (found,), wanted if several else (wanted,), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "d"), [(8, 8), (33, 17), (64, 64), (256, 128)])
def test_layers_are_written_once(n: int, d: int) -> None:
    """The first reads an argument and the last writes one; those between are the same."""
    x, w = signs(n, d), signs(d, d) / 8
    agrees(network, x, w)
    if n >= 64:
        assert max(calls(network, x, w).values()) >= 3


def test_layers_of_open_sizes_are_written_once() -> None:
    for n, d in ((5, 3), (40, 70), (129, 64)):
        agrees(open_network, signs(n, d), signs(d, d) / 8)
    assert max(calls(open_network).values()) >= 3


def test_nests_with_loops_for_threads_are_shared() -> None:
    """The function of a loop's body gets the buffers of the call."""
    x, w = signs(256, 256), signs(256, 256) / 16
    lowering = network.lower(x, w)
    assert lowering.mapping.parallel and max(calls(network, x, w).values()) >= 3
    before = pool.num_threads()
    try:
        for count in (1, 2, 3):
            pool.set_num_threads(count)
            agrees(network, x, w)
    finally:
        pool.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 6, 64, 100])
def test_a_product_with_itself_is_no_product_of_two(n: int) -> None:
    x, y = signs(n, n, dtype=np.float64), signs(n, n, dtype=np.float64)
    np.testing.assert_array_equal(squares(x, y), squares.reference(x, y))
    assert calls(squares, x, y) == {}


def wave(v: Any) -> Any:
    return po.sin(v) * po.exp(v) + po.cos(v)


def test_a_nest_that_is_called_sees_what_the_caller_has_added_up() -> None:
    """The caller kept the sum in a register while nests added to it in memory: what they added was lost.

    The loops of the padded sums are cut in pieces, so that the nests stand in blocks inside the caller's."""

    @po.op
    def total(x: f64[N], y: f64[N], m: f64[M, D], v: f64[D]) -> object:
        s, n = po.tensor("s"), po.index("n", extent=N)
        s[()] += m[i, j] * v[j]
        s[()] += wave(x.pad(0)[n - 1])
        s[()] += wave(y.pad(0)[n - 1])
        return s

    x, y, m, v = RANDOM.random(200), RANDOM.random(200), RANDOM.random((30, 20)), RANDOM.random(20)
    assert calls(total, x, y, m, v)
    wanted = (m @ v).sum() + sum((np.sin(a) * np.exp(a) + np.cos(a))[:-1].sum() + 1 for a in (x, y))
    np.testing.assert_allclose(total(x, y, m, v), wanted)


def test_a_nest_of_nothing_but_its_own_buffers_does_not_call_itself() -> None:
    row = Buffer("row", f64, (integer(8),), "local")
    value: Expr = Cast(index_var("n"), f64)
    for _ in range(4):
        value = Operation("exp", (value,), f64)
    store = Store("fill", (), "row", (Operation("mod", (index_var("n"), integer(8)), i64),), value)
    nests = [For("n", integer(0), integer(50), Alloc(row, store)) for _ in range(2)]
    body = Block((*nests, Store("set", (), "y", (integer(0),), Const(1.0, f64))))
    program = LoopProgram("alone", (Buffer("y", f64, (integer(4),), "argument"),), (), (), ("y",), body)
    assert emit.emit(program, vector_bits=256).text.count("call void @polyopt_nest") == 2


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (300, 1000)])
def test_what_a_nest_allocates_is_allocated_by_it(shape: tuple[int, int]) -> None:
    agrees(rows, RANDOM.random(shape))


def test_results_in_arrays_of_the_caller() -> None:
    x, w = signs(64, 64), signs(64, 64) / 8
    wide = np.zeros((64, 128), np.float32)
    network(x, w, out=wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], network(x, w))
    same = x.copy()
    network(same, w, out=same)
    np.testing.assert_array_equal(same, network(x, w))


def test_each_check_has_its_message() -> None:
    a, b, t = np.zeros(50, np.int32), np.zeros(50, np.int32), RANDOM.random(20)
    agrees(lookups, a, b, t)
    for wrong in (a, b):
        wrong[7] = 20
        with pytest.raises(po.BoundsError, match="subscript 0 of 't' is 20"):
            lookups(a, b, t)
        wrong[7] = 0


def test_each_nest_of_a_long_kernel_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's work grows faster than a function does: 80 layers of one width each counted as too long."""
    monkeypatch.setattr(emit, "MOST_IN_ONE", 100)

    @po.op
    def narrowing(x: f32[32, 40], w: f32[40, 40]) -> object:
        h = x
        for step in range(5):
            s, z = po.tensors("s z")
            column, term = po.index("column", extent=39 - step), po.index("term", extent=40 - step)
            s[i, column] += h[i, term] * w[term, column]
            z[i, column] = po.tanh(s[i, column])
            h = z
        return h

    x, w = signs(32, 40), signs(40, 40) / 8
    agrees(narrowing, x, w)
    found = calls(narrowing, x, w)
    assert len(found) == 5 and set(found.values()) == {1}


def test_a_long_program_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isl may do for a proof grows with the program: of 120 layers none had tiles, or lanes."""
    monkeypatch.setattr(pipeline, "PROOF_OPERATIONS", 50_000)
    lowering = network.lower(N=16, D=16)
    assert not lowering.fallback and lowering.proof.claims
