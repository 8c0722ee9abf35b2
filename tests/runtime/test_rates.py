"""Measuring the machine: every rate is positive, whatever the clock says, and survives being written down."""

from __future__ import annotations

import pytest

from polyopt.runtime import jit, rates
from polyopt.target import PRESETS, Rates, preset, rates_from_json


@pytest.fixture(scope="module")
def measured() -> Rates:
    return rates.measure(largest_bytes=1 << 20, repeats=1)


def test_every_rate_is_positive(measured: Rates) -> None:
    assert all(value > 0 for value in measured.as_json().values())
    assert measured.cores >= 1


def test_a_clock_that_stands_still_or_a_machine_that_sleeps_gives_positive_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = rates._Work(lambda times: None, 1.0)
    monkeypatch.setattr(rates, "_seconds", lambda work, times: 0.0 if times < 100 else 1e9)
    assert rates._rate(work, 2) > 0
    monkeypatch.setattr(rates, "_seconds", lambda work, times: 0.0)
    assert rates._rate(work, 2) > 0


def test_rates_survive_text(measured: Rates) -> None:
    assert rates_from_json(measured.as_json()) == measured
    with pytest.raises(ValueError, match="not positive"):
        rates_from_json({**measured.as_json(), "l1": 0.0})
    for extreme in (1.7e308, 5e-324):
        with pytest.raises(ValueError, match="beyond any machine's"):
            rates_from_json({**measured.as_json(), "dispatch_us": extreme})
    with pytest.raises(TypeError):
        rates_from_json({"l1": 1.0})


@pytest.mark.parametrize("name", PRESETS)
def test_kernels_to_measure_with_are_valid_for_every_preset(name: str) -> None:
    target = preset(name)
    assert jit.compile_object(rates.kernels_ir(target), target)
