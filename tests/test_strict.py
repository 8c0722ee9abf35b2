"""The enumeration behind `po.strict_checks()` finds faults that are planted in a loop program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f64, strict
from polyopt.loops.ir import Block, For, LoopProgram, integer

N = po.size("N")
t = po.index("t", 1, N)


@po.op
def running_sum(x: f64[N]):
    y = po.tensor("y")
    y[0] = x[0]
    y[t] = y[t - 1] + x[t]
    return y


@dataclass(frozen=True)
class Faulty:
    """A lowering whose loops were changed."""

    loops: LoopProgram
    scop: Any
    dependences: Any
    program: Any


def parts(loops: LoopProgram) -> tuple[Any, For]:
    assert isinstance(loops.body, Block)
    first, loop = loops.body.body
    assert isinstance(loop, For)
    return first, loop


def with_body(loops: LoopProgram, *body: Any) -> LoopProgram:
    return replace(loops, body=Block(body))


def changed(loops: LoopProgram, **fields: Any) -> LoopProgram:
    first, loop = parts(loops)
    return with_body(loops, first, replace(loop, **fields))


FAULTS: dict[str, Callable[[LoopProgram], LoopProgram]] = {
    "an iteration too many": lambda loops: changed(loops, upper=integer(7)),
    "an iteration too few": lambda loops: changed(loops, upper=integer(5)),
    "a parallel mark on a recurrence": lambda loops: changed(loops, kind="parallel"),
    "a vector mark on a recurrence": lambda loops: changed(loops, kind="vector"),
    "the start after the steps": lambda loops: with_body(loops, *reversed(parts(loops))),
    "an iteration twice": lambda loops: with_body(loops, *parts(loops), replace(parts(loops)[1], lower=integer(5))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    lowering = running_sum.lower(N=6)
    inputs = {"x": np.arange(6.0)}
    strict.check(lowering, {"N": 6}, inputs)
    faulty: Any = Faulty(FAULTS[fault](lowering.loops), lowering.scop, lowering.dependences, lowering.program)
    with pytest.raises(po.LegalityError):
        strict.check(faulty, {"N": 6}, inputs)


def test_a_dynamic_kernel_is_walked_at_the_sizes_of_the_call() -> None:
    lowering = running_sum.lower()
    strict.check(lowering, {"N": 5}, {"x": np.arange(5.0)})
    assert strict.points(lowering.scop.statements[-1], {"N": 5})
    (dependence, *_) = lowering.dependences.ordered
    assert list(strict.pairs(dependence, lowering.scop, {"N": 3}))
