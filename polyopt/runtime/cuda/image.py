"""A compiled CUDA program as plain data: what goes to the disk cache, and what a driver loads and launches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from polyopt import dtypes
from polyopt.classes import dataclass
from polyopt.codegen_cuda.source import Branch, CudaSource, Launch, Repeat, Step
from polyopt.dtypes import DType
from polyopt.runtime import extent
from polyopt.runtime.extent import Extent

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class KernelImage:
    """One `__global__` function. grid: blocks over the sizes; parameters: names, `pointers` of them addresses."""

    name: str
    grid: tuple[Extent, Extent, Extent]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]
    pointers: int


@dataclass(frozen=True, slots=True)
class ArrayImage:
    """An array in device memory, and where it comes from."""

    name: str
    role: Literal["input", "output", "workspace"]
    dtype: DType
    shape: tuple[Extent, ...]

    def bytes(self, sizes: Mapping[str, int]) -> int:
        total = self.dtype.itemsize
        for length in self.shape:
            total *= max(0, extent.evaluate(length, sizes))
        return total


@dataclass(frozen=True, slots=True)
class CudaImage:
    """A program's kernels, ready to be loaded.

    text:    the CUDA C++ text, which the emulator compiles
    cubin:   machine code for `arch`; empty where none was made
    steps:   nested lists: ["launch", kernel], ["repeat", var, lower, upper, step, steps], ["branch", test, yes, no]
    arrays:  of the call, inputs first, then results, then workspace
    sizes:   names of the i64 values that a call gives
    checks:  how many run-time checks there are
    """

    text: str
    kernels: tuple[KernelImage, ...]
    steps: tuple[Any, ...]
    arrays: tuple[ArrayImage, ...]
    sizes: tuple[str, ...]
    checks: int = 0
    contract: bool = True
    arch: str = ""
    cubin: bytes = b""

    def kernel(self, name: str) -> KernelImage:
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def launches(self, sizes: Mapping[str, int]) -> Iterator[tuple[KernelImage, tuple[int, int, int], dict[str, int]]]:
        """Each kernel that a call runs, in order, with its grid and the values of its integer parameters.

        A kernel whose grid is empty has nothing to do and is left out.
        """
        for name, values in _walk(self.steps, dict(sizes)):
            kernel = self.kernel(name)
            x, y, z = (extent.evaluate(blocks, values) for blocks in kernel.grid)
            if min(x, y, z) > 0:
                yield kernel, (x, y, z), values


def _walk(steps: tuple[Any, ...], values: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    for step in steps:
        match step:
            case ["launch", name]:
                yield name, values
            case ["repeat", var, lower, upper, stride, inner]:
                for value in range(extent.evaluate(lower, values), extent.evaluate(upper, values), stride):
                    yield from _walk(inner, {**values, var: value})
            case ["branch", condition, yes, no]:
                yield from _walk(yes if extent.evaluate(condition, values) else no, values)
            case _:
                raise ValueError(f"not a step: {step!r}")


def from_source(source: CudaSource, *, arch: str = "", cubin: bytes = b"") -> CudaImage:
    """The image of emitted text. arch: of `cubin`, as "sm_90"."""
    written = frozenset(source.written)
    arrays = [
        ArrayImage(b.name, "output" if b.name in written else "input", b.dtype, tuple(map(extent.from_expr, b.shape)))
        for b in source.arguments
    ]
    arrays += [
        ArrayImage(b.name, "workspace", b.dtype, tuple(map(extent.from_expr, b.shape))) for b in source.workspace
    ]
    return CudaImage(
        text=source.text,
        kernels=tuple(
            KernelImage(
                k.name,
                (extent.from_expr(k.grid[0]), extent.from_expr(k.grid[1]), extent.from_expr(k.grid[2])),
                k.block,
                k.shared_bytes,
                k.parameters,
                k.pointers,
            )
            for k in source.kernels
        ),
        steps=_plain_steps(source.steps),
        arrays=tuple(arrays),
        sizes=source.sizes,
        checks=len(source.sites),
        contract=source.contract,
        arch=arch,
        cubin=cubin,
    )


def _plain_steps(steps: tuple[Step, ...]) -> tuple[Any, ...]:
    return tuple(map(_plain_step, steps))


def _plain_step(step: Step) -> tuple[Any, ...]:
    match step:
        case Launch(kernel):
            return ("launch", kernel)
        case Repeat(var, lower, upper, inner, stride):
            return ("repeat", var, extent.from_expr(lower), extent.from_expr(upper), stride, _plain_steps(inner))
        case Branch(condition, yes, no):
            return ("branch", extent.from_expr(condition), _plain_steps(yes), _plain_steps(no))


# --- on disk --------------------------------------------------------------------------------------------------


def as_bytes(image: CudaImage) -> bytes:
    """The image as `from_bytes` reads it."""
    header = {
        "text": image.text,
        "kernels": [[k.name, k.grid, k.block, k.shared_bytes, k.parameters, k.pointers] for k in image.kernels],
        "steps": image.steps,
        "arrays": [[a.name, a.role, a.dtype.name, a.shape] for a in image.arrays],
        "sizes": image.sizes,
        "checks": image.checks,
        "contract": image.contract,
        "arch": image.arch,
    }
    text = json.dumps(header).encode()
    return _LENGTH.pack(len(text)) + text + image.cubin


def from_bytes(data: bytes) -> CudaImage:
    """The image that `as_bytes` wrote. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    if len(data) < _LENGTH.size:
        raise ValueError("cut short")
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size
    header = json.loads(data[start : start + length])
    return CudaImage(
        text=str(header["text"]),
        kernels=tuple(_kernel(*item) for item in header["kernels"]),
        steps=tuple(map(_step, header["steps"])),
        arrays=tuple(_array(*item) for item in header["arrays"]),
        sizes=tuple(map(str, header["sizes"])),
        checks=int(header["checks"]),
        contract=bool(header["contract"]),
        arch=str(header["arch"]),
        cubin=data[start + length :],
    )


def _kernel(name: Any, grid: Any, block: Any, shared: Any, parameters: Any, pointers: Any) -> KernelImage:
    x, y, z = map(extent.from_json, grid)
    i, j, k = map(int, block)
    return KernelImage(str(name), (x, y, z), (i, j, k), int(shared), tuple(map(str, parameters)), int(pointers))


def _array(name: Any, role: Any, dtype: Any, shape: Any) -> ArrayImage:
    if role not in ("input", "output", "workspace"):
        raise ValueError(f"not a role: {role!r}")
    return ArrayImage(str(name), role, dtypes.from_name(dtype), tuple(map(extent.from_json, shape)))


def _step(data: Any) -> tuple[Any, ...]:
    match data:
        case ["launch", str() as name]:
            return ("launch", name)
        case ["repeat", str() as var, lower, upper, int() as stride, inner]:
            return ("repeat", var, extent.from_json(lower), extent.from_json(upper), stride, tuple(map(_step, inner)))
        case ["branch", condition, yes, no]:
            return ("branch", extent.from_json(condition), tuple(map(_step, yes)), tuple(map(_step, no)))
        case _:
            raise ValueError(f"not a step: {data!r}")
