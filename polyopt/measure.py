"""Measures and checks operators: what `polyopt demo` and `polyopt bench` tell, as values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from polyopt import cache, reference
from polyopt.api import Op
from polyopt.classes import dataclass
from polyopt.dsl.affine import sizes_of
from polyopt.dsl.ir import Program
from polyopt.errors import ArgumentError
from polyopt.loops.ir import Alloc, Block, For, LoopProgram, Stmt, Store, substatements, walk

_RELATIVE, _ABSOLUTE = 1e-3, 1e-4  # f32 sums of a few hundred terms, against NumPy's own f32
_MEASURE_S, _MEASURE_RUNS = 0.3, 50


@dataclass(frozen=True, slots=True)
class Case:
    """One operator on given arrays: how it was compiled, how long it takes, whether it is right.

    shapes:           of the arrays, scalars left out
    statements, nests: how many statements run in how many loop nests
    parallel, vector: axes that run on threads and in lanes
    from_cache:       the kernel came from the disk cache
    wrong:            what the result differs from: "NumPy", "reference"
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    statements: int
    nests: int
    parallel: tuple[str, ...]
    vector: tuple[str, ...]
    compile_s: float
    run_s: float
    numpy_s: float
    from_cache: bool
    wrong: tuple[str, ...]


def case(operator: Op, inputs: tuple[Any, ...], oracle: Callable[..., Any]) -> Case:
    """Compile, check against `oracle` (NumPy) and the reference, and time."""
    stored = cache.info().entries
    start = time.perf_counter()
    operator.compile(*inputs)
    compile_s = time.perf_counter() - start
    from_cache = stored > 0 and cache.info().entries == stored
    loops = operator.lower(*inputs).loops
    result = operator(*inputs)
    expected = {"NumPy": oracle(*inputs), "reference": operator.reference(*inputs)}
    return Case(
        operator=operator.signature.name,
        shapes=tuple(value.shape for value in inputs if isinstance(value, np.ndarray) and value.ndim),
        statements=len({inner.statement for inner in walk(loops.body) if isinstance(inner, Store)}),
        nests=sum(any(isinstance(part, For) for part in walk(top)) for top in _top_level(loops.body)),
        parallel=_axes(loops, "parallel"),
        vector=_axes(loops, "vector"),
        compile_s=compile_s,
        run_s=median_s(lambda: operator(*inputs)),
        numpy_s=median_s(lambda: oracle(*inputs)),
        from_cache=from_cache,
        wrong=tuple(name for name, value in expected.items() if not agrees(result, value)),
    )


def _top_level(body: Stmt) -> Iterator[Stmt]:
    match body:
        case Block() | Alloc():
            for inner in substatements(body):
                yield from _top_level(inner)
        case _:
            yield body


def _axes(loops: LoopProgram, kind: str) -> tuple[str, ...]:
    """The axes of the loops of a kind, each once, in order; a tile loop counts for its axis."""
    found = (inner for inner in walk(loops.body) if isinstance(inner, For) and inner.kind == kind)
    return tuple(dict.fromkeys((loop.axis or loop.var).removesuffix(" tile") for loop in found))


def median_s(call: Callable[[], object]) -> float:
    """Median run time in seconds, over at most 50 runs and about 0.3 seconds."""
    times: list[float] = []
    while sum(times) < _MEASURE_S and len(times) < _MEASURE_RUNS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def agrees(result: object, expected: object) -> bool:
    """Whether arrays, or tuples of arrays, are equal: integers exactly, floats up to the order of a sum."""
    if isinstance(expected, tuple):
        return isinstance(result, tuple) and all(map(agrees, result, expected))
    found, wanted = np.asarray(result), np.asarray(expected)
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind != "f":
        return np.array_equal(found, wanted)
    return np.allclose(found, wanted, rtol=_RELATIVE, atol=_ABSOLUTE * np.max(np.abs(wanted), initial=0))


def random_arguments(operator: Op, program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats between 1/2 and 3/2; integers are 0, so that those which serve as subscripts are in range.

    values: of compile-time parameters, and of sizes that the program leaves open
    """
    random = np.random.default_rng(0)
    arguments = {p.name: values[p.name] for p in operator.signature.parameters if p.name in values}
    missing = [size for size in program.sizes if size not in values]
    for name in program.parameters:
        tensor = program.tensor(name)
        if tensor.shape is None or any(size in missing for extent in tensor.shape for size in sizes_of(extent)):
            raise ArgumentError(
                f"the sizes of '{name}' are not all known", fix=f"set them: {' '.join(f'{s}=64' for s in missing)}"
            )
        shape = reference.shape_of(tensor, {size: values[size] for size in program.sizes if size in values})
        numbers = random.uniform(0.5, 1.5, shape) if tensor.dtype.is_float else np.zeros(shape)
        arguments[name] = numbers.astype(tensor.dtype.numpy)
    return {p.name: arguments[p.name] for p in operator.signature.parameters if p.name in arguments}
