"""Bugs planted in the compiler itself: would random programs under random plans find them?

    python -m tests.mutation.compiler_bugs

Each bug is a patch of one function. Checkers that are switched off stand for rules that were forgotten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

from polyopt import pipeline
from polyopt.dsl.affine import Affine, constant
from polyopt.fuzz.check import check
from polyopt.fuzz.generate import random_case
from polyopt.loops import body, lower, split
from polyopt.loops.ir import Expr
from polyopt.poly import legality

Patch = Callable[[], AbstractContextManager[Any]]
PATIENCE = 120
"""Programs after which a bug counts as not found."""


def _nothing(*_: object) -> None:
    return None


def _one_less(expr: Expr, made: Callable[[Expr], Expr] = lower._plus_one) -> Expr:
    return expr if "tile" in str(expr) else made(expr)


def _all_pairs(scop: Any, program: Any) -> tuple[tuple[str, str], ...]:
    tensor = program.tensor
    return tuple((r, p) for r in program.results for p in program.parameters if tensor(p).dtype == tensor(r).dtype)


def _late(comparison: Any, variable: str, first: Affine, made: Any = split._sides) -> Any:
    return made(comparison, variable, first + constant(1))


BUGS: Mapping[str, Patch] = {
    "iterations are counted where values lie a stride apart": lambda: mock.patch.object(
        lower, "_values_not_counts", nullcontext
    ),
    "the order of dependences is not proved": lambda: mock.patch.object(legality._Prover, "check_order", _nothing),
    "updates that meet are not refused": lambda: mock.patch.object(legality._Prover, "check_reduction", _nothing),
    "a buffer is private where values cross iterations": lambda: mock.patch.object(
        legality._Prover, "check_private", _nothing
    ),
    "a buffer is too small": lambda: mock.patch.object(legality._Prover, "check_side", _nothing),
    "folding overwrites what is needed": lambda: mock.patch.object(legality._Prover, "check_folding", _nothing),
    "any result may share an input's memory": lambda: mock.patch.object(pipeline, "_in_place", _all_pairs),
    "padded reads are never outside": lambda: mock.patch.object(body.Bodies, "never", lambda *_: True),
    "a split loop decides its tests an iteration late": lambda: mock.patch.object(split, "_sides", _late),
    "a tile's tail is forgotten": lambda: mock.patch.object(lower, "_plus_one", _one_less),
}


def programs_until_found(name: str, first: int = 0, patience: int = PATIENCE) -> int | None:
    """How many random programs it takes to find a bug; None where it is not found."""
    with BUGS[name]():
        for number in range(patience):
            if check(random_case(first + number)).verdict == "fails":
                return number + 1
    return None


def report() -> Iterator[str]:
    for name in BUGS:
        found = programs_until_found(name)
        yield f"{name}: {'not found' if found is None else f'found by program {found}'}"


def main() -> None:
    for line in report():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
