"""What the CUDA emitter makes: the text of a program's kernels, and how a host runs them.

The text is plain CUDA C++ that includes only `po_device.h` and never contains `asm`, so that NVRTC, nvcc and the
emulator's g++ take the same text. A kernel is

    PO_KERNEL void __launch_bounds__(256) softmax_0(const float *__restrict__ x, float *__restrict__ y, int64_t N)

followed, at the end of the text, by `PO_ENTRY(softmax_0)`, which the emulator needs and a GPU's compiler ignores.
Elements of f16 and bf16 are `uint16_t` in memory, those of bool `uint8_t`. No kernel waits for another block.

A host runs `CudaSource.steps` in order on one stream: a `Launch` runs a kernel, a `Repeat` its steps once per value
of a loop variable, which its kernels take among their i64 parameters. Extents are i64 expressions of `loops.ir` over
`CudaSource.sizes` and the variables of the repeats around (`runtime.extent.from_expr` makes plain data of them).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from polyopt.classes import dataclass
from polyopt.loops.ir import Buffer, Expr, Site

RECORD = "po_record"
"""The parameter that is the record of run-time checks: three int64 words, all 0 before the first kernel of a call.

The first check that fails writes `site + 1` by compare-and-swap, then the index found and the extent. No other name
in a program equals it.
"""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One `__global__` function.

    name:         its symbol in the compiled text
    grid:         blocks in x, y and z; where one is not positive the kernel has nothing to do and is not launched
    block:        threads in x, y and z
    shared_bytes: dynamic shared memory to launch it with; 0 where its shared arrays are static (up to 48 KiB)
    parameters:   names in the order of the function's parameters: first pointers (arguments and workspace of the
                  source, in device memory, then `RECORD` where there are checks), then i64 values (sizes, run-time
                  strides, variables of repeats)
    pointers:     how many of the parameters are pointers
    registers:    registers per thread that the plan counts on; a compiler that needs more loses occupancy
    """

    name: str
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: tuple[str, ...]
    pointers: int
    registers: int = 255

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs the kernel of this name once."""

    kernel: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Runs `steps` for each value of `var` in `range(lower, upper, step)`, one after the other."""

    var: str
    lower: Expr
    upper: Expr
    steps: tuple[Step, ...]
    step: int = 1


@dataclass(frozen=True, slots=True)
class Branch:
    """Runs `steps` where the condition, a bool expression, holds, else `otherwise`."""

    condition: Expr
    steps: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()


Step: TypeAlias = "Launch | Repeat | Branch"


@dataclass(frozen=True, slots=True)
class CudaSource:
    """The kernels of one program.

    text:      the CUDA C++ text of all of them
    kernels:   in the order of the text, which is that of their first launch
    steps:     what the host does, in order
    arguments: the caller's arrays, in the order of a call: inputs, then results
    written:   names of the arguments that are results
    workspace: arrays in device memory that live for one call; each starts at a multiple of 256 bytes
    sizes:     names of the i64 values that a call gives: symbolic sizes, then run-time strides
    sites:     what each run-time check is about
    contract:  whether the compiler may contract a product and a sum to one operation; false for strict numerics
               (`-fmad=false`, `-ffp-contract=off`)
    """

    text: str
    kernels: tuple[CudaKernel, ...]
    steps: tuple[Step, ...]
    arguments: tuple[Buffer, ...]
    written: tuple[str, ...]
    workspace: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    sites: tuple[Site, ...] = ()
    contract: bool = True

    def kernel(self, name: str) -> CudaKernel:
        return next(kernel for kernel in self.kernels if kernel.name == name)


def walk_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """All steps, outer ones first."""
    for step in steps:
        yield step
        match step:
            case Repeat():
                yield from walk_steps(step.steps)
            case Branch():
                yield from walk_steps((*step.steps, *step.otherwise))
