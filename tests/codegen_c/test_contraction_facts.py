"""What the machine code of contractions looks like, for fixed machines: a cliff shows here without a clock.

For each kernel and target the innermost loops that multiply and add are taken out of the assembly text. They hold
whole vectors alone, spill nothing, and load less than once per multiply-add; one copy is made per packed operand.
The counts are kept in `contraction_facts.txt`; `make golden` rewrites it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, f64, i8, i16, u8
from polyopt.loops.ir import Store, walk
from polyopt.target import preset

KEPT = Path(__file__).with_name("contraction_facts.txt")
TARGETS = ("avx2", "avx512")
INTEGER_TARGETS = ("generic", "avx2", "avx512", "avx512_bf16")
REGISTER_BYTES = {"ymm": 32, "zmm": 64}

M, N, K, B, C, F, H, W = po.sizes("M N K B C F H W")
i, j, k, b, c, f, h, w, r, s = po.indices("i j k b c f h w r s")


@po.op
def product(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def wide_product(x: f64[M, K], y: f64[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def narrow_product(x: bf16[M, K], y: bf16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def byte_product(x: i8[M, K], y: i8[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def mixed_product(x: u8[M, K], y: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[j, k]
    return z


@po.op
def short_product(x: i16[M, K], y: i16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def turned_rows(x: f32[K, M], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[k, j]
    return z


@po.op
def turned_columns(x: f32[M, K], y: f32[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[j, k]
    return z


@po.op
def batched(x: f32[B, M, K], y: f32[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


@po.op
def lower_triangle(x: f32[N, K]):
    z = po.tensor("z")
    z[i, j] += po.when(j <= i, x[i, k] * x[j, k])
    return z


@po.op
def window_rows(x: f32[C, H, W], y: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[f, h, w] += x[c, h + r, w + s] * y[f, c, r, s]
    return z


@po.op
def window_channels(x: f32[H, W, C], y: f32[3, 3, C, F]):
    z = po.tensor("z")
    z[h, w, f] += x[h + r, w + s, c] * y[r, s, c, f]
    return z


@po.op
def window_images(x: f32[B, C, H, W], y: f32[F, C, 1, 1]):
    z = po.tensor("z")
    z[b, f, h, w] += x[b, c, h + r, w + s] * y[f, c, r, s]
    return z


KERNELS: dict[str, tuple[po.Op, dict[str, int]]] = {
    "product 512": (product, {"M": 512, "N": 512, "K": 512}),
    "product 127x513x255": (product, {"M": 127, "N": 513, "K": 255}),
    "product f64 256": (wide_product, {"M": 256, "N": 256, "K": 256}),
    "product bf16 256": (narrow_product, {"M": 256, "N": 256, "K": 256}),
    "turned rows 256": (turned_rows, {"M": 256, "N": 256, "K": 256}),
    "turned columns 256": (turned_columns, {"M": 256, "N": 256, "K": 256}),
    "batched 50x32": (batched, {"B": 50, "M": 32, "N": 32, "K": 32}),
    "lower triangle 256": (lower_triangle, {"N": 256, "K": 64}),
    "window, rows last": (window_rows, {"C": 32, "H": 34, "W": 34, "F": 64}),
    "window, channels last": (window_channels, {"C": 32, "H": 30, "W": 30, "F": 64}),
    "window, masks in the loops around": (window_images, {"B": 8, "C": 1024, "H": 14, "W": 14, "F": 256}),
}


INTEGER_KERNELS: dict[str, tuple[po.Op, dict[str, int]]] = {
    "product i8 256": (byte_product, {"M": 256, "N": 256, "K": 256}),
    "product i8 127x513x255": (byte_product, {"M": 127, "N": 513, "K": 255}),
    "turned columns u8 i8 256": (mixed_product, {"M": 256, "N": 256, "K": 256}),
    "product i16 256": (short_product, {"M": 256, "N": 256, "K": 256}),
}
_MULTIPLY_ADD = re.compile(r"vfmadd|v?pdpbusd|v?pdpwssd|v?pmaddwd")


@dataclass(frozen=True)
class Inner:
    """One innermost loop that multiplies and adds.

    multiply_adds: of whole vectors; loads: from memory, broadcasts and operands of multiply-adds included
    spills: accesses to the stack; partial: masked or scalar accesses and operations
    """

    multiply_adds: int
    loads: int
    spills: int
    partial: int

    def __str__(self) -> str:
        return f"{self.multiply_adds} multiply-adds, {self.loads} loads, {self.spills} spills, {self.partial} partial"


def inner_loops(assembly: str) -> Iterator[Inner]:
    """Blocks that jump back to their own label and multiply."""
    label, body = "", list[str]()
    for line in assembly.splitlines():
        found = re.match(r"(\.LBB\w+):", line)
        if found:
            label, body = found.group(1), []
            continue
        body.append(line.strip())
        if label and re.match(rf"\s+j\w+\s+{re.escape(label)}$", line) and any(map(_MULTIPLY_ADD.match, body)):
            yield _inner(body)


def _inner(body: list[str]) -> Inner:
    fused = [line for line in body if _MULTIPLY_ADD.match(line)]
    loads = [line for line in body if re.match(r"v|mov[du]|p", line) and re.match(r"\S+\s+[-\w$]*\(", line)]
    spilled = [line for line in body if line.startswith("v") and "(%rsp" in line]
    partial = [line for line in body if line.startswith("vmaskmov") or re.search(r"vfmadd\w+s[sd]\b|\{%k\d\}", line)]
    return Inner(len(fused), len(loads), len(spilled), len(partial))


def facts(name: str, target: str) -> list[str]:
    op, sizes = {**KERNELS, **INTEGER_KERNELS}[name]
    lowering = op.lower(target=preset(target), **sizes)
    assert lowering.fallback == ""
    copies = {s.statement for s in walk(lowering.loops.body) if isinstance(s, Store) and "_packed" in s.buffer}
    lines = [f"{name}, {target}: {len(copies)} operands copied"]
    return lines + [f"  {inner}" for inner in inner_loops(lowering.source("asm"))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_inner_loops_multiply_whole_vectors_out_of_registers(name: str, target: str) -> None:
    op, sizes = KERNELS[name]
    found = list(inner_loops(op.lower(target=preset(target), **sizes).source("asm")))
    assert found, "no loop multiplies and adds"
    for inner in found:
        assert inner.spills == 0, f"{name}: {inner}"
    best = max(found, key=lambda inner: inner.multiply_adds)
    assert best.partial == 0 and best.multiply_adds >= 8, f"{name}: {best}"
    assert best.loads <= 1.1 * best.multiply_adds, f"{name}: {best}"


@pytest.mark.parametrize("target", INTEGER_TARGETS)
@pytest.mark.parametrize("name", INTEGER_KERNELS)
def test_narrow_integers_are_multiplied_by_dot_instructions(name: str, target: str) -> None:
    op, sizes = INTEGER_KERNELS[name]
    found = list(inner_loops(op.lower(target=preset(target), **sizes).source("asm")))
    assert all(inner.spills == 0 for inner in found)
    best = max(found, key=lambda inner: inner.multiply_adds)
    assert best.partial == 0 and best.multiply_adds >= 8, f"{name}: {best}"
    assert best.loads <= 1.2 * best.multiply_adds, f"{name}: {best}"


def test_the_counts_are_those_that_were_kept(request: pytest.FixtureRequest) -> None:
    printed = "".join(f"{line}\n" for name in KERNELS for target in TARGETS for line in facts(name, target))
    integers = ((name, target) for name in INTEGER_KERNELS for target in INTEGER_TARGETS)
    printed += "".join(f"{line}\n" for case in integers for line in facts(*case))
    if request.config.getoption("--update-golden"):
        KEPT.write_text(printed, "utf-8")
    assert printed == KEPT.read_text("utf-8"), "machine code has changed; `make golden`, and read the diff"


@pytest.mark.parametrize("size", [5, 16, 33, 70])
def test_triangles_of_every_remainder_give_the_reference(size: int) -> None:
    x = np.random.default_rng(size).integers(-3, 4, (size, 40)).astype(np.float32)
    np.testing.assert_array_equal(lower_triangle(x), np.tril(x @ x.T))


@pytest.mark.parametrize("columns", [70, 97, 111])
def test_lanes_past_the_last_column_write_nothing(columns: int) -> None:
    numbers = np.random.default_rng(columns)
    x, y = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((400, 9000), (9000, columns)))
    assert "y_packed" in str(product.lower(x, y).loops)
    around = np.full((400, columns + 8), 7, np.float32)
    out = around[:, :columns]
    product(x, y, out=out)
    np.testing.assert_array_equal(out, x @ y)
    assert (around[:, columns:] == 7).all()


@pytest.mark.parametrize("columns", [*range(1, 9), 13])
def test_known_lanes_are_stored_in_pieces(columns: int) -> None:
    """A store under a mask of AVX2 takes longer than the two or three stores that it can be taken apart into."""
    sizes = {"M": 24, "N": columns, "K": 16}
    for line in product.lower(target=preset("avx2"), **sizes).source("asm").splitlines():
        assert not re.match(r"\s+vmaskmov\w+\s+%ymm\d+, %ymm\d+, ", line), line
    x, y = (np.arange(24 * 16 * 2, dtype=np.float32)[: a * b].reshape(a, b) % 7 for a, b in ((24, 16), (16, columns)))
    np.testing.assert_array_equal(product(x, y), x @ y)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [64, 70])
def test_a_sum_begins_and_ends_in_registers(target: str, n: int) -> None:
    """Each accumulator is stored once, and never loaded: not when it is zero, and not for its last step."""
    assembly = product.lower(M=24, N=n, K=64, target=preset(target)).source("asm")
    stored = sum(bool(re.match(r"\s+vmov\w+\s+%[xyz]mm\d+(, -?\d*\()", line)) for line in assembly.splitlines())
    whole = sum(inner.multiply_adds for inner in inner_loops(assembly))
    assert "spill" not in assembly.lower() and stored >= whole > 0
    assert not re.search(r"vxorps[^\n]*\n\s+vmovups\s+%[yz]mm", assembly), "a zero goes to memory"


def test_lanes_past_the_last_column_are_not_summed() -> None:
    """They would read what lies in the workspace: sums of denormal numbers take twenty times as long."""
    program = product.lower(M=400, N=75, K=20000, target=preset("avx512"))
    assert "y_packed" in str(program.loops)
    unmasked = [inner for inner in inner_loops(program.source("asm")) if inner.partial == 0]
    assert len(unmasked) < len(list(inner_loops(program.source("asm"))))
