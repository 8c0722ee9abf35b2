"""The command line: every stage in every format, loading of operators, and what it says when asked for nonsense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyopt import cli, compilation
from polyopt.target import Rates
from polyopt.text import FORMATS

ROOT = Path(__file__).resolve().parent.parent
LINEAR = f"{ROOT / 'examples' / 'linear.py'}:linear_relu"
SIZES = ("M=16", "N=24", "K=8")

OPERATOR = """
import polyopt as po
from polyopt import f32

i = po.index("i")
scale = 3

@po.op
def power(x: f32["N"], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = x[i]
    u[t + 1, i] = x[i] * u[t, i]
    return u[steps]
"""


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == cli.EXIT_OK
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == cli.EXIT_FAILED
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


@pytest.mark.parametrize("stage", cli.STAGES)
def test_every_stage_prints_in_every_format(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        form: output(capsys, "show-schedule", LINEAR, *SIZES, "--stage", stage, "--format", form) for form in FORMATS
    }
    assert texts["text"].strip()
    assert "<polyopt" not in texts["text"] and "object at 0x" not in texts["text"]
    assert json.loads(texts["json"])
    assert texts["dot"].startswith("digraph") and texts["dot"].rstrip().endswith("}")
    assert "<html" in texts["html"]


def test_the_default_stage_is_one_nest_with_its_marks(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "show-schedule", LINEAR, "M=512", "N=512", "K=512")
    lines = [line for line in text.splitlines() if line.startswith("    ") and not line.startswith("     ")]
    assert sum("for " in line for line in lines) == 1
    assert "parallel for" in text and "vector for" in text
    assert "# y_update" in text and "# out" in text


def test_printing_twice_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (output(capsys, "show-schedule", LINEAR, *SIZES, "--stage", "report") for _ in range(2))
    assert first == second


def test_without_sizes_the_schedule_is_parametric(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "show-schedule", LINEAR)
    assert "linear_relu[" in text and "range(K)" in text


def test_a_preset_gives_the_code_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "show-schedule", LINEAR, *SIZES, "--target", "avx2", "--stage", "asm")
    assert "zmm" not in text


def test_an_operator_is_found_by_file_and_by_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chosen_model.py").write_text(OPERATOR, "utf-8")
    monkeypatch.chdir(tmp_path)
    by_file = output(capsys, "show-schedule", "chosen_model.py:power", "N=5", "steps=2")
    assert by_file == output(capsys, "show-schedule", "chosen_model:power", "N=5", "steps=2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show-schedule", "chosen_model.py"), "names no operator"),
        (("show-schedule", "nothing.py:op"), "no file 'nothing.py'"),
        (("show-schedule", "nothing_here:op"), "no module 'nothing_here'"),
        (("show-schedule", "chosen_model.py:scale"), "It has power."),
        (("show-schedule", "chosen_model.py:power", "N"), "'N' sets nothing"),
        (("show-schedule", "chosen_model.py:power", "N=many", "steps=1"), "no value for N"),
        (("show-schedule", "chosen_model.py:power", "N=4", "steps=1", "--target", "tpu"), "tpu"),
        (("show-schedule", "chosen_model.py:power", "Q=4", "steps=1"), "'Q'"),
        (("show-schedule", "chosen_model.py:power", "N=4", "steps=1", "N=5"), "N is set twice"),
        (("show-schedule", "chosen_model.py:power", "N=4", "x=2", "steps=1"), "leave out 'x', or 'N'"),
        (("show-schedule", "chosen_model.py:power", "N=4"), "steps"),
        (("demo", "nothing"), "no example 'nothing'"),
        (("show-schedule", ".chosen_model:power"), "'.chosen_model' names no module"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nonsense_earns_a_message_and_a_status(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "chosen_model.py").write_text(OPERATOR, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert says in complaint(capsys, *arguments)


def test_what_is_required_is_named_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["show-schedule"])
    assert "arguments are required: FILE.py:OP\n" in capsys.readouterr().err


NESTED = """
import polyopt as po
N, i = po.size("N"), po.index("i")

class Net:
    @staticmethod
    @po.op
    def scaled(x: po.f64[N], mode: str, up: bool = False):
        y = po.tensor("y")
        y[i] = (2 if mode == "b" else 3) * x[i] + (100 if up else 0)
        return y
"""


def test_an_operator_in_a_class_is_found_and_texts_are_taken_for_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nested_model.py").write_text(NESTED, "utf-8")
    monkeypatch.chdir(tmp_path)
    words = ("show-schedule", "nested_model.py:Net.scaled", "N=5", "--stage", "program")
    assert "y[i] = 2 * x[i] + 0" in output(capsys, *words, "mode=b")
    assert "y[i] = 3 * x[i] + 100" in output(capsys, *words, "mode=1", "up=True")
    assert "up=True" in complaint(capsys, *words, "mode=b", "up=yes")
    assert "'Net.other' is no operator" in complaint(capsys, "show-schedule", "nested_model.py:Net.other", "N=5")


@pytest.mark.parametrize("seconds", ["-1", "soon", "inf", "nan"])
def test_a_time_that_is_none_is_told(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fuzz", "--seconds", seconds])
    assert f"'{seconds}' is no number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--export", "--import"])
def test_records_that_cannot_be_written_or_read_are_no_traceback(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "No such file or directory" in complaint(capsys, "tune", option, str(tmp_path / "nowhere" / "records"))


def test_assignments_are_numbers_and_truth_values() -> None:
    assert cli.assignments(["N=3", "alpha=0.5", "flag=True", "eps=1e-3"]) == {
        "N": 3,
        "alpha": 0.5,
        "flag": True,
        "eps": 1e-3,
    }


def test_the_cache_is_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path / "cache"))
    operator = cli.load_operator(LINEAR)
    operator.compile(M=3, N=5, K=2)
    shown = output(capsys, "cache", "info")
    assert str(tmp_path / "cache") in shown and "kernels  1" in shown
    assert output(capsys, "cache", "clear") == "removed 1 kernel\n"
    assert "kernels  0" in output(capsys, "cache", "info")


def test_the_doctor_tells_versions_processor_and_tools(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "doctor")
    for word in ("Python", "islpy", "vectors", "caches", "threads", "C compiler", "CUDA", "cache folder"):
        assert word in text
    for word in ("CUDA compiler", "NVRTC 13.0", "CUDA emulator", "disassembler", "nvdisasm"):
        assert word in text


def test_calibration_is_kept_for_this_machine_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = Rates(100, 50, 101, 160, 200, 110, 40, 20, 18, 28, 27, 5.5, 2)
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("polyopt.runtime.rates.measure", lambda: rates)
    compilation.host.cache_clear()
    try:
        assert "not measured" in output(capsys, "doctor") and compilation.host().rates is None
        assert "100 G a second in f32" in output(capsys, "doctor", "--calibrate")
        compilation.host.cache_clear()
        assert compilation.host().rates == rates
        kept = tmp_path / compilation.CALIBRATION
        for damage in (kept.read_text().replace("100", "-1"), '{"machine": "another"}', "[]", "{"):
            kept.write_text(damage)
            compilation.host.cache_clear()
            assert compilation.host().rates is None
    finally:
        compilation.host.cache_clear()


def test_the_demo_checks_and_says_what_came_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path / "cache"))
    first = output(capsys, "demo", "softmax")
    assert "softmax" in first and "ok" in first and "0 of 1 kernels came from the disk cache" in first
    assert "1 of 1 kernels came from the disk cache" in output(capsys, "demo", "softmax")


def test_bench_measures_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "bench", LINEAR, *SIZES)
    for word in ("linear_relu", "compile", "run", "G a second", "threads"):
        assert word in text


def test_bench_asks_for_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "N=64" in complaint(capsys, "bench", LINEAR, "M=3")


OPEN = """
import polyopt as po
from polyopt import f32

@po.op(dynamic=["N"])
def doubled(x: f32["N", "M"]):
    return x * 2
"""


def test_bench_measures_an_operator_of_open_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "open_sizes.py").write_text(OPEN, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert "not counted: N stay" in output(capsys, "bench", "open_sizes.py:doubled", "N=5", "M=3")
    assert "N=64" in complaint(capsys, "bench", "open_sizes.py:doubled", "M=3")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m polyopt show-schedule {LINEAR} --stage llvm | head -1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert run.stdout.count("\n") == 1
    assert "Traceback" not in run.stderr


def test_a_setting_that_makes_no_sense_is_no_traceback() -> None:
    command = [sys.executable, "-m", "polyopt", "show-schedule", LINEAR]
    environment = {**os.environ, "POLYOPT_NUM_THREADS": "many"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 1
    assert run.stderr.startswith("ArgumentError: the environment variable POLYOPT_NUM_THREADS holds 'many'")


AWKWARD = """
import polyopt as po
from polyopt import f64

@po.op
def shifted(x: f64["N"], /, y: f64["N"], *, target: int = 1):
    return x - y + target
"""


def test_parameters_of_any_kind_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "awkward.py").write_text(AWKWARD, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert "threads" in output(capsys, "bench", "awkward.py:shifted", "N=5")


def test_a_module_that_imports_what_is_not_there_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importer_of_nothing.py").write_text("import nothing_of_that_name", "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        cli.main(["show-schedule", "importer_of_nothing:f"])


@pytest.mark.parametrize("command", ["fuzz", "tune"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
def test_seconds_are_a_time_that_ends(command: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--seconds", seconds])
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no/such/folder/log.json", "notes.txt", "list.json"])
def test_a_log_that_cannot_take_the_totals_is_refused_before_they_are_found(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("not JSON", "utf-8")
    (tmp_path / "list.json").write_text("[1, 2]", "utf-8")
    assert cli.main(["fuzz", "--seconds", "60", "--log", str(tmp_path / name)]) == 1
    shown = capsys.readouterr()
    assert name in shown.err and "Try: " in shown.err and "from seed" not in shown.out


def test_an_empty_log_takes_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.json"
    log.touch()
    assert cli.main(["fuzz", "--seconds", "0.1", "--seed", "3", "--log", str(log)]) == 0
    assert '"figure": "programs"' in log.read_text("utf-8")


def test_sizes_may_stand_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    linear = "examples/linear.py:linear_relu"
    assert cli.main(["show-schedule", linear, "--target", "avx2", "M=8", "N=8", "K=8"]) == 0
    assert "in x: f32[8, 8]" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["show-schedule", linear, "--target", "avx2", "M=8", "nonsense"])
    assert "unrecognized arguments: M=8 nonsense" in capsys.readouterr().err
