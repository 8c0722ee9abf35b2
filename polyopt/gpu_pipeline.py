"""The chain of values for a GPU: the same equations, fusion and proof, with blocks and threads and CUDA at its end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import islpy as isl

from polyopt import calling
from polyopt import report as reports
from polyopt.classes import dataclass
from polyopt.codegen_cuda import buffers, mapping, partition, ring_proof
from polyopt.codegen_cuda import emit as cuda_emit
from polyopt.codegen_cuda.contractions import Products
from polyopt.codegen_cuda.plan import CudaMapping
from polyopt.codegen_cuda.source import CudaSource
from polyopt.dsl import ir
from polyopt.errors import ArgumentError, LegalityError, ScheduleError
from polyopt.fusion import attach
from polyopt.loops import lower as loops_lower
from polyopt.loops import split as loops_split
from polyopt.loops.ir import Buffer, LoopProgram
from polyopt.options import Options
from polyopt.pipeline import Copies, Lowering, Mapped
from polyopt.poly import extract, storage
from polyopt.poly import tree as trees
from polyopt.poly.dependence import Dependences
from polyopt.poly.legality import Claim, Proof
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Tree
from polyopt.runtime import extent
from polyopt.runtime.cuda import compilers, ptx
from polyopt.runtime.cuda import image as images
from polyopt.runtime.cuda.image import CudaImage
from polyopt.runtime.extent import Extent
from polyopt.runtime.kernel import KernelInfo
from polyopt.target import GpuTarget
from polyopt.tiling import pack
from polyopt.tiling.plan import TilingPlan
from polyopt.working import stage

if TYPE_CHECKING:
    from polyopt.export import Saved

_LOG = logging.getLogger(__name__)

_PRODUCTS: Mapping[str, Products] = {"strict": "exact", "default": "all", "fast": "split"}
"""Instructions of the tensor cores that each kind of numerics allows."""
LOCAL_BYTES, LOCALS_BYTES = 1 << 15, 1 << 18
"""The largest temporary that a block or a thread keeps for itself, and all of them; what is larger lies in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GpuDecided:
    """What follows from fusion on a GPU.

    fallback: why simpler plans were taken; empty as a rule
    proof:    the ledger of claims, once they are proved
    """

    tiling: TilingPlan
    mapping: CudaMapping
    tree: Tree
    schedule: isl.Schedule
    storage: StoragePlan
    loops: LoopProgram
    cuda: CudaSource
    fallback: str = ""
    proof: Proof = Proof(())


@dataclass(frozen=True, slots=True)
class GpuBuilt:
    """Kernels ready to be loaded, how to call them, and their report."""

    image: CudaImage
    info: KernelInfo
    report: str

    @property
    def object_code(self) -> bytes:
        """The image as the disk cache holds it."""
        return images.as_bytes(self.image)


def build(program: ir.Program, options: Options, arch: str) -> GpuBuilt:
    """Kernels of a resolved program, their schedule proved legal.

    arch: the architecture to make machine code for, such as "sm_90"; none is made where it is empty
    Raises `CompileError`, and `BackendUnavailable` where machine code is wanted and there is no CUDA compiler.
    """
    lowering = GpuLowering(program, options)
    report, source = lowering.report(), lowering.cuda
    if not arch:
        return GpuBuilt(images.from_source(source), lowering.info, str(report))
    made = compilers.compile_text(source.text, arch, contract=source.contract)
    kinds = Counter(fault.kind for fault in made.faults)
    otherwise = [
        f"compiled {ptx.REMEDIES[kind]}: {made.compiler} would get the kernels wrong, {kind}, {number} times"
        for kind, number in kinds.items()
    ]
    report = replace(report, notes=(*report.notes, *otherwise))
    return GpuBuilt(images.from_source(source, arch=arch, cubin=made.code), lowering.info, str(report))


@dataclass(frozen=True, eq=False)
class GpuLowering(Lowering):
    """All stages of one problem for a GPU."""

    @property
    def gpu(self) -> GpuTarget:
        """The GPU that code is made for."""
        found = self.options.target.gpu
        assert found is not None, "a lowering for a GPU has a GPU for its target"
        return found

    @stage
    def _copies(self) -> Copies:
        """Nothing is copied before the loops are mapped."""
        windows = attach.AttachPlan()
        return Copies(windows, pack.PackPlan(), attach.apply(extract.extract(self.rewritten), windows))

    @stage
    def _decided(self) -> GpuDecided:  # type: ignore[override]  # what the stages below take from it is the same
        """Everything after fusion, proved and emitted; with plainer plans where that fails."""
        products = _PRODUCTS[self.options.numerics]
        attempts: Sequence[tuple[str, Callable[[Tree], CudaMapping]]] = (
            ("tensor cores", lambda tree: mapping.decide(self.scop, tree, self.gpu, products=products)),
            ("blocks and threads", lambda tree: mapping.decide(self.scop, tree, self.gpu, products="none")),
            ("a thread per point", lambda tree: mapping.decide(self.scop, tree, self.gpu, rows=False)),
            ("a single thread", lambda _: CudaMapping(())),
        )
        failures = [self.given_up] if self.given_up else []
        for number, (name, plan) in enumerate(attempts):
            try:
                return self._attempt(plan, failures)
            except (LegalityError, ScheduleError) as error:
                if number == len(attempts) - 1:
                    raise
                _LOG.warning("%s: %s do not fit: %s", self.program.name, name, error.what)
                failures.append(error.what)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, plan: Callable[[Tree], CudaMapping], failures: list[str]) -> GpuDecided:
        fused = trees.numbered(self.fusion.tree)
        mapped = plan(fused)
        tree = mapping.apply(fused, mapped)
        schedule = trees.as_schedule(tree, self.scop)
        if mapped.nests:
            places = storage.decide(self.scop, self.dependences, tree, schedule)
            places = buffers.settled(self.scop, places, tree)
        else:
            places = storage.whole_plan(self.scop)
        loops = loops_lower.lower(
            self.scop,
            tree,
            places,
            parameters=self.program.parameters,
            results=self.program.results,
            strides=self.options.layouts,
            local_bytes=LOCAL_BYTES,
            stack_bytes=LOCALS_BYTES,
        )
        loops = partition.partition(
            loops_split.split(loops), mapped.contractions, reorderable=not self.options.is_strict, blocks=self.gpu.sms
        )
        cuda = cuda_emit.emit(loops, contract=not self.options.is_strict, most_shared=self.gpu.shared_bytes)
        decided = GpuDecided(TilingPlan(()), mapped, tree, schedule, places, loops, cuda, "; ".join(failures))
        return replace(decided, proof=self._prove(decided, self.dependences))

    def _prove(self, decided: Mapped, dependences: Dependences) -> Proof:
        """As for a processor, and that what goes through rings of shared memory comes out right."""
        proof = super()._prove(decided, dependences)
        assert isinstance(decided, GpuDecided)
        rings = f"{ring_proof.prove(decided.loops)} rings"
        return Proof((*proof.claims, Claim("every piece is in its slot while it is read", rings)))

    def _check(self) -> None:
        """Raise `ScheduleError` or `LegalityError` where not even a single thread can run the loops."""
        _ = self._decided

    @property
    def mapping(self) -> CudaMapping:  # type: ignore[override]  # the other kind of mapping
        """Which loops the blocks and the threads share."""
        return self.settled._decided.mapping

    @property
    def loops(self) -> LoopProgram:
        """The loop program, cut into kernels."""
        return self.settled._decided.loops

    @property
    def cuda(self) -> CudaSource:
        """The kernels."""
        return self.settled._decided.cuda

    def source(self, kind: str = "cuda") -> str:
        """The kernels as text: "cuda" or "ptx". Raises `ArgumentError` for any other kind, and `BackendUnavailable`
        for "ptx" where there is no CUDA compiler."""
        match kind:
            case "cuda":
                return self.cuda.text
            case "ptx":
                compiled = compilers.compile_text(self.cuda.text, self.gpu.name, "ptx", contract=self.cuda.contract)
                return compiled.code.decode()
            case _:
                raise ArgumentError(f"there is no source of kind '{kind}' for a GPU", fix="one of cuda, ptx")

    def save(self, name: str | Path) -> Saved:
        """Raise `ArgumentError`: a C function is made of a kernel for a processor alone."""
        raise ArgumentError(
            f"the kernels of '{self.program.name}' cannot be saved as a C library",
            why="they are for a GPU, and a C function runs on a processor",
            fix='lower(target="cpu").save(...), or source("cuda") and source("ptx") for the kernels as text',
            facts={"name": str(name)},
        )

    def report(self) -> reports.Report:
        """As for a processor, and what a call with arrays on the host costs besides."""
        found = super().report()
        note = f"arrays on the host are copied to the GPU and back, {found.bytes} bytes a call; arrays on a GPU are not"
        return replace(found, notes=(*found.notes, note))

    @stage
    def info(self) -> KernelInfo:
        """How to call the kernels. shared_bytes: device memory for temporaries"""
        entry = self.cuda.kernels[0].name if self.cuda.kernels else ""
        workspace = _workspace(self.cuda.workspace)
        return calling.describe(self.loops, self.settled.scop, self.program, entry, workspace, 0)


def _workspace(arrays: Sequence[Buffer]) -> Extent:
    """Bytes of device memory for temporaries."""
    total: Extent = 0
    for array in arrays:
        size: Extent = array.dtype.itemsize
        for length in array.shape:
            size = _product(size, extent.from_expr(length))
        total = size if total == 0 else _sum(total, size)
    return total


def _product(left: Extent, right: Extent) -> Extent:
    return left * right if isinstance(left, int) and isinstance(right, int) else ("mul", left, right)


def _sum(left: Extent, right: Extent) -> Extent:
    return left + right if isinstance(left, int) and isinstance(right, int) else ("add", left, right)
