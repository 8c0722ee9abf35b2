"""The emulator beside what an H100 gave for the same probes: our reading of the PTX manual, held to the hardware.

The file is what `tools/gpu/run.py --save-probes` wrote there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyopt import compilation
from tests.codegen_cuda.test_emulated import needs_compiler
from tools.gpu import probes

HARDWARE = np.load(Path(__file__).parent / "probes_h100.npz")


def test_the_hardware_has_answered_every_probe() -> None:
    assert set(HARDWARE.files) == set(probes.PROBES)


@needs_compiler
@pytest.mark.parametrize("name", probes.PROBES)
def test_words_mean_what_they_mean_on_an_h100(name: str) -> None:
    probe = probes.probe(name)
    got = probes.run(probe, compilation.emulator())
    assert len(np.unique(got)) > 30, "it says something"
    assert probes.differences(probe, got, HARDWARE[name]) == 0
