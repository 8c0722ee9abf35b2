"""Targets: what is known about processors."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from polyopt import target
from polyopt.errors import ArgumentError

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_host_is_described() -> None:
    host = target.host()
    assert host.name in target.PRESETS
    assert host.cpu and host.triple.count("-") >= 2
    assert 0 < host.l1_bytes <= host.l2_bytes
    assert host is target.resolve("cpu")


@pytest.mark.parametrize(
    ("name", "lanes"), [("avx512", 16), ("avx512_bf16", 16), ("avx2", 8), ("neon", 4), ("generic", 4)]
)
def test_presets_have_their_lanes(name: str, lanes: int) -> None:
    preset = target.resolve(name)
    assert preset.lanes(32) == lanes
    assert preset.lanes(64) == lanes // 2
    assert preset.lanes(4096) == 1
    assert not preset.has("amx-tile")


def test_presets_do_not_depend_on_the_machine_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [target.preset.__wrapped__(name) for name in target.PRESETS]
    monkeypatch.setattr(target, "_CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(target, "_CPU0", tmp_path / "none")
    assert [target.preset.__wrapped__(name) for name in target.PRESETS] == known
    assert all(found.rates is None for found in known)


def test_what_a_preset_can_do_beyond_its_width() -> None:
    assert target.preset("avx512_bf16").has("avx512bf16") and target.preset("avx512_bf16").has("avx512vnni")
    assert not target.preset("avx512").has("avx512vnni")


def test_code_runs_where_the_processor_has_every_feature_that_it_uses() -> None:
    """The width of vectors decided: code with BF16 dots went to processors that have none, and wide vectors that any
    processor takes in pieces were refused."""
    plain, wide = target.preset("avx2"), target.preset("avx512")
    have = ",".join(f"+{name}" for name in (*target._V3, *target._V4))
    server = replace(wide, cpu="skylake-avx512", features=have)
    desktop = replace(plain, cpu="znver3", features=",".join(f"+{name}" for name in target._V3) + ",-avx512f")
    assert plain.lacking(server) == wide.lacking(server) == server.lacking(server) == ()
    assert target.preset("avx512_bf16").lacking(server) == ("avx512bf16", "avx512vnni")
    assert wide.lacking(desktop) == target._V4
    assert replace(desktop, vector_bits=512, vector_registers=32).lacking(desktop) == ()
    assert replace(desktop, cpu="znver4").lacking(desktop) == ("znver4",)
    assert target.preset("neon").lacking(server) == (target.preset("neon").triple,)
    assert target.preset("generic").lacking(target.host()) == ()


@pytest.mark.parametrize("example", ["linear", "softmax", "causal_attention"])
def test_assembly_for_arm_is_emitted_on_any_machine(example: str) -> None:
    operator, inputs, _ = runpy.run_path(str(EXAMPLES / f"{example}.py"))["demo_case"]()
    assembly = operator.lower(*inputs, target="neon").source("asm")
    assert re.search(r"fmla\s+v\d+\.4s", assembly), "vectors of four lanes"
    assert not re.search(r"[xyz]mm\d", assembly)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no target 'tpu'"):
        target.resolve("tpu")


def test_features_that_the_system_withholds_are_not_usable() -> None:
    reported = {"avx2": True, "avx512f": True, "avx512bf16": True, "amx-tile": True, "bmi2": True, "fma": False}
    usable = target.usable_features(reported, frozenset({"avx2", "avx512_bf16"}))
    assert usable == {
        "avx2": True,
        "avx512f": False,
        "avx512bf16": True,
        "amx-tile": False,
        "bmi2": True,
        "fma": False,
    }
    assert target.usable_features(reported, frozenset())["avx512f"]


def test_the_widest_preset_needs_all_its_features() -> None:
    avx512 = dict.fromkeys(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "avx2", "f16c"), True)
    assert target._widest_preset(avx512) == "avx512"
    assert target._widest_preset({**avx512, "avx512vl": False}) == "avx2"
    assert target._widest_preset({"avx2": True}) == "generic"


def test_cache_sizes_come_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in {"level": level, "type": kind, "size": size, "coherency_line_size": "128"}.items():
            (folder / name).write_text(value + "\n")
    (tmp_path / "index9").mkdir()
    monkeypatch.setattr(target, "_CPU0", tmp_path)
    assert target._cache_sizes() == {"l1_bytes": 48 << 10, "l2_bytes": 2 << 20, "line_bytes": 128}


def test_a_system_without_proc_and_sys_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(target, "_CPU0", tmp_path / "none")
    assert target._system_flags() == frozenset()
    assert target._cache_sizes() == {}
    assert target.host_facts()[:1]


def test_the_facts_of_a_host_do_not_change_from_moment_to_moment() -> None:
    assert target.host_facts() == target.host_facts()
    assert not any("MHz" in fact for fact in target.host_facts())
