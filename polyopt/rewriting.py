"""The equations that schedules are made for: every rewrite of a program in its order, and the scop of what comes out.

Each rewrite stands in a module of its own in `fusion` and says when it is worth it; here is only what follows what.
With strict numerics every result stays the same to the last bit: sums keep their order, none is nested, and none
runs in one pass with its maximum.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field, replace

from polyopt import dots, picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine
from polyopt.fusion import (
    cascade,
    compared,
    converted,
    device_sums,
    ends,
    factors,
    filters,
    fronts,
    joined,
    lift,
    long_sums,
    margins,
    narrowed,
    nested,
    offsets,
    partials,
    positions,
    prefixes,
    privatized,
    running,
    shared,
    short_sums,
    symmetric,
    turned,
    unguarded,
)
from polyopt.fusion import decide as fusion_decide
from polyopt.fusion import rewrite as rewrites
from polyopt.fusion.columns import Unfolded, unfold
from polyopt.options import Options
from polyopt.poly import dependence, extract
from polyopt.poly.dependence import Dependences
from polyopt.poly.scop import Scop
from polyopt.target import GPU_OPS_PER_BYTE

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """The program after rewrites, its scop, and what one-pass reductions ask of the fusion.

    rows:  for each statement of a cascade, the loops that it shares, outermost first
    apart: tensors of partial results, which threads fill before others read them
    notes: a sentence for each cascade, each joined axis and each sum that is written out
    """

    program: ir.Program
    scop: Scop
    dependences: Dependences
    rows: Mapping[str, tuple[tuple[str, Affine], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()


def plain(program: ir.Program, options: Options) -> Rewritten:
    """Folded and inlined, and nothing more."""
    program, kept = _separated(program, options)
    return _extracted(rewrites.rewrite(program, numerics=options.numerics, kept=kept), options)


def rewrite(program: ir.Program, options: Options) -> Rewritten:
    """The program that is worth a schedule on the options' target."""
    program, kept = _separated(positions.narrow(program), options)
    short = short_sums.decide(program)
    spare = GPU_OPS_PER_BYTE if options.is_on_gpu else 0
    short_program = short_sums.apply(program, short)
    folded = rewrites.rewrite(short_program, numerics=options.numerics, ops_per_byte=spare, kept=kept)
    mirrored = _mirrored(folded, kept, options)
    few_bits = _in_few_bits(mirrored.program, options)
    stepped = _stepped(few_bits.program, options)
    chained = _nested(stepped.program, options)
    whole = _unguarded(chained.program, options)
    same = _converted(whole.program, options)
    across = _along_filters(same.program, options)
    wide = _widened(across.program, options)
    unfolded = _unfolded(wide.program, options)
    side = _turned(unfolded.program, options)
    together = _joined(side.program, options)
    ended = _ended(together.program, options)
    fronted = _fronted(ended.program, options)
    own = privatized.privatize(fronted.program, options.target, reorder=not options.is_strict)
    parts = (
        mirrored,
        few_bits,
        stepped,
        chained,
        whole,
        same,
        across,
        wide,
        unfolded,
        side,
        together,
        ended,
        fronted,
        own,
    )
    notes = (*map(str, short), *(note for part in parts for note in part.notes))
    return _in_one_pass(own.program, options, notes) or _in_parts(own, options, notes)


def _separated(program: ir.Program, options: Options) -> tuple[ir.Program, frozenset[str]]:
    """Values that are compared with their extremum as tensors. Strict numerics compute them alike everywhere."""
    return (program, frozenset()) if options.is_strict else compared.separate(program)


def _mirrored(program: ir.Program, kept: frozenset[str], options: Options) -> symmetric.Mirrored:
    """Symmetric products by halves, which what uses them reads. Tiles of a GPU are rectangles."""
    mirrored = symmetric.Mirrored(program) if options.is_on_gpu else symmetric.mirror(program)
    if not mirrored.notes:
        return mirrored
    return replace(mirrored, program=rewrites.inline(mirrored.program, kept=kept))


def _in_few_bits(program: ir.Program, options: Options) -> narrowed.Narrowed:
    """Integers in 16 bits where none needs more. Registers of a GPU have 32."""
    return narrowed.Narrowed(program) if options.is_on_gpu else narrowed.narrow(program)


def _stepped(program: ir.Program, options: Options) -> prefixes.Stepped:
    """Sums over prefixes from one another. Threads of a GPU would wait for each other."""
    if options.is_on_gpu:
        return prefixes.Stepped(program)
    return prefixes.step(program, in_order=options.is_strict)


def _nested(program: ir.Program, options: Options) -> nested.Nested:
    """Products of several factors as sums inside sums. A GPU has one kernel for each equation."""
    if options.is_on_gpu or options.is_strict:
        return nested.Nested(program)
    return nested.nest(program, reorder=options.numerics == "fast")


def _unguarded(program: ir.Program, options: Options) -> unguarded.Unguarded:
    """Products under conditions, computed everywhere. Tiles of a GPU are rectangles; a processor's loops end where a
    condition does."""
    return unguarded.unguard(program) if options.is_on_gpu else unguarded.Unguarded(program)


def _converted(program: ir.Program, options: Options) -> converted.Converted:
    """Narrow factors of f32 as f32, where tensor cores then multiply them, in parts."""
    fast = options.is_on_gpu and options.numerics == "fast"
    return converted.convert(program) if fast else converted.Converted(program)


def _along_filters(program: ir.Program, options: Options) -> filters.Turned:
    """Sums over windows of short rows with lanes along their filters. Threads of a GPU share tiles of windows; sums in
    order pack no filters."""
    if options.is_on_gpu or options.is_strict:
        return filters.Turned(program)
    return filters.turn(program, options.target, strided=_strided(options))


def _strided(options: Options) -> set[str]:
    """The arguments whose elements do not follow one another."""
    return {name for name, layout in options.layouts.items() if layout is not None}


def _widened(program: ir.Program, options: Options) -> margins.Widened:
    """What sums read beyond edges from copies. Threads of a GPU ask where an edge is."""
    if options.is_on_gpu or not picks.choose("copy margins", True, lambda: (True, False)):
        return margins.Widened(program)
    return margins.widen(program)


def _unfolded(program: ir.Program, options: Options) -> Unfolded:
    """Windows that many results read as columns. Threads of a GPU share tiles of windows; sums in order, as strict
    numerics want them, would have whole columns written, and not blocks of them."""
    if options.is_on_gpu or options.is_strict:
        return Unfolded(program)
    return unfold(program, options.target)


def _turned(program: ir.Program, options: Options) -> turned.Turned:
    """Axes of contractions side by side. A GPU joins no axes."""
    if options.is_on_gpu or options.is_strict:
        return turned.Turned(program)
    return turned.turn(program, options.target)


def _joined(program: ir.Program, options: Options) -> joined.Joined:
    """Axes that all arrays walk together as one. A GPU deals axes out to its threads apart."""
    if options.is_on_gpu:
        return joined.Joined(program)
    return joined.join(program, strided=_strided(options), reorder=not options.is_strict)


def _ended(program: ir.Program, options: Options) -> ends.Ended:
    """Last columns that vectors would leave almost empty by themselves. A GPU has lanes enough; sums in order run along
    no sum."""
    if options.is_on_gpu or options.is_strict:
        return ends.Ended(program)
    return ends.take_apart(program, options.target)


def _fronted(program: ir.Program, options: Options) -> fronts.Fronted:
    """Results of wavefronts from temporaries. Threads of a GPU read and write apart as well as side by side."""
    return fronts.Fronted(program) if options.is_on_gpu else fronts.copy_out(program)


def _in_one_pass(plain: ir.Program, options: Options, notes: tuple[str, ...]) -> Rewritten | None:
    """Sums that follow a maximum in one pass with it; None where there are none. What a block of a processor's cache
    saves a GPU has room for, and its tiles of products need rows and columns of any length (decision 7)."""
    if options.is_strict or options.is_on_gpu:
        return None
    program = lift.maxima(plain)
    if all(cascade.decide(program, tensor.name) is None for tensor in program.tensors):
        return None
    found = _extracted(program, options, notes)
    for tensor in program.tensors:
        plan = cascade.decide(found.program, tensor.name)
        if plan is None or not picks.choose(f"{tensor.name} in one pass", True, lambda: (True, False)):
            continue
        one_pass, blocks = running.apply(found.program, plan)
        one = _extracted(one_pass, options)
        rows = {**found.rows, **blocks.shared_rows(one.scop, taken=found.rows)}
        if fusion_decide.can_share(one.scop, one.dependences, rows):
            found = replace(one, rows=rows, notes=(*found.notes, str(plan)))
        else:
            _LOG.warning("%s: not in one pass, its parts need loops of their own: %s", program.name, plan)
    return found


def _in_parts(own: privatized.Copied, options: Options, notes: tuple[str, ...]) -> Rewritten:
    """Long sums with few results as partial sums, where the order of terms is free."""
    program, gpu = own.program, options.target.gpu
    if gpu is not None:
        few = () if options.is_strict else device_sums.decide(program, gpu)
        parted = partials.split(program, few)
        found = _once(parted, options, (*notes, *map(str, few)))
        partial = (*own.copies, *(tensor.name for tensor in parted.tensors[len(program.tensors) :]))
        return replace(found, rows=device_sums.rows(parted, found.scop, partial))
    if options.is_strict:
        return _once(program, options, notes)
    plan = partials.decide(program, options.target)
    more = long_sums.decide(program, options.target, {partial.equation for partial in plan})
    if more and shared.decide(program, cache_bytes=options.target.l2_bytes // 4) is not None:
        more = ()  # a row is passed over as it is
    some = partials.apply(program, plan)
    parted = partials.apply(some, more)
    found = _once(parted, options, (*notes, *map(str, (*plan, *more))))
    return replace(found, apart=frozenset(tensor.name for tensor in parted.tensors[len(some.tensors) :]))


def _once(program: ir.Program, options: Options, notes: tuple[str, ...]) -> Rewritten:
    """What a sum and its consumer both compute, and what a sum repeats, computed once. Threads of a GPU compute it
    again."""
    if options.is_on_gpu:
        return _extracted(program, options, notes)
    value = shared.decide(program, cache_bytes=options.target.l2_bytes // 4)
    if value is not None and picks.choose(f"{value.tensor} once", True, lambda: (True, False)):
        program, notes = shared.apply(program, value), (*notes, str(value))
    narrow = _narrowed(program, options)
    factored = factors.take_out(narrow.program)
    return _extracted(factored.program, options, (*notes, *narrow.notes, *factored.notes))


def _narrowed(program: ir.Program, options: Options) -> offsets.Distributed:
    """Offsets out of products that dot instructions then compute."""
    if not dots.available(options.target) or not picks.choose("take offsets out", True, lambda: (True, False)):
        return offsets.Distributed(program)
    return offsets.distribute(program)


def _extracted(program: ir.Program, options: Options, notes: tuple[str, ...] = ()) -> Rewritten:
    scop = extract.extract(program)
    return Rewritten(program, scop, dependence.compute(scop, strict=options.is_strict), notes=notes)
