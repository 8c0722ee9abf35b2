"""Each rule for loop programs is held, and each check fails on a planted fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyopt.dsl.ir import Const, Reducer
from polyopt.dtypes import bool_, f32, f64, i64
from polyopt.errors import LegalityError
from polyopt.loops.ir import Alloc, Block, Buffer, Check, For, If, Load, LoopProgram, Site, Stmt
from polyopt.loops.verify import (
    check_accesses,
    check_instances,
    check_order,
    enumerate_instances,
    instance_counts,
    uses_data_subscripts,
    verify,
)
from tests.loops.nests import SUM, argument, gather, guarded, ints, less, load, loop, matmul, op, scan, store

PROGRAMS = [matmul(), scan(), gather(), guarded(), matmul(0, 1, 0)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_well_formed_programs_pass(program):
    verify(program)


def copying(body: Stmt, **fields: Any) -> LoopProgram:
    """A program over input x[8] and result y[8]."""
    whole = LoopProgram("copy", (argument("x", 8), argument("y", 8)), (), (), ("y",), body)
    return replace(whole, **fields)


COPY = store("s", "y", ("i",), load("x", "i"))
ROW = loop("i", 8, COPY)
LOCAL = Buffer("t", f64, ints(8), "local")
NUMBER = Const(1.0, f64)
HALF = Const(1.0, f32)

FAULTS = {
    "an unknown variable": ("variables", copying(COPY)),
    "a variable of its own loop bound": ("variables", copying(loop("i", "i", COPY))),
    "a variable that hides another": ("variables", copying(loop("i", 8, ROW))),
    "an unknown size in an extent": ("variables", copying(ROW, workspace=(Buffer("w", f64, ints("N"), "workspace"),))),
    "an unknown buffer": ("buffers", copying(loop("i", 8, store("s", "z", ("i",), load("x", "i"))))),
    "a buffer outside its allocation": (
        "buffers",
        copying(Block((Alloc(LOCAL, ROW), loop("i", 8, store("s", "t", ("i",), NUMBER))))),
    ),
    "a write to an input": ("buffers", copying(loop("i", 8, store("s", "x", ("i",), NUMBER)))),
    "two buffers of one name": ("buffers", copying(ROW, workspace=(Buffer("x", f64, ints(8), "workspace"),))),
    "an allocation that hides a buffer": ("buffers", copying(Alloc(replace(LOCAL, name="x"), ROW))),
    "an allocated argument": ("buffers", copying(Alloc(replace(LOCAL, space="argument"), ROW))),
    "a result that is no argument": ("buffers", copying(ROW, written=("y", "z"))),
    "too few indices": ("ranks", copying(loop("i", 8, store("s", "y", (), NUMBER)))),
    "too few strides": ("ranks", copying(ROW, workspace=(Buffer("w", f64, ints(8), "workspace", strides=()),))),
    "an index that is no integer": ("dtypes", copying(loop("i", 8, store("s", "y", (NUMBER,), NUMBER)))),
    "a stored value of another dtype": ("dtypes", copying(loop("i", 8, store("s", "y", ("i",), HALF)))),
    "a load of another dtype": ("dtypes", copying(loop("i", 8, store("s", "y", ("i",), load("x", "i", dtype=f32))))),
    "operands of two dtypes": (
        "dtypes",
        copying(loop("i", 8, store("s", "y", ("i",), op("add", HALF, NUMBER, dtype=f64)))),
    ),
    "an operation that is not there": (
        "dtypes",
        copying(loop("i", 8, store("s", "y", ("i",), op("fma", NUMBER, dtype=f64)))),
    ),
    "an operation on booleans": ("dtypes", copying(If(op("add", less(0, 1), less(0, 1), dtype=bool_), ROW))),
    "a choice by a number": (
        "dtypes",
        copying(loop("i", 8, store("s", "y", ("i",), op("select", NUMBER, NUMBER, NUMBER, dtype=f64)))),
    ),
    "a condition that is no bool": ("dtypes", copying(If(ints(1)[0], ROW))),
    "a mask that is no bool": (
        "dtypes",
        copying(loop("i", 8, store("s", "y", ("i",), load("x", "i", mask=ints(1)[0])))),
    ),
    "a reducer of another dtype": (
        "dtypes",
        copying(loop("i", 8, store("s", "y", ("i",), NUMBER, replace(SUM, dtype=f32)))),
    ),
    "a loop in a vector loop": ("loops", copying(loop("j", 1, ROW, kind="vector"))),
    "a step of zero": ("loops", copying(loop("i", 8, COPY, step=0))),
    "a check of a site that is not there": (
        "checks",
        copying(loop("i", 8, store("s", "y", ("i",), Load("x", ints("i"), f64, checks=(Check(0, 0),))))),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_malformed_program_is_refused(name):
    rule, program = FAULTS[name]
    with pytest.raises(LegalityError) as caught:
        verify(program)
    assert caught.value.facts["rule"] == rule


# --- enumeration ----------------------------------------------------------------------------------------------


def test_instances_are_listed_in_order_with_what_they_touch():
    instances = list(enumerate_instances(scan(3)))
    assert [i.key for i in instances] == [
        ("t_def", (0,)),
        ("t_def", (1,)),
        ("t_def", (2,)),
        *(("s_def", (i,)) for i in range(3)),
    ]
    assert [(r.buffer, r.index) for r in instances[0].reads] == [("x", (0,))]
    assert [(r.buffer, r.index) for r in instances[1].reads] == [("t", (0,)), ("x", (1,))]
    assert instances[1].write.buffer == "t" and instances[1].write.index == (1,)
    assert [place.value for place in instances[4].position] == [1]


def test_each_allocation_is_another_array():
    instances = enumerate_instances(matmul(2, 1, 1))
    starts = [i.write.allocation for i in instances if i.statement == "y_start"]
    assert len(set(starts)) == 2


def test_counts_equal_the_domains():
    counts = instance_counts(enumerate_instances(matmul(2, 3, 4)))
    assert counts["y_sum"] == Counter({(i, j, k): 1 for i in range(2) for j in range(3) for k in range(4)})
    domain = [(i,) for i in range(3)]
    check_instances(enumerate_instances(scan(3)), {"t_def": domain, "s_def": domain})
    for wrong in [domain[:2], [*domain, (3,)]]:
        with pytest.raises(LegalityError) as caught:
            check_instances(enumerate_instances(scan(3)), {"t_def": wrong, "s_def": domain})
        assert caught.value.facts["rule"] == "instances"


@pytest.mark.parametrize("program", [matmul(), scan(), guarded(), matmul(1, 1, 1)], ids=lambda p: p.name)
def test_right_programs_pass_the_check_of_accesses(program):
    check_accesses(program, {"N": 5} if program.sizes else None)


def test_data_subscripts_are_enumerated_with_the_data():
    assert uses_data_subscripts(gather()) and not uses_data_subscripts(matmul())
    arrays = {"ids": np.array([0, 2, -1, 1])}
    check_accesses(gather(), arrays=arrays)
    reads = [[r.index for r in i.reads if r.buffer == "table"] for i in enumerate_instances(gather(), arrays=arrays)]
    assert reads == [[(0,)], [(2,)], [], [(1,)]]


def test_a_store_whose_check_fails_does_not_happen():
    index = load("ids", "i", dtype=i64)
    scatter = replace(store("h", "y", (0,), Const(1.0, f64), SUM), indices=(index,), checks=(Check(0, 0),))
    program = LoopProgram(
        "histogram",
        (argument("ids", 3, dtype=i64), argument("y", 2)),
        (),
        (),
        ("y",),
        Block((loop("b", 2, store("zero", "y", ("b",), Const(0.0, f64))), loop("i", 3, scatter))),
        (Site("y", 0, None),),
    )
    verify(program)
    arrays = {"ids": np.array([1, 5, 1])}
    check_accesses(program, arrays=arrays)
    assert sum(i.statement == "h" for i in enumerate_instances(program, arrays=arrays)) == 2


def refused(program: LoopProgram) -> dict[str, object]:
    verify(program)
    with pytest.raises(LegalityError) as caught:
        check_accesses(program)
    return caught.value.facts


def test_an_index_outside_a_buffer_is_found():
    assert refused(copying(loop("i", 9, COPY))) | {"shape": 0} == {
        "rule": "bounds",
        "buffer": "x",
        "index": (8,),
        "shape": 0,
    }
    beyond = store("s", "y", (op("add", "i", 1),), NUMBER)
    assert refused(copying(loop("i", 8, beyond)))["index"] == (8,)


def test_a_read_before_the_write_is_found():
    facts = refused(copying(Alloc(LOCAL, loop("i", 8, store("s", "y", ("i",), load("t", "i"))))))
    assert facts["rule"] == "uninitialised" and facts["buffer"] == "t"


def test_an_update_of_nothing_is_found():
    facts = refused(copying(loop("i", 8, store("s", "y", ("i",), load("x", "i"), SUM))))
    assert facts["rule"] == "uninitialised" and facts["buffer"] == "y"


def test_an_element_of_a_result_that_is_never_written_is_found():
    assert refused(copying(loop("i", 7, COPY)))["rule"] == "unwritten"


def with_kind(program: LoopProgram, kind: str, which: int) -> LoopProgram:
    """The program with one loop of its block marked."""
    assert isinstance(program.body, Block)
    parts = list(program.body.body)
    chosen = parts[which]
    assert isinstance(chosen, For)
    parts[which] = replace(chosen, kind=kind)  # type: ignore[arg-type]  # one of the kinds
    return replace(program, body=Block(tuple(parts)))


@pytest.mark.parametrize("kind", ["parallel", "vector"])
def test_a_recurrence_marked_parallel_is_a_race(kind):
    facts = refused(with_kind(scan(), kind, 0))
    assert facts["rule"] == "race"
    assert facts["pair"] == (("t_def", (0,)), ("t_def", (1,)))


def total(reducer: Reducer = SUM, kind: str = "vector") -> LoopProgram:
    start = store("zero", "y", (), Const(0.0, f64))
    update = replace(store("sum", "y", (), load("x", "i"), reducer), instance=ints("i"))
    program = LoopProgram(
        "total", (argument("x", 8), argument("y")), (), (), ("y",), Block((start, loop("i", 8, update)))
    )
    return with_kind(program, kind, 1)


def test_a_reduction_may_run_in_lanes_but_not_on_threads():
    check_accesses(total())
    assert refused(total(kind="parallel"))["rule"] == "race"


def test_different_reducers_on_one_element_are_a_race():
    prod = Reducer("prod", f64, Const(1.0, f64))
    program = total()
    assert isinstance(program.body, Block)
    start, updates = program.body.body
    assert isinstance(updates, For)
    other = replace(store("prod", "y", (), load("x", "i"), prod), instance=ints("i"))
    both = replace(updates, body=Block((updates.body, other)))
    assert refused(replace(program, body=Block((start, both))))["rule"] == "race"


def test_two_writes_of_one_element_are_a_race():
    same = store("s", "y", (op("floordiv", "i", 2),), load("x", "i"))
    assert refused(copying(loop("i", 8, same, kind="parallel")))["rule"] == "race"


def test_a_buffer_shared_by_parallel_iterations_is_a_race_and_a_private_one_is_not():
    def rows(private: bool) -> LoopProgram:
        use = Block((store("a", "t", (0,), load("x", "i")), store("s", "y", ("i",), load("t", 0))))
        if private:
            return copying(loop("i", 8, Alloc(LOCAL, use), kind="parallel"))
        return copying(Alloc(LOCAL, loop("i", 8, use, kind="parallel")))

    check_accesses(rows(True))
    assert refused(rows(False))["rule"] == "race"


def test_the_order_of_dependences_is_checked():
    instances = list(enumerate_instances(scan(4)))
    carried = [(("t_def", (i,)), ("t_def", (i + 1,))) for i in range(3)]
    copied = [(("t_def", (i,)), ("s_def", (i,))) for i in range(4)]
    check_order(instances, carried + copied)
    with pytest.raises(LegalityError) as caught:
        check_order(instances, [(("s_def", (0,)), ("t_def", (0,)))])
    assert caught.value.facts["rule"] == "order"
    with pytest.raises(LegalityError) as caught:
        check_order(instances, [(("t_def", (0,)), ("t_def", (9,)))])
    assert caught.value.facts["rule"] == "instances"
    with pytest.raises(LegalityError) as caught:
        check_order(enumerate_instances(with_kind(scan(4), "parallel", 0)), carried)
    assert caught.value.facts["pair"] == carried[0]
