"""Kernels as C in a program of their own, under AddressSanitizer and UndefinedBehaviorSanitizer.

One program holds a batch of kernels. It reads their arguments from a file into heap blocks of exactly the bytes that
each array spans, calls each kernel, and writes the blocks to another file. A sanitizer's first finding ends it.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt import reference
from polyopt.api import Op
from polyopt.codegen_c.identifiers import symbol_of
from polyopt.pipeline import Lowering
from polyopt.reference.compare import difference
from polyopt.testing.check import sizes_of

Array = NDArray[Any]

FLAGS = (
    *("-std=c11", "-O0", "-g1", "-Wall", "-Werror", "-ffp-contract=off"),
    *("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
)
SECONDS = 300
_UNWRITTEN = 0xA5
_SLACK = 2.0
"""As `polyopt_check`: the bound on errors is of first order, and the reference itself is rounded."""

_MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>

extern size_t __sanitizer_get_current_allocated_bytes(void);

typedef int64_t kernel(char **arrays, const int64_t *sizes);
@PROTOTYPES@
static kernel *const kernels[] = {@KERNELS@};
static const char *const names[] = {@NAMES@};

static int64_t number(FILE *from)
{
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, from) != 1) exit(3);
    return value;
}

int main(int count, char **words)
{
    FILE *from = count == 3 ? fopen(words[1], "rb") : NULL, *to = count == 3 ? fopen(words[2], "wb") : NULL;
    if (!from || !to) return 3;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        char *blocks[64], *arrays[64];
        int64_t bytes[64], sizes[64];
        int64_t arguments = number(from), symbols = number(from);
        for (int64_t n = 0; n < symbols; n++) sizes[n] = number(from);
        for (int64_t n = 0; n < arguments; n++) {
            bytes[n] = number(from);
            blocks[n] = malloc((size_t)bytes[n]);
            arrays[n] = blocks[n] + number(from);
            if (fread(blocks[n], 1, (size_t)bytes[n], from) != (size_t)bytes[n]) return 3;
        }
        fprintf(stderr, "running %s\n", names[k]);
        size_t before = __sanitizer_get_current_allocated_bytes();
        int64_t status = kernels[k](arrays, sizes);
        int64_t kept = (int64_t)(__sanitizer_get_current_allocated_bytes() - before);
        fwrite(&status, sizeof status, 1, to);
        fwrite(&kept, sizeof kept, 1, to);
        for (int64_t n = 0; n < arguments; n++) {
            fwrite(blocks[n], 1, (size_t)bytes[n], to);
            free(blocks[n]);
        }
    }
    return fclose(to) ? 3 : 0;
}
"""


class Caught(AssertionError):
    """The program was ended by a sanitizer, or a kernel's answer is not the reference's."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A kernel as C with arguments and what it should give.

    name:    unique in its batch
    text:    the C source, or one that includes it
    symbol:  of the function
    inputs:  by the program's names
    values:  of the results, in float64 where they are floats
    allowed: how far off the results may be
    """

    name: str
    text: str
    symbol: str
    lowering: Lowering
    inputs: Mapping[str, Array]
    values: Mapping[str, Array]
    allowed: Mapping[str, Array]

    def edited(self, pattern: str, replacement: str) -> Exported:
        """The kernel with a fault: the first place in its text that fits the pattern, replaced."""
        text, count = re.subn(pattern, replacement, self.text, count=1)
        assert count == 1, f"nothing in the text fits {pattern}\n{self.text}"
        return replace(self, text=text)

    @property
    def sizes(self) -> list[int]:
        """What is passed for the sizes that stayed symbolic."""
        found = sizes_of(self.lowering.program, dict(self.inputs))
        return [found[name] for name in self.lowering.loops.sizes]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Of an argument."""
        return self.lowering.program.tensor(name).dtype.numpy

    def unit(self, number: int) -> str:
        """A translation unit: the kernel under a name of its own, and a caller that takes arrays from a list."""
        loops = self.lowering.loops
        passed = [f"(void *)arrays[{n}]" for n in range(len(loops.arguments))]
        passed += [f"sizes[{n}]" for n in range(len(loops.sizes))]
        call = f"return {self.symbol}({', '.join(passed)});"
        define = f"#define {self.symbol} kernel_{number}\n"
        caller = f"int64_t call_{number}(char **arrays, const int64_t *sizes)"
        return f"{define}{self.text}\n{caller};\n{caller}\n{{\n    (void)arrays;\n    (void)sizes;\n    {call}\n}}\n"

    def blocks(self) -> list[tuple[bytes, int]]:
        """For each argument the bytes that it spans in memory and where its first element is among them."""
        found = []
        for buffer in self.lowering.loops.arguments:
            value = self.values.get(buffer.name)
            if value is not None:
                found.append((bytes([_UNWRITTEN]) * (value.size * self.dtype(buffer.name).itemsize), 0))
            else:
                found.append(_span(self.inputs[buffer.name]))
        return found


def exported(name: str, op: Op, arguments: Sequence[Any], text: str | None = None) -> Exported:
    """The kernel that the op has for these arguments. text: its C, where it is not `source("c")`'s."""
    lowering = op.lower(*arguments)
    bound = op.signature.python.bind(*arguments)
    bound.apply_defaults()
    inputs = {name: np.asarray(bound.arguments[name]) for name in lowering.program.parameters}
    sizes = sizes_of(lowering.program, inputs)
    values, bounds = reference.evaluate_with_bounds(lowering.program, inputs, sizes)
    allowed = {name: _SLACK * bounds[name] for name in values}
    source = lowering.source("c") if text is None else text
    return Exported(name, source, symbol_of(lowering.loops), lowering, inputs, values, allowed)


def run(kernels: Sequence[Exported], compiler: str, folder: Path) -> None:
    """Compile the batch into one program, run it, and compare. Raises `Caught` for anything that is not right."""
    sources = [folder / f"unit{number}.c" for number in range(len(kernels))]
    for number, kernel in enumerate(kernels):
        sources[number].write_text(kernel.unit(number), encoding="utf-8")
    main, program, given, answer = (folder / name for name in ("main.c", "program", "given", "answer"))
    numbers = range(len(kernels))
    main.write_text(
        _MAIN.replace("@PROTOTYPES@", "\n".join(f"kernel call_{n};" for n in numbers))
        .replace("@KERNELS@", ", ".join(f"call_{n}" for n in numbers))
        .replace("@NAMES@", ", ".join(f'"{kernel.name}"' for kernel in kernels)),
        encoding="utf-8",
    )
    built = _run([compiler, *FLAGS, "-o", str(program), *map(str, [main, *sources]), "-lm"])
    assert built.returncode == 0, built.stderr
    given.write_bytes(b"".join(_call_bytes(kernel) for kernel in kernels))
    done = _run([str(program), str(given), str(answer)])
    if done.returncode:
        raise Caught(f"the program ended with {done.returncode}\n{done.stderr}")
    rest = answer.read_bytes()
    for kernel in kernels:
        rest = _compared(kernel, rest)
    assert not rest, "the answer is as long as the arguments"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """LeakSanitizer needs ptrace, which containers may forbid; the program counts what kernels keep instead."""
    options = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=SECONDS, env={**os.environ, **options}
    )


def _call_bytes(kernel: Exported) -> bytes:
    blocks, sizes = kernel.blocks(), kernel.sizes
    parts = [struct.pack(f"={2 + len(sizes)}q", len(blocks), len(sizes), *sizes)]
    for content, start in blocks:
        parts += [struct.pack("=2q", len(content), start), content]
    return b"".join(parts)


def _compared(kernel: Exported, answer: bytes) -> bytes:
    """What follows this kernel's part of the answer."""
    status, kept = struct.unpack_from("=2q", answer)
    at = 16
    if status:
        raise Caught(f"{kernel.name}: the function returned {status}")
    if kept:
        raise Caught(f"{kernel.name}: {kept} bytes are still allocated after the call")
    for buffer, (content, _) in zip(kernel.lowering.loops.arguments, kernel.blocks(), strict=True):
        got = answer[at : at + len(content)]
        at += len(content)
        value = kernel.values.get(buffer.name)
        if value is None:
            if got != content:
                raise Caught(f"{kernel.name}: the input '{buffer.name}' was changed")
            continue
        array = np.frombuffer(got, kernel.dtype(buffer.name)).reshape(value.shape)
        worst = difference(buffer.name, array, value, kernel.allowed[buffer.name])
        if worst is not None:
            raise Caught(f"{kernel.name}: the result differs from the reference\n{worst}")
    return answer[at:]


def _span(array: Array) -> tuple[bytes, int]:
    """The memory from the array's lowest byte to its highest, other arrays' elements in gaps left as they are."""
    if array.size == 0:
        return b"", 0
    low = sum(min(0, stride * (n - 1)) for stride, n in zip(array.strides, array.shape, strict=True))
    high = sum(max(0, stride * (n - 1)) for stride, n in zip(array.strides, array.shape, strict=True))
    content = np.full(high - low + array.itemsize, _UNWRITTEN, np.uint8)
    view: Array = np.ndarray(array.shape, array.dtype, content, -low, array.strides)
    view[...] = array
    return content.tobytes(), -low
