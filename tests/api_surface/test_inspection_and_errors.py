"""Sections 3 to 5: looking inside, checking numbers, and errors."""

from __future__ import annotations

import json
import logging
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import islpy as isl
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import BoundsError, DefinitionError, cli, f32, f64, i32, i64, u64

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
RNG = np.random.default_rng(14)
X, W, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((9, 8), (8, 11), (11,)))


@po.op
def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


def by_sizes() -> Any:
    return linear_relu.lower(M=512, N=512, K=512)


# --- stages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lower",
    [
        by_sizes,
        lambda: linear_relu.lower(X, W, B),
        lambda: linear_relu.lower(M=64, N=64, K=64, target="cpu"),
        lambda: linear_relu.lower(M=64),
        lambda: linear_relu.lower(),
    ],
)
def test_a_lowered_operator_has_every_stage(lower: Any) -> None:
    lowered = lower()
    for stage in ("program", "rewritten", "scop", "fusion", "tiling", "mapping"):
        assert str(getattr(lowered, stage)).strip(), stage
    assert isinstance(lowered.domains, isl.UnionSet)
    assert lowered.accesses and lowered.dependences
    assert isinstance(lowered.schedule, isl.Schedule)
    assert "for " in str(lowered.loops)
    assert str(lowered) == str(lowered.loops)
    lowered.verify()


def test_values_of_the_chain_print_readably() -> None:
    lowered = by_sizes()
    assert "y[i, j] += x[i, k] * w[k, j]" in str(lowered.program)
    for stage in ("program", "rewritten", "scop", "fusion", "tiling", "mapping"):
        text = str(getattr(lowered, stage))
        assert " at 0x" not in text and "dataclass" not in text
        assert not text.startswith(("Program(", "Scop(", "FusionPlan(", "TilingPlan(", "CpuMapping(")), stage


def test_sources() -> None:
    lowered = by_sizes()
    assert "int64_t linear_relu(" in lowered.source("c")
    assert "define void" in lowered.source("llvm")
    assert "\n" in lowered.source("asm")
    with pytest.raises(po.ArgumentError):
        lowered.source("fortran")
    for kind in ("cuda", "ptx"):
        with pytest.raises(po.PolyoptError):
            lowered.source(kind)


def test_the_report_tells_work_traffic_and_decisions() -> None:
    report = by_sizes().report()
    assert report.flops >= 2 * 512**3
    assert report.bytes == 4 * (3 * 512 * 512 + 512)
    text = str(report)
    for word in ("operations", "bytes", "operations per byte", "fused", "tiles", "bound by", "proved"):
        assert word in text, text


def test_an_unknown_size_and_a_wrong_size_are_argument_errors() -> None:
    for sizes in ({"Q": 3}, {"M": -1}, {"M": 2.5}, {"M": "many"}):
        with pytest.raises(po.ArgumentError):
            linear_relu.lower(**sizes)


def test_printing_an_op_shows_signature_and_equations() -> None:
    text = str(linear_relu)
    assert "linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N])" in text
    assert "y[i, j] += x[i, k] * w[k, j]" in text


def test_a_notebook_shows_a_lowered_operator() -> None:
    assert "<details" in by_sizes()._repr_html_()


# --- command line -------------------------------------------------------------------------------------------------

FILE = Path(__file__)
STAGES = [
    *("program", "problem", "rewritten", "scop", "domains", "accesses", "dependences", "fusion", "schedule", "tiling"),
    *("mapping", "loops", "c", "llvm", "asm", "report"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(list(arguments))
    return int(code or 0), capsys.readouterr().out


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("form", ["text", "json", "dot", "html"])
def test_show_schedule_prints_every_stage_in_every_format(
    stage: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(
        capsys, "show-schedule", f"{FILE}:linear_relu", "M=16", "N=16", "K=16", "--stage", stage, "--format", form
    )
    assert code == 0 and out.strip()
    if form == "json":
        json.loads(out)


def test_show_schedule_without_sizes_shows_the_parametric_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "show-schedule", f"{FILE}:linear_relu")
    assert code == 0 and "M" in out and "for " in out


@po.op
def repeated(x: f64[N], steps: int, scale: float = 0.5):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = x[i]
    u[t + 1, i] = scale * u[t, i] + x[i]
    return u[steps]


def test_show_schedule_takes_compile_time_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert "u[t + 1" in run(capsys, "show-schedule", f"{FILE}:repeated", "N=8", "steps=2", "--stage", "program")[1]
    assert "for t in range(4)" in run(capsys, "show-schedule", f"{FILE}:repeated", "N=8", "steps=4")[1]
    assert str(repeated) == "repeated(x: f64[N], steps: int, scale: float = 0.5)"
    assert "0.25 * u[t, i]" in repeated.describe(steps=3, scale=0.25)


@pytest.mark.parametrize(
    ("topic", "word"), [("schedule", "loop t"), ("fusion", "u -> u_1"), ("codegen", "for t"), ("cache", "miss")]
)
def test_topics_of_the_log_show_decisions_on_the_terminal(topic: str, word: str, tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(FILE)!r})['repeated'].compile(N=8, steps=4)"
    environment = {**os.environ, "POLYOPT_LOG": topic, "POLYOPT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert word in done.stderr


def test_commands_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cache", "info")[0] == 0
    assert run(capsys, "doctor")[0] == 0


@pytest.mark.parametrize("command", ["demo", "bench", "cache", "doctor", "show-schedule"])
def test_every_command_has_help(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "polyopt", command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_logs_tell_decisions(caplog: pytest.LogCaptureFixture) -> None:
    @po.op
    def f(x: f32[M, N]):
        return po.softmax(x, axis=-1)

    with caplog.at_level(logging.INFO, "polyopt"):
        f(RNG.standard_normal((7, 19)).astype(np.float32))
    assert any(record.name.startswith("polyopt.fusion") for record in caplog.records)
    assert any(record.name.startswith("polyopt.schedule") for record in caplog.records)


# --- numbers ------------------------------------------------------------------------------------------------------


def test_polyopt_check_draws_inputs_by_sizes(polyopt_check: Any) -> None:
    polyopt_check(linear_relu, M=33, N=17, K=65)


def test_polyopt_check_takes_arrays_and_an_expectation(polyopt_check: Any) -> None:
    polyopt_check(linear_relu, X, W, B, expected=np.maximum(X @ W + B, 0))
    with pytest.raises(pytest.fail.Exception, match="for "):
        polyopt_check(linear_relu, X, W, B, expected=np.maximum(X @ W + B, 0) + 1)


def test_polyopt_check_draws_subscripts_in_range(polyopt_check: Any) -> None:
    @po.op
    def gather(table: f64[N], ids: i32[M]):
        y = po.tensor("y")
        y[i] = table[ids[i]]
        return y

    polyopt_check(gather, N=5, M=40)
    polyopt_check(gather, N=5, M=3, inputs={"ids": np.array([4, 4, 0], np.int32)})
    polyopt_check(gather, N=5, M=4, target="cpu", rtol=1e-12, atol=0.0)


def test_what_is_public_is_offered_for_completion() -> None:
    assert set(po.__all__) <= set(dir(po))


def test_the_reference_knows_its_numerics() -> None:
    with pytest.raises(po.ArgumentError, match="numerics cannot be 'exact'"):
        po.op(lambda x: x + 1).reference(np.ones(3), numerics="exact")


def test_the_reference_is_in_float64() -> None:
    result = linear_relu.reference(X, W, B)
    assert_allclose(result, np.maximum(X.astype(float) @ W.astype(float) + B, 0), rtol=1e-12)


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("DefinitionError", Exception),
        ("ShapeError", ValueError),
        ("ArgumentError", ValueError),
        ("DTypeError", TypeError),
        ("BoundsError", IndexError),
        ("ScheduleError", Exception),
        ("LegalityError", Exception),
        ("CompileError", Exception),
        ("BackendUnavailable", Exception),
        ("CacheError", Exception),
    ],
)
def test_every_error_derives_from_polyopt_error(name: str, also: type[Exception]) -> None:
    assert issubclass(getattr(po, name), po.PolyoptError) and issubclass(getattr(po, name), also)


def test_a_message_has_the_line_and_what_to_do() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i, j] = x[i]
        return y

    with pytest.raises(po.DefinitionError) as failure:
        f(np.ones(3))
    message = str(failure.value)
    assert FILE.name in message and "y[i, j] = x[i]" in message and "Try:" in message


@pytest.mark.parametrize(
    ("shape", "read", "shown", "back"),
    [((7,), lambda x: x[-9], "x[-9] reads x[-2]", 9), ((4, 6), lambda x: x[-5], "x[-5] reads x[-1, 0]", 5)],
)
def test_a_position_too_far_back_is_named_as_it_is_written(
    shape: tuple[int, ...], read: Callable[[Any], Any], shown: str, back: int
) -> None:
    @po.op
    def take(x):
        y = po.tensor("y")
        y[()] = po.sum(read(x)) if len(shape) > 1 else read(x)
        return y

    with pytest.raises(BoundsError) as caught:
        take(np.ones(shape))
    assert caught.value.what.startswith(shown)
    assert f"has extent {shape[0]}; {back} from its end is before its first element" in caught.value.why


@pytest.mark.parametrize("given", [np.int32(3), 3])
def test_a_range_that_comes_with_the_call_is_shown_where_it_is_used(given: Any) -> None:
    """It pointed at the call, and asked for integers and sizes."""

    @po.op
    def first(x: f64[N], n: i32):
        y, h = po.tensor("y"), po.index("h", extent=n)
        y[h] = x[h]
        return y

    with pytest.raises(DefinitionError) as caught:
        first(np.ones(5), given)
    assert caught.value.where is not None and 'po.index("h", extent=n)' in caught.value.where.text
    assert "'n' is data: it comes with each call" in caught.value.why
    assert "'n: int'" in caught.value.fix


def _last_of_rows(x: Any) -> Any:
    y, own = po.tensor("y"), po.index("own")
    y[own] = x[own, -1]
    return y


def _added_to_the_last(x: Any) -> Any:
    y, own = po.tensor("y"), po.index("own")
    y[own] = x[own, 0]
    y[-1] += 1
    return y


@pytest.mark.parametrize("body", [_last_of_rows, _added_to_the_last])
def test_a_negative_position_beside_an_index_is_not_called_one_from_the_end(body: Callable[[Any], Any]) -> None:
    """It said `4 from its end is before its first element` of `x[i, -1]` where x has 3 columns."""
    with pytest.raises(BoundsError) as caught:
        po.op(body)(np.ones((2, 3)))
    extent = 3 if body is _last_of_rows else 2
    where = "beside an index" if body is _last_of_rows else "on the left side"
    why = f"has extent {extent}; {where}, -1 is a position and does not count from the end"
    assert why in caught.value.why
    assert f"the last position is {extent - 1}" in caught.value.why


@pytest.mark.parametrize("others", [(None,), ({"b": None},)])
def test_none_among_results_is_named(others: tuple[object, ...]) -> None:
    @po.op
    def pair(x: f64[N]):
        return x + 1, *others

    with pytest.raises(DefinitionError, match="returns None among its results"):
        pair(np.ones(3))


@pytest.mark.parametrize("wrong", [None, "a", np.float64(0), 3, object()])
def test_what_is_no_array_in_out_is_told_of_as_an_array_to_write_to(wrong: object) -> None:
    @po.op
    def pair(x: f64[N]):
        return x + 1, x + 2

    with pytest.raises(po.ArgumentError, match=r"out for 'add(_\d)?' is a") as caught:
        pair(np.ones(3), out=(np.ones(3), wrong))
    assert "np.empty" in caught.value.fix and "parameter" not in caught.value.fix


UPDATES = (
    *(operator.ifloordiv, operator.itruediv, operator.imod, operator.ipow, operator.iand, operator.ior),
    *(operator.ixor, operator.ilshift, operator.irshift),
)


@pytest.mark.parametrize("operate", UPDATES)
def test_an_update_that_does_not_accumulate_is_refused_as_such(operate: Callable[[Any, Any], Any]) -> None:
    @po.op
    def updated(x: i64[N]):
        y = po.tensor("y")
        y[i] = x[i]
        y[i] = operate(y[i], x[j])
        return y

    with pytest.raises(DefinitionError, match="'y\\[i\\]' is updated by an operation that does not accumulate"):
        updated(np.arange(1, 4))


@pytest.mark.parametrize("operate", UPDATES)
def test_a_value_of_python_may_be_updated(operate: Callable[[Any, Any], Any]) -> None:
    @po.op
    def updated(x: i64[N]):
        y = po.tensor("y")
        value = x[i]
        value = operate(value, 2)
        y[i] = value
        return y

    x = np.arange(1, 4)
    assert_array_equal(updated(x), x / 2 if operate is operator.itruediv else operate(x.copy(), 2))


def test_a_lowering_shows_itself_in_a_line() -> None:
    assert repr(linear_relu.lower(M=5, N=6, K=7)).startswith(
        "<lowering of linear_relu(x: f32[5, 7], w: f32[7, 6], b: f32[6]) -> out: f32[5, 6] for "
    )


@pytest.mark.parametrize("dynamic", [N, [N], (N, "M"), "N"])
def test_sizes_themselves_may_be_dynamic(dynamic: Any) -> None:
    @po.op(dynamic=dynamic)
    def double(x: f64[M, N]):
        return 2 * x

    assert "N" in double.lower(M=3, N=4).program.sizes
    assert_array_equal(double(np.ones((2, 3))), np.full((2, 3), 2.0))


def test_a_tuple_of_one_tensor_or_size_is_explained() -> None:
    @po.op
    def double(x: f64[N]):
        y = po.tensors("y")
        y[i] = 2 * x[i]
        return y

    with pytest.raises(DefinitionError) as caught:
        double(np.ones(3))
    assert "tuples, even of one" in caught.value.fix and "po.tensor('y')" in caught.value.fix
    with pytest.raises(DefinitionError) as caught:
        po.index("t", extent=po.sizes("N"))
    assert "a tuple, even of one name" in caught.value.why and "po.size('N')" in caught.value.fix


def test_nouns_have_their_articles() -> None:
    with pytest.raises(DefinitionError, match="the name of an index"):
        po.index("9")
    with pytest.raises(po.ArgumentError, match="is an object, which"):
        linear_relu(X, W, object())


@pytest.mark.parametrize("operate", [operator.and_, operator.or_, operator.xor, lambda a, b: operator.and_(b, a)])
def test_logic_of_u64_and_an_index_says_what_to_convert(operate: Callable[[Any, Any], Any]) -> None:
    @po.op
    def masked(x: u64[N]):
        y = po.tensor("y")
        y[i] = operate(x[i], i)
        return y

    with pytest.raises(po.DTypeError, match="no integer dtype holds both") as caught:
        masked(np.arange(3, dtype=np.uint64))
    assert caught.value.fix == "convert one: po.cast(i, u64)."


@pytest.mark.parametrize("value", [np.complex64(1), np.datetime64("2020-01-01")])
@pytest.mark.parametrize("turned", [False, True])
def test_a_scalar_of_numpy_without_a_dtype_here_is_named_by_its_dtype(value: Any, turned: bool) -> None:
    @po.op
    def added(x: f64[N]):
        y = po.tensor("y")
        y[i] = value + x[i] if turned else x[i] + value
        return y

    with pytest.raises(po.DTypeError) as caught:
        added(np.ones(3))
    assert str(value.dtype) in caught.value.what
