"""Random operators with fixed seeds: the ordinary run's share of what `polyopt fuzz` does."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest

import polyopt as po
from polyopt.codegen_c import c_helpers
from polyopt.errors import CompileError
from polyopt.fuzz.check import check, compare
from polyopt.fuzz.expressions import EXACT_FUNCTIONS
from polyopt.fuzz.generate import campaign_case, is_small, on_gpu, random_case
from polyopt.runtime.cuda import compilers
from polyopt.target import gpu_preset

BLOCKS, BLOCK = 12, 40
"""With four plans for each some 2,000 kernels."""
GPU_SEED, GPU_CASES = 51_000_000, 10
"""The emulator's compiler takes about a second for each."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_operators_do_what_the_reference_does(block: int) -> None:
    verdicts: Counter[str] = Counter()
    kernels = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_case(seed, rough=block % 3 == 2)
        outcome = check(case)
        verdicts[outcome.verdict] += 1
        kernels += outcome.kernels
        assert outcome.verdict != "fails", f"{outcome.kind}: {outcome.detail}\n\n{case.script()}"
    assert verdicts["agrees"] > BLOCK // 2, "most random operators should be ones that mean something"
    assert kernels > 4 * verdicts["agrees"], "most of the plans that are drawn should be legal"


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
def test_random_operators_do_what_the_reference_does_on_the_emulator() -> None:
    """A share of a campaign has a GPU for its target."""
    drawn = (random_case(seed, rough=seed % 2 == 0, functions=EXACT_FUNCTIONS) for seed in count(GPU_SEED))
    cases = [on_gpu(case) for case in islice(filter(is_small, drawn), GPU_CASES)]
    verdicts: Counter[str] = Counter()
    for case in cases:
        outcome = check(case)
        verdicts[outcome.verdict] += 1
        assert outcome.verdict != "fails", f"{outcome.kind}: {outcome.detail}\n\n{case.script()}"
    assert verdicts["agrees"] > GPU_CASES // 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
@pytest.mark.skipif(compilers.nvrtc() is None, reason="NVRTC is not installed")
def test_a_kernel_that_nvrtc_refuses_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that hardware found: `copysign(0, x)`, which the emulator's compiler takes."""
    wrong = {name: text.replace("($T)0, ", "0, ") for name, text in c_helpers._TEMPLATES.items()}
    monkeypatch.setattr(c_helpers, "_TEMPLATES", wrong)
    n, i = po.size("N"), po.index("i")

    @po.op(target=gpu_preset("sm_90"))
    def quotients(x: po.f64[n]) -> object:
        y = po.tensor("y")
        y[i] = x[i] // 3.0
        return y

    with pytest.raises(CompileError, match="NVRTC"):
        compare(quotients, (np.arange(5.0),), gpu=True)


def test_a_campaign_draws_some_cases_for_a_gpu() -> None:
    cases = [campaign_case(seed) for seed in range(400)]
    found = [case for case in cases if case.gpu]
    assert 4 < len(found) < 40
    assert all('gpu_preset("sm_' in dict(case.options)["target"] and "gpu=True" in case.script() for case in found)
    whole = [case for case in found if not any(p.rough for p in case.parameters)]
    assert 2 < len(whole) < len(found), "some have rough numbers"
    assert 60 < sum(case.labels != () for case in cases) < 180, "some call indices as the compiler would"
    assert [replace(case, plans=(), options=(), gpu=False) for case in whole] == [
        replace(random_case(case.seed), plans=(), options=(), labels=case.labels, others=case.others) for case in whole
    ], "the equations and the call are those of the seed"
