"""Proofs about a resolved program."""

from __future__ import annotations

from polyopt.dsl import ir
from polyopt.dsl.affine import Condition


def check(program: ir.Program) -> tuple[Condition, ...]:
    return ()
