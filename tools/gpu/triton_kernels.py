"""Rows of the table as a programmer would write them in Triton, for comparison."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(x, y, n, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    values = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, powers / tl.sum(powers, 0), mask=at < n)


def softmax(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.shape[1]
    _softmax[(x.shape[0],)](x, y, n, block=triton.next_power_of_2(n), num_warps=8)
    return y


@triton.jit
def _layernorm(x, g, s, y, n, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < n
    values = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / n
    off = tl.where(inside, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(off * off, 0) / n + 1e-5)
    gain = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(s + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, (off * scale * gain + shift).to(tl.bfloat16), mask=inside)


def layernorm(x: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    n = x.shape[1]
    _layernorm[(x.shape[0],)](x, g, s, y, n, block=triton.next_power_of_2(n), num_warps=8)
    return y


@triton.jit
def _gemm(x, y, z, m, n, k, bm: tl.constexpr, bn: tl.constexpr, bk: tl.constexpr):
    rows = tl.program_id(1) * bm + tl.arange(0, bm)
    columns = tl.program_id(0) * bn + tl.arange(0, bn)
    depth = tl.arange(0, bk)
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for start in range(0, k, bk):
        left = tl.load(
            x + rows[:, None] * k + (start + depth)[None, :], mask=(rows < m)[:, None] & (start + depth < k)[None, :]
        )
        right = tl.load(
            y + (start + depth)[:, None] * n + columns[None, :],
            mask=(start + depth < k)[:, None] & (columns < n)[None, :],
        )
        total = tl.dot(left, right, total)
    tl.store(
        z + rows[:, None] * n + columns[None, :],
        total.to(tl.bfloat16),
        mask=(rows < m)[:, None] & (columns < n)[None, :],
    )


def gemm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.shape, y.shape[1]
    z = torch.empty((m, n), dtype=x.dtype, device=x.device)
    bm, bn = (128, 128) if m >= 128 else (16, 64)
    _gemm[(triton.cdiv(n, bn), triton.cdiv(m, bm))](x, y, z, m, n, k, bm, bn, 64, num_warps=8, num_stages=3)
    return z


CALLS = {
    "softmax": softmax,
    "layernorm": layernorm,
    "gemm_bf16_4096": gemm,
    "gemm_bf16_8192": gemm,
    "gemm_bf16_skinny": gemm,
}
