"""Tuning: only plans change, what is worse or wrong is refused, records are text that later compiles use and prove."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import cli, compilation, picks, records, tuning
from polyopt.errors import ArgumentError, CompileError
from polyopt.picks import Pick, Question
from polyopt.records import Record
from polyopt.tuning import Outcome, Trial, TrialFailed

ROOT = Path(__file__).resolve().parent.parent
LINEAR = f"{ROOT / 'examples' / 'linear.py'}:linear_relu"
M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"


def product() -> po.Op:
    @po.op
    def multiply(x: po.f32[M, K], w: po.f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    return multiply


SIZES: dict[str, Any] = {"M": 24, "N": 32, "K": 8}
X, W = np.ones((24, 8), np.float32), np.ones((8, 32), np.float32)


def tile_question(op: po.Op) -> Question:
    lowering = compilation.lower_with(op.problem(**SIZES), ())
    return next(question for question in lowering.questions if question.text.startswith("register tile"))


def record_for(op: po.Op, *chosen: Pick, machine: str | None = None) -> Record:
    key = op.problem(**SIZES).tuning_key
    return Record(key, "multiply", machine or compilation.machine(), chosen, 1.0, 2.0)


# --- picks ------------------------------------------------------------------------------------------------------


def test_without_a_tuner_a_decider_takes_what_it_prefers_and_lists_nothing() -> None:
    assert picks.choose("how", 3, lambda: pytest.fail("nobody listens")) == 3


def test_a_pick_decides_and_the_question_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    with picks.steered((Pick("how", "5"), Pick("gone", "1"), Pick("other", "9"))) as steering:
        assert picks.choose("how", 3, lambda: (3, 5)) == 5
        assert picks.choose("free", True, lambda: (True, False)) is True
        assert picks.choose("other", 1, lambda: (1, 2)) == 1
    assert steering is not None and "no option any more" in caplog.text
    assert [str(question) for question in steering.questions.values()] == [
        "how: 3 of 3, 5",
        "free: True of True, False",
        "other: 1 of 1, 2",
    ]


def test_a_function_decides_where_no_picks_are_given() -> None:
    def last(question: picks.Question) -> str:
        return question.options[-1]

    with picks.decided(last):
        with picks.steered(None):
            assert picks.choose("how", 1, lambda: (2, 1, 3)) == 3
        assert not picks.agreed("whether", True)
        assert picks.choose("how", 1, lambda: (2, 1)) == 1, "its answer is no option any more"
        with picks.steered(()):
            assert picks.choose("how", 1, lambda: (2, 1, 3)) == 1
    assert picks.agreed("whether", True)


def test_deciders_ask_and_a_pick_changes_the_plan_and_nothing_else() -> None:
    op = product()
    question = tile_question(op)
    other = next(option for option in question.options if option != question.preferred)
    plain = compilation.lower_with(op.problem(**SIZES), ())
    changed = compilation.lower_with(op.problem(**SIZES), (Pick(question.text, other),))
    assert str(plain.program) == str(changed.program)
    assert str(plain.tiling) != str(changed.tiling)
    changed.verify()
    assert not changed.settled.fallback


# --- records ----------------------------------------------------------------------------------------------------


def test_later_compiles_use_what_was_recorded() -> None:
    op = product()
    question = tile_question(op)
    other = next(option for option in question.options if option != question.preferred)
    before = str(op.lower(**SIZES).tiling)
    records.add([record_for(op, Pick(question.text, other))])
    tuned = op.lower(**SIZES)
    assert str(tuned.tiling) != before
    assert np.array_equal(op(X, W), X @ W)
    assert str(product().lower(**{**SIZES, "K": 9}).tiling) == str(compilation.lower_with(
        product().problem(**{**SIZES, "K": 9}), ()).tiling)  # fmt: skip


def test_a_record_that_makes_no_sense_any_more_is_not_used() -> None:
    op = product()
    plain = str(op.lower(**SIZES).tiling)
    records.add([record_for(op, Pick("register tile of nothing", "8 x 8"), Pick(tile_question(op).text, "99 i x 1"))])
    assert str(op.lower(**SIZES).tiling) == plain
    assert np.array_equal(op(X, W), X @ W)


def test_picks_that_give_no_legal_plan_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    op = product()
    question = tile_question(op)
    records.add([record_for(op, Pick(question.text, question.options[1]))])
    monkeypatch.setattr(compilation._Compiler, "_refused", lambda *_: "planted")
    assert np.array_equal(op(X, W), X @ W)
    assert "recorded picks give no legal plan (planted)" in caplog.text


def test_what_was_measured_here_counts_more_than_what_others_measured() -> None:
    op = product()
    mine, theirs = Pick("a", "1"), Pick("a", "2")
    records.add([record_for(op, theirs, machine="another")])
    assert compilation.recorded_picks(op.problem(**SIZES)) == (theirs,)
    records.add([record_for(op, mine)])
    assert compilation.recorded_picks(op.problem(**SIZES)) == (mine,)
    records.add([record_for(op)])
    assert compilation.recorded_picks(op.problem(**SIZES)) is None


def test_damaged_records_are_left_out_and_refused_when_given(folder: Path, tmp_path: Path) -> None:
    op = product()
    good = record_for(op, Pick("a", "1"))
    records.add([good])
    text = (folder / records.FILE).read_text()
    line = json.loads(text)
    damages: list[Any] = [
        {**line, "ms": 0}, {**line, "ms": "x"}, {**line, "format": 2}, {**line, "key": 3}, {**line, "picks": [["a"]]},
        {**line, "op": "x" * 1000}, [], 3,
    ]  # fmt: skip
    for damage in [*map(json.dumps, damages), "{", ""]:
        (folder / records.FILE).write_text(damage + "\n" + text)
        assert records.all_records() == (good,)
        given = tmp_path / "given.jsonl"
        given.write_text(text + damage + "\n")
        with pytest.raises(ArgumentError) as caught:
            records.read_file(given)
        assert caught.value.facts["line"] == 2
    with pytest.raises(ArgumentError):
        records.read_file(tmp_path / "nowhere")


def test_records_travel_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    op = product()
    records.add([record_for(op, Pick("a", "1")), record_for(op, Pick("a", "2"), machine="another")])
    kept = records.all_records()
    assert cli.main(["tune", "--export", str(tmp_path / "f")]) == 0 and "wrote 2 records" in capsys.readouterr().out
    (folder / records.FILE).unlink()
    assert cli.main(["tune", "--import", str(tmp_path / "f")]) == 0 and "took 2 records" in capsys.readouterr().out
    assert records.all_records() == kept
    assert cli.main(["tune"]) != 0 and "nothing to tune" in capsys.readouterr().err


# --- the search -------------------------------------------------------------------------------------------------


class Scripted:
    """Children that answer from a table: share of the base's time by option, or a failure."""

    def __init__(self, shares: dict[str, float | str]) -> None:
        self.shares = shares

    def trial(self, chosen: Picks) -> tuple[Trial, tuple[Question, ...]]:
        share = 1.0
        for pick in chosen:
            value = self.shares[pick.answer]
            if isinstance(value, str):
                return Trial(chosen, failure=value), ()
            share *= value
        follow = [Question("tile", ("a", "b", "c"), "a"), Question("threads", ("yes", "no"), "yes")]
        if any(pick.answer == "b" for pick in chosen):
            follow.append(Question("only with b", ("x", "y"), "x"))
        return Trial(chosen, 10 * share, 10.0), tuple(follow)


def searched(shares: dict[str, float | str], seconds: float = 60) -> Outcome:
    import time

    outcome = Outcome(
        "op", 10.0, questions=(Question("tile", ("a", "b", "c"), "a"), Question("threads", ("yes", "no"), "yes"))
    )
    tuning._search(outcome, Scripted(shares), time.monotonic() + seconds, lambda line: None)  # type: ignore[arg-type]
    return outcome


def test_the_search_keeps_what_is_better_and_asks_what_follows() -> None:
    outcome = searched({"b": 0.5, "c": 0.8, "no": 0.99, "y": 0.9})
    assert outcome.best is not None
    assert outcome.best.picks == (Pick("tile", "b"), Pick("only with b", "y"))
    assert [trial.picks[-1].answer for trial in outcome.trials] == ["b", "c", "no", "y"]


def test_failures_and_small_gains_change_nothing() -> None:
    outcome = searched({"b": "crashed", "c": 0.98, "no": 1.4})
    assert outcome.best is None and outcome.trials[0].failure == "crashed" and len(outcome.trials) == 3
    assert searched({"b": 0.5}, seconds=-1).trials == []


def test_an_operator_is_tuned_in_child_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", LINEAR, "M=16", "N=24", "K=8", "--seconds", "2"]) == 0
    text = capsys.readouterr().out
    assert "the cost model's plan" in text and "plans measured" in text
    (record,) = records.all_records()
    assert record.op == "linear_relu" and record.machine == compilation.machine()


def test_a_file_called_as_a_module_of_python_does_not_reach_the_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operator.py").write_text("raise SystemExit('not the operator that is meant')", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with tuning._Children(product().problem(**SIZES), {}) as children:
        assert children.base()[0] > 0


def test_a_child_that_crashes_or_hangs_is_a_recorded_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with tuning._Children(product().problem(**SIZES), {}) as children:
        base_ms, questions = children.base()
        assert base_ms > 0 and questions
        question = next(q for q in questions if q.text.startswith("register tile"))
        chosen = (Pick(question.text, question.options[1]),)
        real = children._compiled
        monkeypatch.setattr(children, "_compiled", lambda p: ({**real(p)[0], "parameters": [1, 2]}, "x", ()))
        assert "error" in children.trial(chosen)[0].failure.lower() or children.trial(chosen)[0].failure
        assert children._process is not None
        children._process.kill()
        assert children.trial(chosen)[0].failure == "crashed"
        monkeypatch.setattr(children, "_compiled", real)
        trial, _ = children.trial(chosen)  # in a new child, the base first
        assert not trial.failure and trial.ms > 0 and trial.base_ms > 0
        monkeypatch.setattr(tuning, "LIMIT_S", 0.0)
        monkeypatch.setattr(tuning, "MEASURE_S", 1.0)
        other = (Pick(question.text, question.options[2]),)
        assert "took more than" in children.trial(other)[0].failure


def test_a_kernel_that_gives_another_result_is_refused() -> None:
    op = product()

    @po.op
    def multiply(x: po.f32[M, K], w: po.f32[K, N]):
        y = po.tensor("y")
        y[i, j] += 2 * x[i, k] * w[k, j]
        return y

    with tuning._Children(op.problem(**SIZES), {}) as children:
        children.base()
        with tuning._Children(multiply.problem(**SIZES), {}) as others:
            request, _, _ = others._compiled(())
            with pytest.raises(TrialFailed, match="differs"):
                children._ask(request, 30)


def test_an_op_tunes_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def tune(problem: Problem, sizes: Any, **_: Any) -> None:
        calls.append(problem.program.name)
        records.add([Record(problem.tuning_key, "twice", compilation.machine(), (), 1.0, 1.0)])

    monkeypatch.setattr(tuning, "tune", tune)

    @po.op(tune=True)
    def twice(x: po.f32[N]):
        y = po.tensor("y")
        y[i] = 2 * x[i]
        return y

    for size in (4, 4, 5):
        assert np.array_equal(twice(np.ones(size, np.float32)), np.full(size, 2))
    assert calls == ["twice", "twice"]

    def refuse(*_: Any, **__: Any) -> None:
        raise CompileError("it cannot be measured")

    monkeypatch.setattr(tuning, "tune", refuse)
    assert twice(np.ones(6, np.float32))[5] == 2
