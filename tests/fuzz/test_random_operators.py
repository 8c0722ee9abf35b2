"""Random operators with fixed seeds: the ordinary run's share of what `polyopt fuzz` does."""

from __future__ import annotations

from collections import Counter

import pytest

from polyopt.fuzz.check import check
from polyopt.fuzz.generate import random_case

BLOCKS, BLOCK = 10, 40


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_operators_do_what_the_reference_does(block: int) -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed)
        outcome = check(case)
        verdicts[outcome.verdict] += 1
        assert outcome.verdict != "fails", f"{outcome.kind}: {outcome.detail}\n\n{case.script()}"
    assert verdicts["agrees"] > BLOCK // 2, "most random operators should be ones that mean something"
