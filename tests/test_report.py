"""The report: its figures against counts by hand, and its text."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polyopt as po
from polyopt import f32
from polyopt.pipeline import Lowering
from tests.golden.test_golden import MACHINE
from tests.poly.operators import M, blurred, i, jacobi_2d, linear_relu, softmax, ten_steps


def test_operations_and_bytes_of_a_linear_layer_are_those_by_hand() -> None:
    lowering: Lowering = linear_relu.lower(M=32, N=48, K=16, target=MACHINE)
    report = lowering.report()
    product = 32 * 48 * 16
    assert report.flops == 2 * product + 2 * 32 * 48  # multiply and add; bias and maximum
    assert report.bytes == 4 * (32 * 16 + 16 * 48 + 48 + 32 * 48)
    assert report.intensity == report.flops / report.bytes
    assert report.temporary_bytes == 0 and report.name == "linear_relu"


def test_symbolic_sizes_are_assumed_alike_in_operations_and_bytes() -> None:
    whole, open_ = linear_relu.lower(M=512, N=512, K=512, target=MACHINE).report(), linear_relu.lower(K=512).report()
    assert (open_.flops, open_.bytes) == (whole.flops, whole.bytes)
    assert str(open_).splitlines()[0] == "linear_relu, with M = N = 512"
    assert str(whole).splitlines()[0] == "linear_relu"


def test_bytes_of_symbolic_sizes_are_written_as_a_person_writes_them() -> None:
    sheet = str(jacobi_2d.lower(steps=10, target=MACHINE).report())
    assert "  temporary bytes       64*(" in sheet and "'mul'" not in sheet


def test_what_limits_a_kernel_follows_from_its_intensity() -> None:
    assert linear_relu.lower(M=512, N=512, K=512).report().bound == "compute"
    assert softmax.lower(M=10, N=10).report().intensity > 0
    one = ten_steps.lower(N=100).report()
    assert one.flops == 100 * 30 and one.bound == "memory"


def test_two_planes_are_what_a_stencil_allocates() -> None:
    report = jacobi_2d.lower(M=40, N=50, steps=10, target=MACHINE).report()
    assert 2 * 40 * 50 * 8 <= report.temporary_bytes <= 2 * 40 * 50 * 8 + 4096
    assert "u[2 planes, 40, 50]" in report.storage


def test_work_that_tiles_repeat_is_counted_and_not_the_box_around_it() -> None:
    report = blurred.lower(M=2002, N=2002, target=MACHINE).report()
    least = 2000 * 2002 * 14 + 2000 * 2000 * 2
    assert least <= report.flops <= 1.2 * least
    assert report.bound == "memory"


def test_a_report_prints_figures_then_every_decision() -> None:
    text = str(linear_relu.lower(M=32, N=48, K=16, target=MACHINE).report())
    lines = text.splitlines()
    assert lines[0] == "linear_relu"
    sections = [line for line in lines if not line.startswith(" ")]
    assert sections == ["linear_relu", "fusion:", "tiling:", "threads:", "storage:", "claims:"]
    assert "operations per byte" in text and "FALLBACK" not in text


def test_a_kernel_on_the_plain_order_says_so() -> None:
    report = softmax.lower(M=3, N=4).report()
    assert "  FALLBACK to the plain order: a reason" in str(replace(report, fallback="a reason")).splitlines()


def test_an_operator_without_fusion_says_so() -> None:
    @po.op
    def copy(x: f32[M]):
        y = po.tensor("y")
        y[i] = x[i]
        return y

    report = copy.lower(M=5).report()
    assert report.fusion == "nothing to fuse" and report.flops == 0 and report.intensity == 0.0


@pytest.mark.parametrize("size", [0, 1])
def test_an_operator_on_nothing_has_a_report(size: int) -> None:
    report = ten_steps.lower(N=size).report()
    assert report.bytes == 8 * size and report.intensity >= 0.0
