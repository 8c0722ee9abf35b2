"""The command for machines with a GPU, as far as one without goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyopt import Op, compilation
from polyopt.runtime.cuda import devices
from tools.gpu import contractions, copies, counters, probes, programs, run, together


def test_a_dry_run_writes_what_is_known(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    rows = ["softmax", "gemm_bf16_skinny", "jacobi"]
    skipped = ["--skip", "tests", "--skip", "counters"]
    assert run.main(["--dry", *skipped, "--out", str(out), "--rows", *rows]) == 0
    found = json.loads(out.read_text())
    assert [row["row"] for row in found["table"]] == rows
    assert {row["ms"] for row in found["table"]} == {run.NOT_MEASURED}
    assert found["machine"]["gpu"] == found["probes"]["device"] == run.NOT_MEASURED
    assert found["programs"]["counts"] == run.NOT_MEASURED
    assert found["probes"]["problems"] == []


def test_random_programs_run_on_whatever_is_the_gpu() -> None:
    emulator = compilation.emulator()
    with devices.use(emulator):
        assert programs.run(programs.FIRST_SEED, 1, seconds=0)["counts"] == {}
        found = programs.run(programs.FIRST_SEED, 2, most=4)
    assert found["failures"] == [] and emulator.found == []
    assert found["counts"]["agrees"] >= 1 and found["last"] == programs.FIRST_SEED + 6


def test_random_contractions_run_on_whatever_is_the_gpu() -> None:
    emulator = compilation.emulator()
    small = contractions.FIRST_SEED + 201
    with devices.use(emulator):
        found = contractions.run(small, 1, most=1)
    assert found == {"counts": {"of_any_size": 1}, "last": small, "failures": []} and emulator.found == []


@pytest.mark.parametrize("kind", contractions.KINDS[-2:])
def test_a_wrong_contraction_is_told(kind: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contractions, "failure", lambda *_: "1 element is wrong")
    monkeypatch.setattr(contractions, "KINDS", (kind,))
    monkeypatch.setattr(contractions, "MOST_FAILURES", 1)
    monkeypatch.setattr(Op, "on", lambda *_: lambda *arrays: np.zeros((2, 3)))
    monkeypatch.setattr(Op, "reference", lambda *_, **__: np.eye(2, 3))
    with devices.use(compilation.emulator()):
        found = contractions.run(contractions.FIRST_SEED, 1, most=10)
    assert len(found["failures"]) == 1 and not sum(found["counts"].values())
    assert "wrong" in found["failures"][0]["detail"], found
    assert kind is contractions.of_any_size or "element (0, 0) is 0.0 and should be 1.0, 2 are wrong" in str(found)


def test_every_byte_of_an_array_goes_to_the_gpu_and_back() -> None:
    emulator = compilation.emulator()
    with devices.use(emulator):
        assert copies.run(0, 600, most=5) == {"calls": 5, "wrong": 0, "first": ""}
    assert emulator.found == []


def test_what_processes_say_is_collected_and_so_is_what_they_die_of(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    told.write_text('{"calls": 3}')
    found = together.collected("json.tool", lambda n, _: ["--compact", str(told if n == 0 else tmp_path)], 60, 2)
    assert found[0] == {"calls": 3}
    assert "ended with" in found[1]["died"]


def test_a_process_that_does_not_end_is_ended_and_says_what_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST_SECONDS_OVER", 1)
    code = "from tools.gpu.together import time, told\nnext(told(640, 1, 9, 1)); print('x' * 99999)\ntime.sleep(600)"
    found = together.collected("timeit", lambda *_: ["-n1", "-r1", code], 0, 2)
    assert len(found) == 2 and all(one["died"] == "ended with -9: seed 640\n" for one in found)


PROFILE = """\
==PROF== Connected to process 7
"ID","Kernel Name","Context","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","{0}_op_ld.sum","{0}_op_st.sum"
"","","","sector","",""
"0","softmax_0","1","1,024","96","32"
"1","softmax_1","1","512","0","0"
"2","matmul_bf16_0","1","8","16","0"
""".format("l1tex__data_pipe_lsu_wavefronts_mem_shared")


def test_counters_are_summed_over_an_operators_kernels() -> None:
    found = {"softmax": {"global": 1536, "shared": 128}, "matmul_bf16": {"global": 8, "shared": 16}}
    assert counters.counted(PROFILE) == found
    assert counters.counted("==ERROR== no kernels were profiled") == {}


def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    if compilation.gpu_here() is not None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit, match="--dry does without"):
        run.main(["--out", str(tmp_path / "gpu.json")])


@pytest.mark.parametrize("name", ["mma_bf16", "ldmatrix_x4_t", "conversions"])
def test_probes_compile_for_a_gpu_and_say_something(name: str) -> None:
    from polyopt.runtime.cuda import compilers

    found = probes.probe(name)
    assert compilers.compile_text(found.text, "sm_80").code
    assert len(set(probes.run(found, compilation.emulator()).tolist())) > 60
