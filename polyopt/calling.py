"""How a kernel is called: its arrays, sizes, workspace and checks, and which memory may be the same."""

from __future__ import annotations

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, axes_of, condition_text
from polyopt.loops.ir import Expr, For, LoopProgram, walk
from polyopt.poly.scop import Scop
from polyopt.runtime import extent
from polyopt.runtime.kernel import ArrayInfo, ConditionInfo, KernelInfo, SiteInfo


def describe(
    loops: LoopProgram,
    scop: Scop,
    program: ir.Program,
    entry: str,
    shared_bytes: extent.Extent,
    private_bytes: extent.Extent,
) -> KernelInfo:
    """What a caller of a kernel must know.

    entry: its symbol in the object code
    shared_bytes, private_bytes: workspace of the whole call, and of each worker slot
    """
    return KernelInfo(
        entry=entry,
        arguments=tuple(
            ArrayInfo(
                buffer.name,
                buffer.dtype,
                "output" if buffer.name in loops.written else "input",
                tuple(extent.from_expr(e) for e in buffer.callers_shape),
                None if buffer.strides is None else tuple(extent.from_expr(e) for e in buffer.strides),
            )
            for buffer in loops.arguments
        ),
        parameters=loops.sizes,
        shared_bytes=shared_bytes,
        private_bytes=private_bytes,
        is_parallel=any(isinstance(s, For) and s.kind == "parallel" for s in walk(loops.body)),
        sites=tuple(SiteInfo(site.array, site.dimension, site.span) for site in loops.sites),
        conditions=tuple(ConditionInfo(condition_text(c), extent.from_condition(c)) for c in program.conditions),
        in_place=in_place(scop, program),
    )


def as_extent(amount: int | Expr) -> extent.Extent:
    """An amount that a module tells, as a call evaluates it."""
    return amount if isinstance(amount, int) else extent.from_expr(amount)


def in_place(scop: Scop, program: ir.Program) -> tuple[tuple[str, str], ...]:
    """Pairs (result, input) that may be the same memory.

    Every instance that reads an element of the input is the one that writes that element of the result, after
    reading it, and nothing else writes the result.
    """
    pairs = []
    for result in program.results:
        writers = scop.writers(result)
        for parameter in program.parameters:
            if program.tensor(parameter).dtype != program.tensor(result).dtype:
                continue
            readers = {s.name for s in scop.statements if any(a.read.tensor == parameter for a in s.reads)}
            same = all(
                access.read.boundary is None and _is_same_element(access.read.subscripts, writer.subscripts)
                for writer in writers
                for access in writer.reads
                if access.read.tensor == parameter
            )
            plain = all(w.role == "define" for w in writers) and len(writers) == 1
            if plain and readers <= {w.name for w in writers} and same:
                pairs.append((result, parameter))
    return tuple(pairs)


def _is_same_element(read: tuple[ir.Subscript, ...], written: tuple[ir.Subscript, ...]) -> bool:
    """Whether a reference in a definition is to the element that it defines."""
    return read == written and all(isinstance(s, Affine) and axes_of(s) for s in read)
