"""The chain of values from a program to a kernel, each one made when it is asked for.

`Lowering` is what `op.lower` returns: every stage is an attribute. `build` runs the chain to object code.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import islpy as isl

from polyopt import calling, picks, rewriting
from polyopt import report as reports
from polyopt import text as texts
from polyopt.classes import dataclass
from polyopt.codegen_c import ahead, emit, mapping, streams
from polyopt.codegen_c.llvm_text import MOST_LINES_OF_ALL, TooLong
from polyopt.dots import available
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, condition_text
from polyopt.dsl.text import header_text
from polyopt.errors import ArgumentError, DefinitionError, LegalityError, ScheduleError
from polyopt.fusion import attach
from polyopt.fusion import decide as fusion_decide
from polyopt.fusion.plan import FusionPlan
from polyopt.loops import beside, edges, interior, wraps
from polyopt.loops import lower as loops_lower
from polyopt.loops import split as loops_split
from polyopt.loops.ir import LoopProgram
from polyopt.options import Options
from polyopt.picks import Question
from polyopt.poly import cycles, dependence, extract, legality, ranges, skewed, storage
from polyopt.poly import tree as trees
from polyopt.poly.dependence import Dependences
from polyopt.poly.legality import Proof
from polyopt.poly.scop import Scop
from polyopt.poly.space import isl_errors, operation_budget
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Tree
from polyopt.rewriting import Rewritten
from polyopt.room import with_room
from polyopt.runtime import jit
from polyopt.runtime.kernel import KernelInfo
from polyopt.target import Target
from polyopt.tiling import apply as tiling_apply
from polyopt.tiling import copies, dots, pack
from polyopt.tiling import decide as tiling_decide
from polyopt.tiling.plan import TilingPlan
from polyopt.working import stage, working

if TYPE_CHECKING:
    from polyopt.codegen_c.emit import LlvmModule
    from polyopt.export import Saved

_LOG = logging.getLogger(__name__)
_STAGE_LOGS = {name: logging.getLogger(f"polyopt.{name}") for name in ("schedule", "fusion", "codegen")}


PROOF_OPERATIONS = 3_000_000
"""What isl may do to prove one schedule: a second or two, where our operators take a twentieth of one."""

STATEMENT_OPERATIONS = 50_000
"""The same for each statement, of programs with many: layers of a network take 9,000."""

MOST_LINES = 30_000
"""Of LLVM's instructions in one function: some seconds of its work, which grows faster than they do. Kernels have a few
thousand, as a rule."""

PLAN_OPERATIONS = 400_000
"""What isl may do for one plan (copies, fusion, tiles and storage); beyond it, a plainer plan is made."""

MANY_EQUATIONS = 100
"""For each so many of which a plan has that much."""


@dataclass(frozen=True, slots=True)
class Built:
    """Object code, how to call it, and its report."""

    object_code: bytes
    info: KernelInfo
    report: str


def resolve(program: ir.Program) -> ir.Program:
    """The program with index ranges and shapes found and its meaning checked.

    Raises `DefinitionError`, `ShapeError` or `BoundsError` with a concrete witness.
    """
    return ranges.resolve(program)


def lower(program: ir.Program, options: Options) -> Lowering:
    """The stages of a resolved program."""
    return Lowering(program, options)


def build(lowering: Lowering) -> Built:
    """Object code of a lowering, its schedule proved legal."""
    target = lowering.options.target
    return Built(jit.compile_object(lowering.module.text, target), lowering.info, str(lowering.report()))


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """What tiles compute or copy for themselves.

    result: the scop with these statements in it
    groups: of the statements that dot instructions compute, or copy for
    shared: loops that contractions and their copies run in together
    """

    windows: attach.AttachPlan
    panels: pack.PackPlan
    result: attach.Attached
    products: dots.DotPlan = dots.DotPlan()
    groups: Mapping[str, copies.Grouped] = field(default_factory=dict)
    shared: Mapping[str, tuple[tuple[str, Affine], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """What follows from fusion.

    fallback: why the plans were given up for the plain order; empty as a rule
    proof:    the ledger of claims, once they are proved
    """

    tiling: TilingPlan
    mapping: mapping.CpuMapping
    tree: Tree
    schedule: isl.Schedule
    storage: StoragePlan
    fallback: str = ""
    proof: Proof = Proof(())


class Mapped(Protocol):
    """What a proof is about."""

    @property
    def tree(self) -> Tree: ...
    @property
    def schedule(self) -> isl.Schedule: ...
    @property
    def storage(self) -> StoragePlan: ...


@dataclass(frozen=True, eq=False)
class Lowering:
    """All stages of one problem.

    program:  the equations with their ranges, shapes and sizes
    given_up: why richer plans were given up; then nothing is copied, no statements share a loop, and every component of
              mutually dependent statements has loops of its own, in the order of the dependences
    no_pairs: why bf16 is widened though the plans with pairs of it were made first; they have their loops twice
    one_version: why symbolic sizes, many and few, have one version without copies; plans with copies were made first
    """

    program: ir.Program
    options: Options
    given_up: str = ""
    no_pairs: str = ""
    one_version: str = ""

    @stage
    def rewritten(self) -> ir.Program:
        """The program after exact rewrites."""
        return self._rewritten.program

    @stage
    def _rewritten(self) -> Rewritten:
        if self.given_up:
            return rewriting.plain(self.program, self.options)
        with self._steered():
            return rewriting.rewrite(self.program, self.options)

    @stage
    def _copies(self) -> Copies:
        """Producers that tiles compute anew, and operands that tiles copy."""
        scop, dependences = self._rewritten.scop, self._rewritten.dependences
        if self._rewritten.rows:  # its blocks fit the cache
            return Copies(attach.AttachPlan(), pack.PackPlan(), attach.Attached(scop, {}))
        if self.given_up:
            return Copies(attach.AttachPlan(), pack.PackPlan(), attach.apply(scop, attach.AttachPlan()))
        with self._bounded("choose what tiles copy"):
            windows = self._windows(scop, dependences)
            attached = attach.apply(scop, windows)
            if windows.attachments:  # its tiles fit the cache, and have changed the dependences
                return Copies(windows, pack.PackPlan(), attached)
            may_pair = not (self.options.is_strict or self.no_pairs)
            products = dots.decide(scop, dependences, self.options.target, floats=may_pair)
            panels = pack.decide(scop, dependences, self.options.target, products.panels, self.options.layouts)
            if self.one_version and panels.few is not None:
                panels, products = pack.PackPlan(), dots.DotPlan()
            if panels.packings and not picks.choose("pack operands", True, lambda: (True, False)):
                panels, products = pack.PackPlan(), dots.DotPlan()
            packed = dots.apply(scop, copies.apply(scop, dependences, panels), products)
            attached = attach.Attached(packed.scop, packed.rows)
            return Copies(windows, panels, attached, products, packed.groups, packed.shared)

    def _windows(self, scop: Scop, dependences: Dependences) -> attach.AttachPlan:
        l2_bytes, half = self.options.target.l2_bytes, 2
        windows = attach.decide(scop, dependences, cache_bytes=l2_bytes // half)
        if not windows.attachments:
            return windows
        if not picks.choose("compute windows in tiles", True, lambda: (True, False)):
            return attach.AttachPlan()
        share = picks.choose("part of the second cache that tiles of windows fill, one in", half, lambda: (2, 4, 1, 8))
        return windows if share == half else attach.decide(scop, dependences, cache_bytes=l2_bytes // share)

    @contextmanager
    def _bounded(self, what: str) -> Iterator[None]:
        """A block in which decisions are made, and isl may do only so much.

        Beyond that, or where isl fails, a `ScheduleError`. The options' picks decide, and what is asked is noted.
        """
        most = PLAN_OPERATIONS * -(-len(self.program.equations) // MANY_EQUATIONS)
        with isl_errors(f"{what} of '{self.program.name}'"), operation_budget(most), self._steered():
            yield

    @contextmanager
    def _steered(self) -> Iterator[None]:
        with picks.steered(self.options.picks) as steering:
            yield
        if steering is not None:
            self._asked.update(steering.questions)

    @cached_property
    def _asked(self) -> dict[str, Question]:
        return {}

    @property
    def questions(self) -> tuple[Question, ...]:
        """What the deciders asked, in order; empty unless `options.picks` is given, if only empty."""
        _ = self.settled
        return tuple(self._asked.values())

    @property
    def scop(self) -> Scop:
        """Statements with domains and access relations; producers that tiles recompute have tile axes."""
        return self._copies.result.scop

    @property
    def domains(self) -> isl.UnionSet:
        """All instances of all statements."""
        return with_room(self._domains)

    def _domains(self) -> isl.UnionSet:
        union = isl.UnionSet("{ }")
        for statement in self.scop.statements:
            union = union.union(isl.UnionSet.from_set(statement.domain))
        return union

    @property
    def accesses(self) -> Mapping[str, isl.UnionMap]:
        """Instances to elements: "reads" and "writes"."""
        return with_room(self._accesses)

    def _accesses(self) -> Mapping[str, isl.UnionMap]:
        reads = isl.UnionMap("{ }")
        writes = isl.UnionMap("{ }")
        for statement in self.scop.statements:
            writes = writes.union(isl.UnionMap.from_map(statement.write))
            for access in statement.reads:
                reads = reads.union(isl.UnionMap.from_map(access.relation))
        return {"reads": reads, "writes": writes}

    @stage
    def dependences(self) -> Dependences:
        """What must run before what."""
        if self.scop is self._rewritten.scop:  # nothing is copied
            return self._rewritten.dependences
        return dependence.compute(self.scop, strict=self.options.is_strict)

    @stage
    def fusion(self) -> FusionPlan:
        """Which statements share which loops, and why."""
        rows, shared = self._copies.result.rows, {**self._rewritten.rows, **self._copies.shared}
        dependences = self.dependences  # every plan needs them, so no plan's operations go into them
        try:
            with self._bounded("choose the loops"):
                batch = 0 if self.options.is_on_gpu or self.given_up else fusion_decide.BATCH
                merge = not self.given_up
                outer = not self.options.is_on_gpu
                apart = self._rewritten.apart
                plan = fusion_decide.decide(
                    self.scop, dependences, rows, shared, merge=merge, batch=batch, outer=outer, apart=apart
                )
        except DefinitionError:
            self._refuse_cycles()
            raise
        made = (*self._copies.windows.attachments, *self._copies.panels.packings, *self._copies.products.products)
        said = [f"bf16 is not multiplied in pairs: {self.no_pairs}"] if self.no_pairs else []
        said += [f"operands are not copied for many rows: {self.one_version}"] if self.one_version else []
        plan = replace(plan, copies=(*self._rewritten.notes, *said, *(str(copy) for copy in made), *plan.copies))
        for decision in plan.decisions:
            _STAGE_LOGS["fusion"].info("%s: %s", self.program.name, decision)
        return plan

    def _refuse_cycles(self) -> None:
        """Raise `DefinitionError` that names the elements of a cycle as the user wrote them, before any rewrite."""
        scop = extract.extract(self.program)
        cycle = cycles.find(scop, dependence.compute(scop).ordered)
        if cycle:
            raise cycles.error(cycle)

    @stage
    def _decided(self) -> Decided:
        """Everything after fusion, proved; without tiles, lanes and threads where the proof fails."""
        fused = self.fusion.tree  # where there is none, there is none without tiles either
        if self.given_up:
            return replace(self._decide(fused, simple=True), fallback=self.given_up)
        try:
            return self._decide(fused, simple=False)
        except (LegalityError, ScheduleError) as error:
            _LOG.warning("%s: %s; falling back to the plain order", self.program.name, error.what)
            return replace(self._decide(fused, simple=True), fallback=error.what)

    @property
    def settled(self) -> Self:
        """The lowering whose plans are used: this one, or where they cannot be made, proved or scanned, or lead to a
        kernel that LLVM would take minutes for, one without pairs of bf16 or versions for many rows, then one without
        copies and shared loops.

        Raises `ScheduleError` or `LegalityError` where even that one is not proved.
        """
        found: Self = self._settled
        return found

    @stage
    def _settled(self) -> Any:
        try:
            self._check()
        except (LegalityError, ScheduleError) as error:
            if self.given_up:
                raise
            return self._plainer(error.what).settled
        return self

    def _plainer(self, why: str) -> Self:
        """The lowering to try next."""
        copies = vars(self).get("_copies")
        if copies is not None and copies.products.screened:
            _LOG.warning("%s: %s; widening bf16 instead of multiplying pairs of it", self.program.name, why)
            return replace(self, no_pairs=why)
        if not self.one_version and self.program.sizes and (copies is None or copies.panels.few is not None):
            _LOG.warning("%s: %s; without copies for many rows", self.program.name, why)
            return replace(self, one_version=why)
        _LOG.warning("%s: %s; falling back to one nest a statement", self.program.name, why)
        return replace(self, given_up=why)

    def _check(self) -> None:
        """Raise `ScheduleError` or `LegalityError` where the plans lead to no kernel, or, unless they are the plainest
        ones, to one of too many instructions."""
        if self.given_up:
            _ = self._scanned
            return
        _ = self._module

    def _decide(self, shared: Tree, *, simple: bool) -> Decided:
        with self._bounded("plan tiles and storage"):
            decided = self._plan(trees.numbered(shared), simple=simple)
        _STAGE_LOGS["schedule"].info("%s:\n%s", self.program.name, trees.tree_text(decided.tree))
        return replace(decided, proof=self._prove(decided, self.dependences))

    def _plan(self, fused: Tree, *, simple: bool) -> Decided:
        tiling = TilingPlan(()) if simple else self._tiles(fused)
        tiled = tiling_apply.apply(fused, tiling)
        machine, layouts = self.options.target, self.options.layouts
        threads = mapping.CpuMapping((), ()) if simple else mapping.decide(self.scop, tiled, machine, layouts)
        tree = mapping.apply(tiled, threads)
        schedule = trees.as_schedule(tree, self.scop)
        places = (
            storage.whole_plan(self.scop) if simple else storage.decide(self.scop, self.dependences, tree, schedule)
        )
        return Decided(tiling, threads, tree, schedule, places)

    def _tiles(self, fused: Tree) -> TilingPlan:
        return tiling_decide.decide(
            self.scop,
            fused,
            self.options.target,
            self._copies.panels.tiles,
            self._copies.groups,
            {**self.options.layouts, **skewed.layouts(self.scop, fused)},
        )

    def _prove(self, decided: Mapped, dependences: Dependences) -> Proof:
        kinds = trees.kinds(decided.tree)
        most = max(PROOF_OPERATIONS, STATEMENT_OPERATIONS * len(self.scop.statements))
        with isl_errors(f"prove the schedule of '{self.program.name}'"), operation_budget(most):
            return legality.prove(self.scop, dependences, decided.schedule, kinds, decided.storage)

    @property
    def tiling(self) -> TilingPlan:
        """Tiles, register tiles and lanes, and why."""
        return self.settled._decided.tiling

    @property
    def mapping(self) -> mapping.CpuMapping:
        """Which loops run on several threads."""
        return self.settled._decided.mapping

    @property
    def tree(self) -> Tree:
        """The final loop tree."""
        return self.settled._decided.tree

    @property
    def schedule(self) -> isl.Schedule:
        """The final schedule tree."""
        return self.settled._decided.schedule

    @property
    def storage(self) -> StoragePlan:
        """Where each temporary lives."""
        return self.settled._decided.storage

    @property
    def fallback(self) -> str:
        """Why the plain order was taken; empty where the plans were proved, as they should be."""
        return self.settled._decided.fallback

    @property
    def loops(self) -> LoopProgram:
        """The loop program."""
        return self.settled._loops

    @stage
    def _loops(self) -> LoopProgram:
        in_place = calling.in_place(self.scop, self.program)
        mapped = self._decided.mapping
        streamed = ahead.apply(streams.apply(self._scanned, mapped.streams, in_place), mapped.ahead)
        return beside.write_out(edges.split(wraps.split(loops_split.split(interior.split(streamed)))))

    @stage
    def _scanned(self) -> LoopProgram:
        """The loops that isl scans the domains with. Raises `ScheduleError` where it cannot."""
        decided = self._decided
        return loops_lower.lower(
            self.scop,
            decided.tree,
            decided.storage,
            parameters=self.program.parameters,
            results=self.program.results,
            strides=self.options.layouts,
            shapes={tensor.name: tensor.shape for tensor in self.program.tensors if tensor.shape is not None},
            local_bytes=min(loops_lower.LOCAL_BYTES, self.options.target.l1_bytes),
            screened=self._copies.products.screened,
        )

    def scheduled(self, tree: Tree, places: StoragePlan, target: Target) -> Lowering:
        """The same operator under another schedule tree and storage plan, which are proved, for a target.

        Raises `LegalityError` where they break a rule, with a violating pair of instances.
        """
        return working(self.program, lambda: self._scheduled(tree, places, target))

    def _scheduled(self, tree: Tree, places: StoragePlan, target: Target) -> Lowering:
        other = Lowering(self.program, replace(self.options, target=target))
        kept = ("rewritten", "_copies", "dependences", "fusion")
        vars(other).update({name: value for name, value in vars(self).items() if name in kept})
        threads = mapping.CpuMapping((), ())
        decided = Decided(TilingPlan(()), threads, tree, trees.as_schedule(tree, self.scop), places)
        vars(other)["_decided"] = replace(decided, proof=self._prove(decided, self.dependences))
        return other

    @property
    def proof(self) -> Proof:
        """The ledger of proved claims."""
        return self.settled._decided.proof

    def verify(self) -> Proof:
        """Proves once more, with dependences computed anew, that the final schedule computes what the equations say.

        Every compile has proved it when its plans were made; this is for those who doubt what was kept since.

        Raises `LegalityError` with a violating pair of instances.
        """
        used = self.settled

        def prove() -> Proof:
            return used._prove(used._decided, dependence.compute(used.scop, strict=self.options.is_strict))

        return working(self.program, prove)

    @property
    def module(self) -> LlvmModule:
        """The LLVM IR of the kernel."""
        return self.settled._module

    @stage
    def _module(self) -> LlvmModule:
        target = self.options.target
        try:
            module = emit.emit(
                self._loops,
                vector_bits=target.vector_bits,
                numerics=self.options.numerics,
                dots=available(target),
                has_scaling=target.has("avx512f"),
                most_lines=None if self.given_up else MOST_LINES,
                registers=target.register_names,
            )
        except TooLong:
            raise ScheduleError(
                f"the kernel of '{self.program.name}' is too long",
                why=f"more than {MOST_LINES} lines of LLVM's instructions in a function, or {MOST_LINES_OF_ALL} "
                "times that in all",
                facts={"most": MOST_LINES},
            ) from None
        _STAGE_LOGS["codegen"].debug("%s:\n%s", self.program.name, self._loops)
        return module

    def source(self, kind: str = "c") -> str:
        """The kernel as text: "c", "llvm" or "asm". Raises `ArgumentError` for any other kind."""
        match kind:
            case "c":
                from polyopt.codegen_c import c_source

                return working(self.program, lambda: c_source.as_c(self.loops))
            case "llvm":
                return self.module.text
            case "asm":
                return jit.assembly(self.module.text, self.options.target)
            case "cuda" | "ptx":
                raise ArgumentError(f"code for a processor has no source of kind '{kind}'", fix='lower(target="cuda")')
            case _:
                raise ArgumentError(f"there is no source of kind '{kind}'", fix="one of c, llvm, asm, cuda, ptx")

    def save(self, name: str | Path) -> Saved:
        """Write the kernel for programs without Python: `name.h`, `name.c`, and `name.so`.

        The library has one function, `int64_t op(const float *x, ..., int64_t N, ...)`, which the header describes; it
        is the kernel's own machine code. Where there is no C compiler, `name.o` takes the library's place.
        Raises `ArgumentError` where the files cannot be written, and `CompileError` where the compiler fails.
        """
        from polyopt import export  # these two open with the first save
        from polyopt.codegen_c import c_entry

        text = working(self.program, lambda: c_entry.with_c_entry(self.loops, self.module))
        conditions = [condition_text(condition) for condition in self.program.conditions]
        target = self.options.target
        return export.save(name, self.loops, lambda: jit.compile_object(text, target), target, conditions)

    def report(self) -> reports.Report:
        """Flops, bytes, what was fused and why, tiles, storage and the proof."""
        return working(self.program, lambda: reports.make(self.settled))

    @stage
    def info(self) -> KernelInfo:
        """How to call the kernel."""
        module = self.module
        shared, private = calling.as_extent(module.shared_bytes), calling.as_extent(module.private_bytes)
        return calling.describe(self.loops, self.settled.scop, self.program, module.entry, shared, private)

    def __str__(self) -> str:
        return str(self.loops)

    def __repr__(self) -> str:
        return f"<lowering of {header_text(self.program)} for {self.options.target.name}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the loops, which fold."""
        return texts.fragment(self.program.name, str(self.loops))
