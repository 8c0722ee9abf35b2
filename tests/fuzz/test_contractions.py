"""The ordinary run's share of random contractions; `python -m tests.fuzz.contractions` gives many more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyopt.target import preset
from tests.fuzz.contractions import random_contraction
from tests.fuzz.exact import REWRITES, Array, failure, rewrites

BLOCK, BLOCKS = 30, 3


@pytest.mark.parametrize("block", range(BLOCKS))
def test_contractions_are_exact(block: int) -> None:
    reports = (failure(random_contraction(seed)) for seed in range(block * BLOCK, (block + 1) * BLOCK))
    assert not (found := [report for report in reports if report]), found[0]


def test_they_are_of_the_sizes_that_plans_are_made_for() -> None:
    seen = [rewrites(random_contraction(seed), preset("avx2")) for seed in range(120)]
    assert {one for some in seen for one in some} == set(REWRITES)


def test_a_wrong_element_is_found_and_named() -> None:
    right = random_contraction(3)

    def off(*arrays: Array) -> Array:
        wanted = right.expected(*arrays)
        wanted.flat[-1] += 1
        return wanted

    report = failure(replace(right, expected=off))
    assert "1 are wrong" in report and "seed 3" in report and "def fuzzed" in report
