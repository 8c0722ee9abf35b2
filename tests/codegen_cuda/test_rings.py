"""Rings of shared memory: slots and waits are proved, run by the interpreter and the emulator, and faults are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.codegen_cuda import ring_proof
from polyopt.codegen_cuda.shapes import replaced
from polyopt.dsl.ir import Op
from polyopt.errors import LegalityError
from polyopt.loops.ir import Alloc, Block, Expr, For, If, LoopProgram, Stmt, Store, integer, walk
from polyopt.target import gpu_preset
from tests.codegen_cuda.running import Array, emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted, problems

M, N, K, C = po.sizes("M N K C")
i, j, k = po.indices("i j k")


@po.op
def product(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def windows(x: f32[M, C], w: f32[3, C, N]) -> object:
    y = po.tensor("y")
    r, c = po.indices("r c")
    y[i, j] += x[i + r, c] * w[r, c, j]
    return y


def arrays(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
    random = np.random.default_rng(0)
    return tuple(random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)


def rings(program: LoopProgram) -> list[For]:
    return [loop for loop in walk(program.body) if isinstance(loop, For) and loop.kind == "pipeline"]


def changed(statement: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with `change` applied to everything in it, parents last."""
    match statement:
        case Block(body):
            statement = Block(tuple(changed(inner, change) for inner in body))
        case For(body=body) | Alloc(body=body):
            statement = replace(statement, body=changed(body, change))
        case If(then=then):
            statement = replace(statement, then=changed(then, change))
        case _:
            pass
    return change(statement)


def test_as_many_slots_as_shared_memory_has_room_for() -> None:
    large = {"M": 4096, "N": 4096, "K": 4096}
    assert {loop.chunk for loop in rings(lowered(product, **large).loops)} == {3}, "a block works long on each"
    small = {"M": 1024, "N": 1024, "K": 1024}
    assert {loop.chunk for loop in rings(lowered(product, **small).loops)} == {4}, "8 KiB a piece, of 54"
    few = gpu_preset("sm_80")
    assert few.gpu is not None
    few = replace(few, gpu=replace(few.gpu, shared_bytes=69 << 10))
    assert {loop.chunk for loop in rings(lowered(product, target=few, **large).loops)} == {2}, "16 KiB a piece, of 34"
    assert {loop.chunk for loop in rings(lowered(product, M=256, N=256, K=256).loops)} == {4}
    assert {loop.chunk for loop in rings(lowered(product, M=256, N=256, K=33).loops)} == {2}, "two whole pieces"
    assert not rings(lowered(product, M=256, N=256, K=16).loops), "there is nothing to run ahead of"


def test_the_plan_says_how_far_copies_run_ahead() -> None:
    assert "copies run 3 pieces ahead in 4 slots" in str(lowered(product, M=1024, N=1024, K=1024).mapping)


def test_rings_are_proved() -> None:
    lowering = lowered(windows, M=130, C=64, N=64)
    assert ring_proof.prove(lowering.loops) == 1
    assert "in its slot while it is read (1 rings)" in str(lowering.verify())


def test_one_ring_goes_through_all_loops_of_a_sum() -> None:
    """Copies run ahead from one position of a window to the next."""
    (fill, steady) = rings(lowered(windows, M=130, C=64, N=64).loops)
    assert (fill.upper, steady.upper) == (integer(3), integer(3 * 4))
    assert len(rings(lowered(windows, M=130, C=16, N=64).loops)) == 2, "one piece of the sum, but three positions"
    assert (steady.lower, steady.step) == (integer(0), 1)
    (_, steady) = rings(lowered(windows, M=130, C=40, N=64).loops)
    assert steady.upper == integer(32), "what is left of a row comes between its whole pieces and the next row"


def test_a_ring_one_slot_short_is_refused() -> None:
    """A piece is copied to where the one before it is still read."""
    program = lowered(product, M=64, N=64, K=128).loops

    def short(statement: Stmt) -> Stmt:
        if not isinstance(statement, For) or statement.kind != "pipeline":
            return statement
        return replace(statement, body=changed(statement.body, lambda s: with_slots(s, statement.chunk - 1)))

    with pytest.raises(LegalityError, match="may be written while it is read") as caught:
        ring_proof.prove(replace(program, body=changed(program.body, short)))
    assert caught.value.facts["rule"] == "ring"


def test_copies_that_come_one_piece_late_are_refused() -> None:
    program = lowered(product, M=64, N=64, K=128).loops

    def late(statement: Stmt) -> Stmt:
        return replace(statement, chunk=statement.chunk + 1) if isinstance(statement, For) else statement

    loops = changed(program.body, lambda s: late(s) if isinstance(s, For) and s.kind == "pipeline" else s)
    with pytest.raises(LegalityError, match="before the copy of its piece has come"):
        ring_proof.prove(replace(program, body=loops))


def with_slots(statement: Stmt, slots: int) -> Stmt:
    """A statement whose slots are counted up to `slots`."""
    if not isinstance(statement, Store):
        return statement

    def fewer(index: Expr) -> Expr:
        if not isinstance(index, Op) or index.name != "mod":
            return index
        return replace(index, args=(index.args[0], integer(slots)))

    value = replaced(statement.value, lambda load: replace(load, indices=tuple(map(fewer, load.indices))))
    return replace(statement, indices=tuple(map(fewer, statement.indices)), value=value)


@po.op
def doubles(x: f64[M, K], w: f64[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


def test_the_interpreter_runs_a_ring() -> None:
    args = tuple(a.astype(np.float64) for a in arrays((32, 16), (16, 32)))
    lowering = lowered(doubles, *args)
    assert rings(lowering.loops)
    (got,) = interpreted(lowering, inputs(doubles, args), {})
    assert_equals(got, args[0] @ args[1])


@needs_compiler
@pytest.mark.parametrize("op", [product, windows])
def test_a_ring_gives_what_numpy_gives(op: po.Op) -> None:
    args = arrays((34, 65), (65, 33)) if op is product else arrays((36, 33), (3, 33, 34))
    lowering = lowered(op, *args)
    assert rings(lowering.loops)
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, outcome.problems[0]
    x, w = (a.astype("f8") for a in args)
    assert_equals(outcome.results[0], x @ w if op is product else sum(x[r : r + 34] @ w[r] for r in range(3)))


FAULTS = {
    "the wait": (r"po_cp_wait<2>\(\);", ";", ("cp.async",)),
    "a wait for one group too few": (r"po_cp_wait<2>", "po_cp_wait<3>", ("cp.async",)),
    "the barrier of a piece": (r"__syncthreads\(\);", ";", ("race", "cp.async")),
    "a slot too few": (r"(const int k_block_next = .*) % 4", r"\1 % 3", ("race", "cp.async", "uninitialised")),
    "the commit of what fills the ring": (r"^ {8}po_cp_commit\(\);", ";", ("cp.async",)),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_ring_is_reported_with_a_line(name: str) -> None:
    pattern, replacement, kinds = FAULTS[name]
    (w,) = arrays((96, 32))
    outcomes = problems(product, (32, 96), lambda text: planted(text, pattern, replacement), w)
    assert outcomes, "the kernel has nothing of the kind"
    for fault, found in outcomes:
        assert found, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert all(problem.line > 0 for problem in found)
        assert any(kind in problem.what for problem in found for kind in kinds), found
