"""Runs chosen stages to numbers: a scop under a tree with a storage plan, through the loop interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyopt.dsl.ir import Const, Program, Var
from polyopt.loops import lower as loops_lower
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Expr, LoopProgram
from polyopt.loops.verify import verify
from polyopt.poly import legality, storage
from polyopt.poly.dependence import Dependences
from polyopt.poly.scop import Scop
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Tree, as_schedule, kinds

Arrays = Mapping[str, np.ndarray]


def proved(scop: Scop, dependences: Dependences, tree: Tree) -> StoragePlan:
    """The storage that is chosen for a tree, once the proof accepts both."""
    schedule = as_schedule(tree, scop)
    plan = storage.decide(scop, dependences, tree, schedule)
    legality.prove(scop, dependences, schedule, kinds(tree), plan)
    return plan


def loop_program(program: Program, scop: Scop, tree: Tree, plan: StoragePlan) -> LoopProgram:
    """The loops of a tree, well formed and free of races."""
    loops = loops_lower.lower(scop, tree, plan, parameters=program.parameters, results=program.results, strides={})
    verify(loops)
    return loops


def run(loops: LoopProgram, inputs: Arrays, sizes: Mapping[str, int] | None = None, seed: int | None = 0) -> Arrays:
    """The results of a loop program, its parallel and vector loops shuffled."""
    known = dict(sizes or {})
    results = {}
    for buffer in loops.arguments:
        if buffer.name in loops.written:
            shape = tuple(_value(extent, known) for extent in buffer.callers_shape)
            results[buffer.name] = np.zeros(shape, buffer.dtype.numpy)
    interpret(loops, {**inputs, **results}, known, seed=seed)
    return results


def _value(extent: Expr, sizes: Mapping[str, int]) -> int:
    """An extent that is a number or a size."""
    if isinstance(extent, Const):
        return int(extent.value)
    assert isinstance(extent, Var), "an extent that is an expression"
    return sizes[extent.name]
