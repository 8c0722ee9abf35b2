"""The same loops as machine code of every make agree: LLVM's efforts 0 and 3, this processor and the generic one.

In strict mode and on integers bit for bit. A difference is a fault of LLVM's, or of text that LLVM may read in two
ways; neither the reference nor the proofs would tell such a fault from one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyopt.pipeline import Lowering
from polyopt.runtime import jit
from polyopt.runtime.calls import Call
from polyopt.runtime.kernel import Kernel
from polyopt.target import Target, host, preset
from polyopt.testing.check import sizes_of
from tests.operators.catalogue import OPERATORS
from tests.operators.operator import Case

Array = NDArray[Any]

BY_NAME = {operator.name: operator for operator in OPERATORS}
SAMPLE = (
    *(("matmul", "i64"), ("matmul", "f16"), ("conv2d_same", "bf16"), ("max_pool2d", "f32")),
    *(("softmax", "f64"), ("causal_attention", "f32"), ("embedding_gradient", "f32"), ("take_along", "u16")),
    *(("cumulative_max", "i8"), ("lstm", "f32"), ("edit_distance", "i64"), ("rule_110", "bool"), ("casts", "f32")),
    *(("rounding", "f32"), ("integer_division", "i16"), ("bits", "u64"), ("harris", "f32")),
)


def makes() -> list[tuple[Target, int]]:
    """Processors with LLVM's effort: this one at both, and the least of its kind, unless that is what this one is."""
    here, least = host(), preset("generic")
    both = [(here, 0), (here, 3)]
    if here.triple != least.triple or here.features == least.features:
        return both
    return [*both, (replace(here, cpu=least.cpu, features=least.features, vector_bits=least.vector_bits), 3)]


def result(lowering: Lowering, machine: Target, opt: int, arguments: Mapping[str, Array]) -> list[Array]:
    """What the lowering's loop program gives as code for that machine."""
    made = replace(lowering, options=replace(lowering.options, target=machine))
    own = ("options", "_module", "info", "_settled")
    stages = {name: stage for name, stage in vars(lowering).items() if name not in own}
    vars(made).update(stages, _loops=lowering.loops, _settled=made)
    kernel = Kernel(made.info, jit.compile_object(made.module.text, machine, opt=opt))
    call = Call(kernel, sizes_of(made.program, arguments), arguments, {})
    results: list[Array] = call.new_results()
    call.run(list(arguments.values()), results)
    return results


def differences(lowering: Lowering, arguments: Mapping[str, Array], among: Sequence[tuple[Target, int]]) -> list[str]:
    """The makes whose results are not those of the first, bit for bit."""
    (machine, opt), *others = among
    first = [array.tobytes() for array in result(lowering, machine, opt, arguments)]
    return [
        f"{other.cpu} at effort {effort} differs from {machine.cpu} at effort {opt}"
        for other, effort in others
        if [array.tobytes() for array in result(lowering, other, effort, arguments)] != first
    ]


def lowered(name: str, dtype: str, numerics: str) -> tuple[Lowering, dict[str, Array]]:
    operator = BY_NAME[name]
    case = Case(operator, tuple("prime" for _ in operator.sizes), "contiguous", dtype)
    arguments = case.arguments
    bound = operator.op.signature.python.bind(*arguments)
    bound.apply_defaults()
    plain = operator.op.lower(*arguments)
    lowering = replace(plain, options=replace(plain.options, numerics=numerics))
    return lowering, {name: np.asarray(bound.arguments[name]) for name in lowering.program.parameters}


@pytest.mark.parametrize(("name", "dtype"), SAMPLE, ids=lambda value: str(value))
def test_every_make_gives_the_same_bits(name: str, dtype: str) -> None:
    lowering, arguments = lowered(name, dtype, "strict")
    assert differences(lowering, arguments, makes()) == []


def test_a_make_with_a_fault_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = jit.compile_object

    def wrong(text: str, target: Target, *, opt: int) -> bytes:
        return right(re.sub(r"\bfadd\b", "fsub", text) if opt == 3 else text, target, opt=opt)

    monkeypatch.setattr(jit, "compile_object", wrong)
    lowering, arguments = lowered("harris", "f32", "strict")
    assert any("at effort 3 differs" in line for line in differences(lowering, arguments, makes()))
