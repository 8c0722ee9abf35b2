"""Verdicts on random schedules: the proof of `poly.legality` against enumeration (`tests.brute_force`).

    python -m tests.fuzz.verdicts --count 200000 --seed 0

Small random operators, sizes up to 6, each under many random trees, legal and illegal. The proof must never call legal
what enumeration calls illegal. What it refuses though enumeration finds nothing is counted: lanes that happen not to
meet.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from polyopt.dsl.affine import Affine
from polyopt.errors import LegalityError, PolyoptError
from polyopt.fuzz import log
from polyopt.fuzz.plans import random_tree
from polyopt.poly import legality, storage
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Tree, as_schedule, kinds, numbered
from tests import brute_force, random_operators

TREES = 100
"""Trees for each operator."""
MOST_PAIRS = 4000
"""Operators whose instances depend on each other in more ways than this take too long."""


@dataclass(slots=True)
class Verdicts:
    """counts: "legal", "illegal" where both agree; "refused" where only the proof says so; "false legal"."""

    counts: Counter[str] = field(default_factory=Counter)
    operators: int = 0
    false_legal: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.counts.total()

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"{self.total} verdicts on {self.operators} operators: {shown}"


def judge(seed: int, found: Verdicts, trees: int = TREES) -> None:
    """Verdicts on random trees of the operator of a seed."""
    random = Random(seed)
    case = random_operators.random_case(seed, (2, 5))
    try:
        lowering = case.op.lower(*case.arguments)
        fused = numbered(lowering.fusion.tree)
    except PolyoptError:
        return
    scop = lowering.scop
    if _has_data_subscripts(scop):
        return
    needed = brute_force.pairs(scop)
    if len(needed.ordered) + len(needed.updates) > MOST_PAIRS:
        return
    found.operators += 1
    whole = storage.whole_plan(scop)
    for _ in range(trees):
        tree = random_tree(fused, random)
        broken = brute_force.violation(needed, tree)
        try:
            legality.prove(scop, lowering.dependences, as_schedule(tree, scop), kinds(tree), whole)
        except LegalityError:
            found.counts["refused" if broken is None else "illegal"] += 1
            continue
        found.counts["legal" if broken is None else "false legal"] += 1
        if broken is not None:
            found.false_legal.append(_report(seed, tree, broken))


def _has_data_subscripts(scop: Scop) -> bool:
    references = [s.subscripts for s in scop.statements]
    references += [access.read.subscripts for s in scop.statements for access in s.reads]
    return any(not isinstance(subscript, Affine) for reference in references for subscript in reference)


def _report(seed: int, tree: Tree, broken: object) -> str:
    return f"seed {seed}: proved, though {broken} is broken:\n{tree}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="verdicts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="add the totals to this log")
    options = parser.parse_args()
    found, seed = Verdicts(), options.seed
    while found.total < options.count:
        judge(seed, found)
        seed += 1
    sys.stdout.write(f"seeds {options.seed} to {seed - 1}: {found}\n")
    if options.log is not None:
        counts = {**found.counts, "verdicts": found.total, "operators": found.operators}
        seeds = ((options.seed, seed - 1),)
        log.add(options.log, log.Entry("verdicts", log.commit(), counts, len(found.false_legal), seeds))
    for report in found.false_legal:
        sys.stdout.write(f"{report}\n")
    sys.exit(bool(found.false_legal))


if __name__ == "__main__":
    main()
