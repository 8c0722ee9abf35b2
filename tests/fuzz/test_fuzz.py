"""The fuzzer: what it draws, that its checks bite, and that it shrinks what fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from polyopt import cli, export
from polyopt.codegen_c.c_expressions import CExpressions
from polyopt.codegen_c.c_source import as_c
from polyopt.errors import BoundsError
from polyopt.fuzz import campaign, printed
from polyopt.fuzz import check as fuzz_check
from polyopt.fuzz.arrays import LAYOUTS, draw, shifted
from polyopt.fuzz.case import Case, Definition, Equation, Node, Parameter
from polyopt.fuzz.check import Mismatch, Outcome, check, compare, load
from polyopt.fuzz.generate import MOST_TERMS, campaign_case, random_case, terms
from polyopt.fuzz.shrink import shrink
from polyopt.fuzz.worker import Worker
from polyopt.loops.ir import LoopProgram

SMALL = Case(
    0,
    (("M", 4),),
    (Parameter("x", ("M",), "i32", -3, 3, "contiguous", 1),),
    (
        Definition("a", ("M",), "i32", (Equation("[i]", Node("(x[i] + 2)", dtype="i32")),)),
        Definition("b", ("M",), "i32", (Equation("[i]", Node("(a[i] * 3)", dtype="i32")),)),
    ),
    ("a", "b"),
)


def test_a_seed_gives_the_same_case_every_time() -> None:
    assert random_case(7) == random_case(7)
    assert random_case(7) != random_case(8)


def test_terms_are_counted_over_all_sums() -> None:
    scores = Equation("[i, ii]", Node("po.sum(x0[k, j], k)"), "+=")
    case = replace(SMALL, sizes=(("M", 100), ("N", 32), ("K", 129), ("T", 3)))
    matrix = replace(SMALL.definitions[0], dims=("M", "M"), equations=(scores,))
    assert terms(replace(case, definitions=(matrix,))) == 100 * 100 * 32 * 129
    assert terms(replace(case, definitions=(matrix, *SMALL.definitions))) == 100 * 100 * 32 * 129 + 2 * 100


def test_no_case_has_more_terms_than_the_reference_can_sum() -> None:
    for seed in (*range(900000200, 900000220), *range(300)):
        assert terms(random_case(seed)) <= MOST_TERMS  # seed 900000210 summed 5 thousand million
    assert terms(campaign_case(980040664)) <= 10_000_000, "of 66 million the reference took more than a minute"


def test_a_product_of_integers_may_be_as_large_as_any() -> None:
    """Seed 1500000766: 17 factors of 3 were cast to f32 as if they were 3, and sums of them rounded."""
    nodes = [equation.value for seed in range(300) for d in random_case(seed).definitions for equation in d.equations]
    found = [node for node in nodes if node.template.startswith("po.prod(") and node.dtype in ("i32", "i64")]
    while nodes:
        nodes = [part for node in nodes for part in node.parts]
        found += [node for node in nodes if node.template.startswith("po.prod(") and node.dtype in ("i32", "i64")]
    assert found and all(node.bound >= 2**31 - 1 for node in found)


def test_cases_hold_every_kind_of_thing() -> None:
    text = "\n".join(random_case(seed).script() for seed in range(300))
    for part in (
        "+=", "*=", "po.when", ".pad(", ".clamp()", ".wrap()", " // ", " % ", "[ids[", "po.sum(", "po.prod(", "po.max(",
        "po.min(", "po.any(", "po.all(", "po.argmax(", "po.argmin(", "po.reduce(", "where=", "po.cast(", ".T", "[::-1]",
        "dynamic=", '"strict"', '"fast"', "preset(", "parallel_ns=1,", "[t + 1, j]", "ii < i", "2*i + 1",
        *(f"'{layout}'" for layout in LAYOUTS), "'overlap'", "'input'", "bf16", "f16", "u64", "bool_",
    ):  # fmt: skip
        assert part in text, part


def test_rough_cases_hold_what_others_cannot() -> None:
    text = "\n".join(random_case(seed, rough=True).script() for seed in range(300))
    for part in (
        "rough=True", "'python'", "'numpy'", " 0.5)", "-0.0", "po.maximum(", "po.exp(", "po.erf(", "po.is",
        " ** ", "a: po.f32,", "a: po.f16", "a[()]",
    ):  # fmt: skip
        assert part in text, part
    assert text.count('numerics="strict"') == 300
    assert random_case(7, rough=True) == random_case(7, rough=True)


def test_rough_numbers_are_of_every_kind() -> None:
    drawn = np.concatenate([draw((50,), "f32", -3, 3, seed=seed, rough=True) for seed in range(20)])
    finite = drawn[np.isfinite(drawn)]
    assert np.isnan(drawn).any() and np.isinf(drawn).any() and (np.signbit(drawn) & (drawn == 0)).any()
    assert (finite != np.round(finite)).mean() > 0.5
    assert draw((), "f32", -3, 3, "python", seed=1, rough=True) == float(draw((), "f32", -3, 3, seed=1, rough=True))


@pytest.mark.parametrize(("numerics", "is_noticed"), [("strict", True), ("default", False)])
def test_the_sign_of_zero_counts_in_strict_numerics(
    numerics: str, is_noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Parameter("x", ("M",), "f32", 0, 0, "contiguous", 1)
    same = Definition("a", ("M",), "f32", (Equation("[i]", Node("(x[i] * 1)", dtype="f32")),))
    case = replace(
        SMALL, parameters=(x,), definitions=(same,), results=("a",), options=(("numerics", f'"{numerics}"'),)
    )
    operator = load(case.operator_source())
    monkeypatch.setattr(operator, "reference", lambda *_, numerics: np.array([-0.0, 0, 0, 0], np.float32))
    found = pytest.raises(Mismatch, match="differs") if is_noticed else nullcontext()
    with found:
        compare(operator, (np.zeros(4, np.float32),))


def test_a_kernel_that_keeps_the_numbers_of_its_first_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = load(SMALL.operator_source())
    right = operator.reference
    first = np.arange(4, dtype=np.int32)
    monkeypatch.setattr(operator, "reference", lambda *_, numerics: right(first, numerics=numerics))
    with pytest.raises(Mismatch, match="turned around"):
        compare(operator, (first,))


MANY_SIZES = replace(SMALL, options=(("dynamic", "True"),), others=(("M", 2),))


def test_a_kernel_for_many_sizes_is_called_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(campaign_case(seed).others for seed in range(100))
    assert MANY_SIZES.calls() == [{"M": 4}, {"M": 2}]
    assert replace(MANY_SIZES, sizes=(("M", 1),)).calls()[1] == {"M": 1}, "numbers are bounded for the sizes"
    assert check(MANY_SIZES).verdict == "agrees"
    operator = load(MANY_SIZES.operator_source())
    right = operator.reference

    def wrong(x: np.ndarray, *, numerics: str) -> object:
        a, b = right(x, numerics=numerics)
        return a, b + (len(x) == 2)

    monkeypatch.setattr(operator, "reference", wrong)
    with pytest.raises(Mismatch, match="for other sizes"):
        compare(operator, (np.arange(4, dtype=np.int32),), others=[(np.arange(2, dtype=np.int32),)])


def test_layouts_hold_the_same_numbers() -> None:
    plain = draw((3, 4), "i16", -3, 3, seed=5)
    for layout in LAYOUTS:
        drawn = draw((3, 4), "i16", -3, 3, layout, seed=5)
        np.testing.assert_array_equal(drawn, np.broadcast_to(plain[:1], (3, 4)) if layout == "broadcast" else plain)
    first, second = shifted(plain)
    assert np.shares_memory(first, second)


@pytest.mark.parametrize("case", [SMALL, MANY_SIZES], ids=["one call", "other sizes"])
def test_a_case_is_a_program_of_its_own(case: Case) -> None:
    subprocess.run([sys.executable, "-c", case.script()], check=True, timeout=120)


@pytest.mark.parametrize("changed", ["value", "dtype", "shape"])
def test_a_wrong_result_is_noticed(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = load(SMALL.operator_source())
    right = operator.reference

    def wrong(*arguments: np.ndarray, numerics: str) -> object:
        a, b = right(*arguments, numerics=numerics)
        return a, {"value": b + 1, "dtype": b.astype(np.int64), "shape": b[1:]}[changed]

    monkeypatch.setattr(operator, "reference", wrong)
    with pytest.raises(Mismatch, match="differs from the reference"):
        compare(operator, (np.arange(4, dtype=np.int32),))


needs_cc = pytest.mark.skipif(export.c_compiler() is None, reason="printed C needs a compiler")


@needs_cc
def test_what_is_printed_as_c_runs_too() -> None:
    assert any(campaign_case(seed).printed for seed in range(100))
    case = replace(SMALL, printed=True)
    assert "printed=True" in case.script()
    assert check(case).kernels == check(SMALL).kernels + 1


@needs_cc
@pytest.mark.parametrize("changed", ["number", "text"])
def test_printed_c_that_is_wrong_is_noticed(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(program: LoopProgram) -> str:
        text = as_c(program)
        return text.replace(" = ", " = 1 + ") if changed == "number" else f"{text} not C"

    monkeypatch.setattr(printed, "as_c", wrong)
    outcome = check(replace(SMALL, printed=True))
    assert (outcome.verdict, outcome.kind) == ("fails", "printed C")


def test_a_refusal_that_only_one_side_makes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = Definition("a", ("M",), "i32", (Equation("[i]", Node("x[x[i]]", dtype="i32")),))
    outside = replace(SMALL, parameters=(replace(SMALL.parameters[0], low=9, high=9),), results=("a",))
    outside = replace(outside, definitions=(gather,))
    assert check(outside).verdict == "rejected"
    operator = load(outside.operator_source())
    monkeypatch.setattr(operator, "reference", lambda *arguments, **options: arguments[0])
    with pytest.raises(Mismatch, match="refused"):
        compare(operator, (np.full(4, 9, np.int32),))


@needs_cc
@pytest.mark.parametrize("part", ["kernel", "printed C"])
def test_a_subscript_out_of_range_that_only_one_side_takes_is_noticed(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the choice by data leaves its element out."""
    chosen = Node("po.where(x[i] < 0, x[ids[i]], 2)", dtype="i32")
    rows = replace(SMALL.parameters[0], low=0, high=3)
    ids = Parameter("ids", ("M",), "i32", 0, 3, "contiguous", 0)
    case = replace(
        SMALL, parameters=(rows, ids), definitions=(Definition("a", ("M",), "i32", (Equation("[i]", chosen),)),)
    )
    case = replace(case, results=("a",), printed=True)
    assert check(case).verdict == "agrees"
    if part == "kernel":
        monkeypatch.setattr(fuzz_check, "OUTSIDE", 0)
        monkeypatch.setattr(fuzz_check, "_reference", refusing(fuzz_check._reference))
    else:
        monkeypatch.setattr(CExpressions, "_checked_first", lambda self, expr, text: text)
    outcome = check(case)
    assert (outcome.verdict, outcome.kind) == ("fails", "accepted")


def refusing(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference, which from its third call on says that a subscript is out of range."""
    calls = count()

    def changed(*given: Any) -> Any:
        return reference(*given) if next(calls) < 2 else (None, BoundsError("out of range", where=None, fix="none"))

    return changed


def test_shrinking_keeps_what_fails_and_drops_the_rest() -> None:
    def fails(case: Case) -> bool:
        return "* 3" in case.operator_source() and "b" in case.results

    smallest = shrink(replace(SMALL, out="strided", threads=2), fails)
    assert [d.name for d in smallest.definitions] == ["b"]
    assert (smallest.results, smallest.sizes, smallest.out, smallest.threads) == (("b",), (("M", 1),), None, 1)


def test_a_case_that_kills_its_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    deadly = Definition("a", ("M",), "i32", (), whole=Node("__import__('os').abort()", dtype="i32"))
    with Worker() as worker:
        assert worker.check(replace(SMALL, definitions=(deadly,), results=("a",))).kind == "crash"
        assert worker.check(SMALL) == Outcome("agrees", kernels=1)


def test_a_case_that_never_ends_is_a_finding(capfd: pytest.CaptureFixture[str]) -> None:
    endless = Definition("a", ("M",), "i32", (), whole=Node("[1 for n in iter(int, 1)]", dtype="i32"))
    with Worker(patience_s=5) as worker:
        assert worker.check(SMALL) == Outcome("agrees", kernels=1)
        assert worker.check(replace(SMALL, definitions=(endless,), results=("a",))).kind == "hang"
    assert "most recent call first" in capfd.readouterr().err or os.name != "posix", "the process shows where it was"


def test_what_fails_once_is_reported_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report gave the outcome of the last run, which was none."""
    answers = [Outcome("fails", "mismatch", "1 is 2"), *(Outcome("agrees") for _ in range(1000))]
    monkeypatch.setattr(Worker, "check", lambda self, case: answers.pop(0))
    monkeypatch.setattr(campaign, "campaign_case", lambda seed: SMALL)
    found = campaign.Campaign(7).step(Worker())
    assert found is not None
    assert (found.smallest, found.outcome.kind) == (SMALL, "mismatch")
    assert "1 is 2" in str(found) and "agrees when it runs again" in str(found)


def test_a_process_that_cannot_be_started_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What closes the worker asked for a process that there was none of, and hid the reason."""

    def refused(_: object) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refused)
    with pytest.raises(OSError, match="no processes left"), Worker() as worker:
        worker.check(SMALL)


def test_the_command_reports_its_seeds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "campaign_case", lambda seed: SMALL)
    assert cli.main(["fuzz", "--seconds", "2", "--seed", "10"]) == cli.EXIT_OK
    assert re.search(r"seeds 10 to (\d+): \d+ of \d+ agree", capsys.readouterr().out)


def test_the_command_prints_what_it_found_as_a_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Definition("a", ("M",), "i32", (), whole=Node("1 // 0", dtype="i32"))
    monkeypatch.setattr(campaign, "campaign_case", lambda seed: replace(SMALL, definitions=(broken,), results=("a",)))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fuzz", "--seconds", "0.1", "--seed", "10"])
    assert stopped.value.code == cli.EXIT_FAILED
    out = capsys.readouterr().out
    assert "ZeroDivisionError" in out
    assert "a = 1 // 0" in out and "compare(fuzzed, (" in out
