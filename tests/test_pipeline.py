"""The chain from equations to a kernel: each stage when asked for, proved, and a plain order where a plan is wrong."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i32
from polyopt.errors import ArgumentError, DefinitionError, LegalityError, ScheduleError
from polyopt.forks import COMPILING
from polyopt.fusion.decide import decide
from polyopt.options import Options
from polyopt.pipeline import Lowering, build, lower, resolve
from polyopt.poly.dependence import Dependences
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Loop, Sequence, Tree, as_schedule, loops
from tests.golden.test_golden import MACHINE
from tests.poly import running
from tests.poly.operators import (
    M,
    N,
    gauss_seidel,
    histogram,
    i,
    j,
    jacobi_1d,
    k,
    layernorm,
    linear_relu,
    prefix,
    product,
    smith_waterman,
    softmax,
)

OPERATORS: dict[str, Any] = {
    "gauss_seidel": (gauss_seidel, {"M": 6, "N": 7}),
    "histogram": (histogram, {"N": 9, "count": 4}),
    "jacobi_1d": (jacobi_1d, {"N": 9, "steps": 4}),
    "layernorm": (layernorm, {"M": 4, "N": 9}),
    "linear_relu": (linear_relu, {"M": 9, "N": 20, "K": 5}),
    "prefix": (prefix, {"N": 9}),
    "smith_waterman": (smith_waterman, {"M": 5, "N": 6}),
    "softmax": (softmax, {"M": 4, "N": 9}),
}
every_operator = pytest.mark.parametrize("name", OPERATORS)


def lowered(name: str) -> Lowering:
    op, sizes = OPERATORS[name]
    found: Lowering = op.lower(target=MACHINE, **sizes)
    return lower(found.program, found.options)  # anew: one that somebody holds is given again


@every_operator
def test_the_plans_are_proved_without_falling_back(name: str) -> None:
    lowering = lowered(name)
    assert lowering.fallback == ""
    assert all(str(claim).startswith("proved: ") for claim in lowering.proof.claims)


@every_operator
def test_every_stage_is_made_once_and_the_same_each_time(name: str) -> None:
    first, second = lowered(name), lowered(name)
    assert first.rewritten is first.rewritten and first.tree is first.tree and first.loops is first.loops
    assert str(first.loops) == str(second.loops) == str(first)
    assert first.module.text == second.module.text


@every_operator
def test_domains_and_accesses_are_those_of_the_statements(name: str) -> None:
    lowering = lowered(name)
    instances = lowering.domains
    for statement in lowering.scop.statements:
        assert statement.domain.is_equal(instances.extract_set(statement.domain.get_space()))
        writes = lowering.accesses["writes"].extract_map(statement.write.get_space())
        assert writes.is_equal(statement.write)
        for access in statement.reads:
            reads = lowering.accesses["reads"].extract_map(access.relation.get_space())
            assert access.relation.is_subset(reads)


def test_building_gives_object_code_that_says_how_to_call_it() -> None:
    program = resolve(product.lower(M=3, N=4, K=5).program)
    built = build(lower(program, Options(target=MACHINE)))
    assert built.object_code and built.info.entry
    assert [(a.name, a.role) for a in built.info.arguments] == [("x", "input"), ("w", "input"), ("out", "output")]
    assert built.info.parameters == () and not built.info.is_parallel
    assert "proved" in built.report
    assert str(lower(program, Options(target=MACHINE)).report()) == built.report


def test_sources_are_text_of_the_named_kind() -> None:
    lowering = lowered("softmax")
    assert "softmax" in lowering.source("c") and lowering.source() == lowering.source("c")
    assert "define" in lowering.source("llvm")
    assert lowering.source("asm").count("\n") > 10
    with pytest.raises(ArgumentError, match="no source of kind 'rust'"):
        lowering.source("rust")


def test_a_symbolic_kernel_lists_its_sizes_and_conditions() -> None:
    @po.op(dynamic=True)
    def tail(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] + x[4]
        return y

    info = tail.lower().info
    assert info.parameters == ("N",) and [condition.text for condition in info.conditions] == ["(N >= 5) | (N == 0)"]


def test_a_gather_lists_where_it_checks() -> None:
    @po.op
    def gather(x: f32[N], ids: i32[M]):
        y = po.tensor("y")
        y[i] = x[ids[i]]
        return y

    (site,) = gather.lower(M=4, N=5).info.sites
    assert (site.array, site.dimension) == ("x", 0) and site.span is not None


def test_decisions_are_logged_with_their_reasons(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="polyopt"):
        lowering = lowered("linear_relu")
        assert lowering.module.entry == "polyopt_linear_relu"
    by_stage = {record.name: record.getMessage() for record in caplog.records}
    assert "linear_relu" in by_stage["polyopt.fusion"] and "fused" in by_stage["polyopt.fusion"]
    assert "vector" in by_stage["polyopt.schedule"]
    assert "polyopt.codegen" in by_stage


# --- the plain order --------------------------------------------------------------------------------------------


def test_a_plan_that_is_not_proved_is_given_up_for_the_plain_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tiling that reverses a time loop: noticed, reported, and the numbers are right all the same."""

    def reversing(tree: Tree, plan: Any) -> Tree:
        return backwards(tree) if plan.nests else tree

    monkeypatch.setattr("polyopt.pipeline.tiling_apply.apply", reversing)
    lowering = lowered("jacobi_1d")
    with caplog.at_level(logging.WARNING):
        assert "breaks a flow dependence" in lowering.fallback
    assert "falling back" in caplog.text
    assert "FALLBACK to the plain order" in str(lowering.report())
    assert not any(loop.kind == "vector" for loop in loops(lowering.tree))
    x = np.random.default_rng(0).random(9)
    (result,) = running.run(lowering.loops, {"start": x}).values()
    np.testing.assert_allclose(result, jacobi_1d.reference(x, 4))


def backwards(tree: Tree) -> Tree:
    match tree:
        case Sequence(children):
            return Sequence(tuple(backwards(child) for child in children))
        case Loop(rows=rows, coincident=False):
            return replace(tree, rows=tuple((name, -row) for name, row in rows))
        case _:
            return tree


@every_operator
def test_the_plain_order_is_right_too(name: str) -> None:
    op, sizes = OPERATORS[name]
    lowering = lowered(name)
    vars(lowering)["_decided"] = lowering._decide(lowering.fusion.tree, simple=True)
    assert lowering.tiling.nests == () and lowering.mapping.parallel == ()
    assert {loop.kind for loop in loops(lowering.tree)} <= {"serial"}
    inputs = random_inputs(lowering)
    constants = [value for key, value in sizes.items() if key.islower()]
    (result,) = running.run(lowering.loops, inputs).values()
    np.testing.assert_allclose(result, op.reference(*inputs.values(), *constants), rtol=1e-5)


@every_operator
def test_where_fusion_finds_nothing_each_component_gets_a_nest_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure of the fusion is no failure of the compile: the plainer order is proved and right."""

    def refuses(*given: Any, merge: bool, **others: Any) -> Any:
        if merge:
            raise ScheduleError("no order was found")
        return decide(*given, merge=merge, **others)

    monkeypatch.setattr("polyopt.pipeline.fusion_decide.decide", refuses)
    op, sizes = OPERATORS[name]
    lowering = lowered(name)
    with caplog.at_level(logging.WARNING):
        assert lowering.fallback == "no order was found"
    assert "falling back to one nest a statement" in caplog.text and "no order was found" in str(lowering.report())
    assert lowering.verify().claims
    inputs = random_inputs(lowering)
    constants = [value for key, value in sizes.items() if key.islower()]
    (result,) = running.run(lowering.loops, inputs).values()
    np.testing.assert_allclose(result, op.reference(*inputs.values(), *constants), rtol=1e-5)


def test_what_isl_may_do_is_bounded_and_the_compile_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no operations for plans, the plans fall away one by one, or an error of ours says so."""
    monkeypatch.setattr("polyopt.pipeline.PLAN_OPERATIONS", 40)
    with pytest.raises(ScheduleError, match="failed to"):
        lowered("softmax").tree
    monkeypatch.setattr("polyopt.pipeline.PLAN_OPERATIONS", 20_000)
    lowering = lowered("gauss_seidel")
    assert lowering.verify().claims


def random_inputs(lowering: Lowering) -> dict[str, Any]:
    numbers = np.random.default_rng(0)
    inputs = {}
    for parameter in lowering.program.parameters:
        tensor = lowering.program.tensor(parameter)
        shape = tuple(extent.constant for extent in tensor.shape or ())
        integers = tensor.dtype.is_integer
        inputs[parameter] = (
            numbers.integers(0, 4, shape) if integers else numbers.random(shape).astype(tensor.dtype.numpy)
        )
    return inputs


def test_an_error_in_the_equations_is_not_hidden_by_falling_back() -> None:
    @po.op
    def cyclic(x: f64[N]):
        a, b = po.tensors("a b")
        a[i] = b[i] + x[i]
        b[i] = a[i]
        return b

    with pytest.raises(DefinitionError):
        cyclic.lower(N=4).storage


def test_where_even_the_plain_order_fails_the_error_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise ScheduleError("no schedule")

    monkeypatch.setattr("polyopt.pipeline.trees.as_schedule", never)
    with pytest.raises(ScheduleError, match="no schedule"):
        lowered("prefix").tree


# --- verify -----------------------------------------------------------------------------------------------------


def test_verify_finds_the_dependences_anew() -> None:
    """A dependence that was lost before the schedule was chosen is not lost to the proof."""
    lowering = lowered("prefix")
    (loop,) = loops(lowering.tree)
    wrong = backwards(lowering.tree)
    decided = replace(lowering._decided, tree=wrong, schedule=as_schedule(wrong, lowering.scop))
    vars(lowering)["_decided"] = decided
    vars(lowering)["dependences"] = Dependences((), ())
    with pytest.raises(LegalityError, match="breaks a flow dependence"):
        lowering.verify()
    assert loop.name == "t"


def test_verify_waits_for_a_compile_in_another_thread() -> None:
    """Each would count the other's operations of isl, and could leave its limit behind for good."""
    lowering, done = lowered("prefix"), threading.Event()
    assert lowering.verify().claims

    def verify() -> None:
        lowering.verify()
        done.set()

    thread = threading.Thread(target=verify)
    with COMPILING:
        thread.start()
        assert not done.wait(0.5)
    thread.join()
    assert done.is_set()


@every_operator
def test_verify_refuses_a_plan_without_its_buffers(name: str) -> None:
    lowering = lowered(name)
    if not lowering.storage.buffers:
        return
    vars(lowering)["_decided"] = replace(lowering._decided, storage=StoragePlan(()))
    with pytest.raises(LegalityError, match="one buffer"):
        lowering.verify()


def test_strict_numerics_makes_the_order_of_updates_a_dependence() -> None:
    op, sizes = OPERATORS["softmax"]
    strict = lower(op.lower(**sizes).program, Options(numerics="strict", target=MACHINE))
    assert strict.dependences.reductions == ()
    assert any(d.kind == "order" for d in strict.dependences.ordered)
    assert not any(loop.reduction for loop in loops(strict.tree))
    assert strict.verify() is not None


# --- in place ---------------------------------------------------------------------------------------------------


@po.op
def scaled(x: f64[N], y: f64[N]):
    z = po.tensor("z")
    z[i] = x[i] * 2.0 + y[i]
    return z


@po.op
def shifted(x: f64[N]):
    z = po.tensor("z")
    z[i] = x[i] + x.pad(0)[i - 1]
    return z


@po.op
def turned(x: f64[N, N]):
    z = po.tensor("z")
    z[i, j] = x[j, i]
    return z


@po.op
def twice(x: f64[N]):
    y, z = po.tensors("y z")
    y[i] = x[i] * 2.0
    z[i] = x[N - 1 - i] + 1.0
    return y, z


@po.op
def summed(x: f64[N, N]):
    z = po.tensor("z")
    z[i, j] = x[i, j] / po.sum(x[i, k], k)
    return z


@po.op
def converted(x: f32[N]):
    z = po.tensor("z")
    z[i] = po.cast(x[i], i32)
    return z


@po.op
def broadcast(x: f64[N]):
    z = po.tensor("z", shape=(N, N))
    z[i, j] = x[i] + x[j]
    return z


@pytest.mark.parametrize(
    ("op", "pairs"),
    [
        (scaled, (("z", "x"), ("z", "y"))),
        (shifted, ()),
        (turned, ()),
        (twice, ()),
        (summed, ()),
        (converted, ()),
        (broadcast, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_result_may_take_the_place_of_an_input_that_only_its_own_element_reads(op: po.Op, pairs: Any) -> None:
    lowering: Lowering = op.lower(N=6)
    assert lowering.info.in_place == pairs


@pytest.mark.parametrize("op", [scaled, shifted, turned, summed], ids=lambda op: op.__name__)
def test_an_output_that_is_an_input_gives_the_same_numbers(op: po.Op) -> None:
    numbers = np.random.default_rng(0)
    shape = (37,) if op in (scaled, shifted) else (37, 37)
    for _ in range(3):
        x = numbers.random(shape)
        rest = (numbers.random(shape),) if op is scaled else ()
        wanted = op.reference(x, *rest)
        op(x, *rest, out=x)
        np.testing.assert_allclose(x, wanted)


def test_the_domain_of_everything_is_a_union() -> None:
    union = lowered("linear_relu").domains
    assert union.is_equal(
        isl.UnionSet(
            "{ y_init[i, j] : 0 <= i < 9 and 0 <= j < 20; "
            "y_update[i, j, k] : 0 <= i < 9 and 0 <= j < 20 and 0 <= k < 5; "
            "out[i, j] : 0 <= i < 9 and 0 <= j < 20 }"
        )
    )


def test_what_has_no_statements_has_no_instances() -> None:
    @po.op
    def doubled(x: f32[N]):
        return x * 2

    assert doubled.lower(N=0).domains.is_empty()
