"""What the stages print for ten operators, on a machine that never changes. `make golden` rewrites the files.

Relations are compared as sets elsewhere, since their text is isl's business; here stand the decisions and the loops.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from polyopt import Op
from polyopt.dsl.text import program_text
from polyopt.loops.text import loop_text
from polyopt.pipeline import Lowering
from polyopt.target import Target

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"

MACHINE = Target(
    name="avx2",
    vector_bits=256,
    vector_registers=16,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=16 << 20,
    line_bytes=64,
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    features="",
)

OPERATORS: dict[str, tuple[str, dict[str, int]]] = {
    "linear_relu": ("linear", {"M": 100, "N": 96, "K": 64}),
    "conv2d": ("conv2d", {"N": 2, "C": 3, "H": 20, "W": 24, "O": 8}),
    "softmax": ("softmax", {"M": 64, "N": 1000}),
    "layernorm": ("layernorm", {"M": 64, "N": 768}),
    "causal_attention": ("causal_attention", {"H": 2, "T": 64, "D": 32}),
    "cholesky": ("cholesky", {"N": 48}),
    "heat3d": ("heat3d", {"N": 32, "steps": 5}),
    "gauss_seidel": ("gauss_seidel", {"N": 32, "sweeps": 4}),
    "smith_waterman": ("smith_waterman", {"M": 60, "N": 50}),
    "unsharp_mask": ("unsharp_mask", {"H": 64, "W": 80}),
}
STAGES = ("problem", "rewritten", "fusion", "tiling", "mapping", "loops", "report")


def stages(operator: str) -> dict[str, str]:
    script, sizes = OPERATORS[operator]
    lowering: Lowering = load(script, operator).lower(target=MACHINE, **sizes)
    return {
        "problem": program_text(lowering.program),
        "rewritten": program_text(lowering.rewritten),
        "fusion": str(lowering.fusion),
        "tiling": str(lowering.tiling),
        "mapping": str(lowering.mapping),
        "loops": loop_text(lowering.loops),
        "report": str(lowering.report()),
    }


def load(script: str, operator: str) -> Op:
    spec = importlib.util.spec_from_file_location(f"golden_{script}", EXAMPLES / f"{script}.py")
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, operator)
    assert isinstance(found, Op)
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_stages_print_what_they_printed(operator: str, request: pytest.FixtureRequest) -> None:
    printed = stages(operator)
    assert tuple(printed) == STAGES
    folder = HERE / operator
    if request.config.getoption("--update-golden"):
        folder.mkdir(exist_ok=True)
        for stage, text in printed.items():
            (folder / f"{stage}.txt").write_text(text.rstrip("\n") + "\n", "utf-8")
    for stage, text in printed.items():
        kept = (folder / f"{stage}.txt").read_text("utf-8")
        assert text.rstrip("\n") + "\n" == kept, f"{operator}: {stage} has changed; `make golden`, and read the diff"


@pytest.mark.parametrize("operator", OPERATORS)
def test_printing_is_the_same_in_one_process(operator: str) -> None:
    assert stages(operator) == stages(operator)


def test_no_file_is_left_over() -> None:
    folders = {folder.name for folder in HERE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
    assert folders == set(OPERATORS)
    for folder in folders:
        assert {file.stem for file in (HERE / folder).iterdir()} == set(STAGES)


@pytest.mark.parametrize("operator", ["causal_attention", "layernorm", "linear_relu", "softmax", "unsharp_mask"])
def test_products_and_sums_are_contracted(operator: str) -> None:
    """Causal attention lost its multiply-adds, and a third of its speed, when the index of an element that it compares
    was taken for a computed number."""
    script, sizes = OPERATORS[operator]
    larger = {"H": 8, "T": 1024, "D": 64} if operator == "causal_attention" else sizes
    assert "fadd contract" in load(script, operator).lower(target=MACHINE, **larger).source("llvm")
