"""Every example gives what its NumPy equivalent gives, and runs as the script that its page says it is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import polyopt as po

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{script.stem}", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def results(value: object) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def test_there_are_twelve_examples_and_the_page_names_each() -> None:
    page = (EXAMPLES / "README.md").read_text()
    assert len(SCRIPTS) >= 12
    for script in SCRIPTS:
        assert f"[{script.name}]({script.name})" in page


@every_script
def test_equals_its_numpy_equivalent(script: Path) -> None:
    op, inputs, oracle = load(script).demo_case()
    assert isinstance(op, po.Op)
    for got, want in zip(results(op(*inputs)), results(oracle(*inputs)), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        largest = float(np.max(np.abs(want), initial=0)) if want.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(got, want, rtol=1e-3 if largest else 0, atol=1e-4 * largest)


@every_script
def test_is_proved_legal_and_runs_in_parallel_and_in_vectors(script: Path) -> None:
    op, inputs, _ = load(script).demo_case()
    lowered = op.lower(*inputs)
    lowered.verify()
    assert "parallel" in str(lowered.loops) or "vector" in str(lowered.loops)


@every_script
def test_says_what_it_is_about(script: Path) -> None:
    module = load(script)
    assert module.__doc__ and len(module.__doc__.splitlines()[0]) <= 120


@every_script
def test_runs_as_a_script(script: Path, tmp_path: Path) -> None:
    arguments = [str(tmp_path)] if script.stem == "unsharp_mask" else []
    run = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "for " in run.stdout or "#" in run.stdout


def test_the_sharpened_image_is_a_png(tmp_path: Path) -> None:
    module = load(EXAMPLES / "unsharp_mask.py")
    module.write_png(tmp_path / "rings.png", module.soft_rings(32))
    content = (tmp_path / "rings.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
