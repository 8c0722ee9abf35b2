"""Random operators with fixed seeds: the ordinary run's share of what `polyopt fuzz` does."""

from __future__ import annotations

from collections import Counter

import pytest

from polyopt.fuzz.check import check
from polyopt.fuzz.generate import random_case

BLOCKS, BLOCK = 11, 40
"""With four plans for each some 2,000 kernels."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_operators_do_what_the_reference_does(block: int) -> None:
    verdicts: Counter[str] = Counter()
    kernels = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed)
        outcome = check(case)
        verdicts[outcome.verdict] += 1
        kernels += outcome.kernels
        assert outcome.verdict != "fails", f"{outcome.kind}: {outcome.detail}\n\n{case.script()}"
    assert verdicts["agrees"] > BLOCK // 2, "most random operators should be ones that mean something"
    assert kernels > 4 * BLOCK, "most of the plans that are drawn should be legal"
