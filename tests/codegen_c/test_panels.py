"""Panels whose last rows are not full: whole vectors read them, and must not compute with what memory held before."""

from __future__ import annotations

import re

from polyopt.loops.ir import Alloc, LoopProgram, walk
from polyopt.target import preset
from tests.poly.operators import product


def padded(program: LoopProgram) -> list[str]:
    allocated = [node.buffer for node in walk(program.body) if isinstance(node, Alloc)]
    return [buffer.name for buffer in (*program.workspace, *allocated) if buffer.padded]


def test_lanes_past_the_last_column_of_a_panel_are_set_to_zero() -> None:
    lowering = product.lower(M=129, N=129, K=3000, target=preset("avx512"))
    assert padded(lowering.loops) == ["w_packed"]
    text = lowering.source("llvm")
    mask = r"<\d+ x i1> (?:<[^>]+>|%\w+)"
    zeroed = re.findall(rf"(%\w+) = select {mask}, <\d+ x float> [^,]+, <\d+ x float> splat \(float 0", text)
    assert any(f"store <16 x float> {value}, " in text for value in zeroed)


def test_arrays_of_the_program_itself_are_not_padded() -> None:
    assert padded(product.lower(M=64, N=8, K=64, target=preset("avx2")).loops) == []
