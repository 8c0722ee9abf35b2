"""What kernels reach today, held by a gate: resources and instructions from NVRTC's code, traffic from the emulator.

A figure states what is reached; a change that makes one worse must say why, one that makes it better tightens it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from polyopt.runtime.cuda import compilers, ptxas, sass
from polyopt.testing.inputs import random_inputs
from tests.codegen_cuda.gate_ops import OPS
from tests.codegen_cuda.running import Outcome, emulate, lowered


@dataclass(frozen=True, slots=True)
class Gate:
    """What the kernels of one operator may take at most, and must have at least.

    registers: of a thread of any kernel; sectors, wavefronts: against the ideal; opcodes: at least so many of an
    instruction with these suffixes, over all kernels: ("LDG", "128") for loads of 16 bytes; hopper: the same on sm_90,
    where it is others, in kernels that have a multiprocessor for a block
    """

    registers: int = 64
    sectors: float = 1.05
    wavefronts: float = 1.0
    opcodes: tuple[tuple[tuple[str, ...], int], ...] = ()
    hopper: tuple[tuple[tuple[str, ...], int], ...] = ()


_WIDE = ((("LDG", "128"), 2), (("STG", "128"), 1))
"""Loads and stores of 16 bytes."""
_RING = ((("LDGSTS", "128"), 4), (("LDGDEPBAR",), 2), (("DEPBAR",), 1), (("STG", "128"), 1))
"""Copies of 16 bytes to shared memory that run on their own, in groups that are waited for."""

_PRODUCTS = (*_RING[:3], (("LDSM", "M88", "4"), 4), (("LDSM", "MT88", "4"), 4))
"""The same, and fragments of the tensor cores' instructions from there, as they lie and transposed."""

_GROUPS = ((("LDGSTS", "128"), 36), *_RING[1:3], (("HGMMA",), 4), (("SHFL",), 64), (("STG", "64"), 32))
"""Products of four warps from copies in shared memory, 12 copies of a thread a piece."""

GROUP_REGISTERS = 224
"""Of their threads: 128 sums, and the places of copies."""

_EXCHANGED = ((("SHFL",), 32), (("STG", "64"), 16))
"""Sums that neighboring lanes exchange, and results of which a lane stores four."""

GATES: dict[str, Gate] = {
    "matmul_f32": Gate(registers=128, opcodes=(*_RING, (("LDS", "128"), 64))),  # 64 sums: two blocks at a time
    # operands in two parts of tf32 each, three products of them: one block at a time
    "matmul_f32_fast": Gate(
        registers=200, opcodes=(*_RING[:3], (("LDSM", "M88", "4"), 4), (("HMMA", "1688", "TF32"), 96))
    ),
    # 128 sums of each of 128 threads, two blocks at a time, and the fragments of two steps; neighboring lanes exchange
    # half of the sums: four lanes store a sector of results of 2 bytes
    "matmul_bf16": Gate(
        registers=230, sectors=1.0, opcodes=(*_PRODUCTS, *_EXCHANGED, (("HMMA", "16816", "BF16"), 64)), hopper=_GROUPS
    ),
    "matmul_f16": Gate(
        registers=230, sectors=1.0, opcodes=(*_PRODUCTS, *_EXCHANGED, (("HMMA", "16816"), 64)), hopper=_GROUPS
    ),
    "matmul_i8": Gate(
        registers=220, sectors=1.0, opcodes=(*_PRODUCTS, (("IMMA", "16832", "S8"), 64), (("STG", "128"), 8))
    ),
    "conv2d_bf16": Gate(
        registers=150, sectors=1.0, opcodes=(*_PRODUCTS, (("HMMA", "16816", "BF16"), 32)), hopper=_GROUPS
    ),
    "attention_bf16": Gate(registers=241, sectors=1.0, opcodes=(*_PRODUCTS, (("HMMA", "16816", "BF16"), 128))),
    "conv2d": Gate(registers=80, opcodes=(*_RING, (("LDS", "128"), 48))),
    # rows stay in registers from one sum to the next
    "layernorm": Gate(registers=48, opcodes=(*_WIDE, (("SHFL",), 10), (("BAR",), 2))),
    "softmax": Gate(registers=64, opcodes=(*_WIDE, (("SHFL",), 10), (("BAR",), 2))),
    "pointwise_bf16": Gate(registers=40, opcodes=((("LDG", "128"), 3), (("STG", "128"), 1))),
    "column_sum": Gate(registers=32, sectors=1.0),
    "transpose": Gate(registers=24, sectors=1.0, opcodes=((("LDG", "128"), 1), (("STG", "128"), 1))),
    # three rows in vectors; the elements on either side, which the first cache has by then, cost a sector each
    "jacobi": Gate(registers=32, sectors=1.8, opcodes=((("LDG", "128"), 2), (("STG", "128"), 1))),
    # both operands of the first product lie along its sum, whose vectors take registers: one block at a time
    "attention": Gate(registers=238, opcodes=(*_RING, (("LDS", "128"), 64))),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", GATES)
def test_no_spills_no_stack_and_the_planned_instructions(name: str, arch: str) -> None:
    gate = GATES[name]
    is_hopper = arch == "sm_90" and bool(gate.hopper)
    op, sizes, _ = OPS[name]
    compiled = compilers.compile_text(lowered(op, target=arch, **sizes).cuda.text, arch)
    assert ptxas.remarks(compiled.log) == ()
    for kernel, found in compiled.resources.items():
        assert (found.stack, found.spills) == (0, False), f"{kernel}: {found}"
        assert found.registers <= (GROUP_REGISTERS if is_hopper else gate.registers), f"{kernel}: {found}"
    codes: Counter[str] = sum(sass.opcodes(compiled.code).values(), Counter())
    assert sass.count(codes, "LDL") == sass.count(codes, "STL") == 0
    for wanted, least in gate.hopper if is_hopper else gate.opcodes:
        assert sass.count(codes, *wanted) >= least, f"{'.'.join(wanted)} in {codes}"


def traffic(name: str) -> Outcome:
    op, _, sizes = OPS[name]
    lowering = lowered(op, **sizes)
    inputs = {n: np.asarray(v) for n, v in random_inputs(lowering.program, {}, 0, {}).items()}
    return emulate(lowering, inputs, {}, "count")


@pytest.mark.parametrize("name", GATES)
def test_memory_traffic(name: str) -> None:
    outcome = traffic(name)
    assert outcome.problems == ()
    for space, most in (("global", GATES[name].sectors), ("shared", GATES[name].wavefronts)):
        rows = [row for row in outcome.traffic if row.space == space]
        used, ideal = sum(row.used for row in rows), sum(row.ideal for row in rows)
        worst = max(rows, key=lambda row: row.used - row.ideal, default=None)
        assert used <= most * ideal, f"{space}: {used / ideal:.3f} of the ideal, the worst at {worst}"
