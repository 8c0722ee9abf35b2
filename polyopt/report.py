"""The report of a kernel: its work, its traffic, what was decided and why, and what was proved."""

from __future__ import annotations

import math
from typing import Protocol

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.fusion.plan import FusionPlan
from polyopt.fusion.rewrite import cost
from polyopt.loops.ir import LoopProgram
from polyopt.poly.legality import Proof
from polyopt.poly.scop import Array, Scop, Statement
from polyopt.poly.storage import StoragePlan
from polyopt.runtime.extent import Extent, evaluate, from_affine
from polyopt.runtime.extent import text as extent_text
from polyopt.runtime.kernel import KernelInfo
from polyopt.tiling.extents import ASSUMED, Extents
from polyopt.tiling.plan import TilingPlan


class Stages(Protocol):
    """What a report is made from."""

    @property
    def scop(self) -> Scop: ...
    @property
    def program(self) -> ir.Program: ...
    @property
    def fusion(self) -> FusionPlan: ...
    @property
    def tiling(self) -> TilingPlan: ...
    @property
    def mapping(self) -> object: ...
    @property
    def storage(self) -> StoragePlan: ...
    @property
    def proof(self) -> Proof: ...
    @property
    def fallback(self) -> str: ...
    @property
    def loops(self) -> LoopProgram: ...
    @property
    def info(self) -> KernelInfo: ...


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one kernel. Counts are of the bounding boxes of the domains, so upper bounds.

    flops: scalar operations; bytes: compulsory traffic, inputs and results once each
    temporary_bytes: workspace that a call allocates for its temporaries; private_bytes: and for each thread.
        Exactly what is allocated; an expression where sizes are symbolic.
    assumed: sizes that are symbolic, and count as `tiling.extents.ASSUMED` in operations and bytes
    notes: what else a caller should know, in a sentence each
    """

    name: str
    flops: int
    bytes: int
    temporary_bytes: Extent
    private_bytes: Extent
    fusion: str
    tiling: str
    mapping: str
    storage: str
    proof: str
    fallback: str = ""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def intensity(self) -> float:
        """Operations per byte of compulsory traffic."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def bound(self) -> str:
        """What limits the kernel on a processor that does about 4 operations in the time of one byte."""
        return "compute" if self.intensity > 4 else "memory"

    def __str__(self) -> str:
        sections = {
            "fusion": self.fusion,
            "tiling": self.tiling,
            "threads": self.mapping,
            "storage": self.storage,
            "claims": self.proof,
        }
        lines = [
            f"{self.name}{_assumption(self.assumed)}",
            f"  operations            {self.flops}",
            f"  compulsory bytes      {self.bytes}",
            f"  operations per byte   {self.intensity:.2f}, so bound by {self.bound}",
            f"  temporary bytes       {extent_text(self.temporary_bytes)}",
            f"  and for each thread   {extent_text(self.private_bytes)}",
        ]
        if self.fallback:
            lines.append(f"  FALLBACK to the plain order: {self.fallback}")
        lines += [f"  {note}" for note in self.notes]
        for title, text in sections.items():
            lines.append(f"{title}:")
            lines += [f"  {line}" for line in text.splitlines() if line]
        return "\n".join(lines)


def make(stages: Stages) -> Report:
    """The report of a lowering."""
    scop, extents = stages.scop, Extents(stages.scop)
    arguments = [array for array in scop.arrays if array.role != "local"]
    return Report(
        name=scop.name,
        flops=sum(_operations(s) * extents.instances(s.name) for s in scop.statements if extents.happens(s.name)),
        bytes=sum(_bytes(array, scop.sizes) for array in arguments),
        temporary_bytes=stages.info.shared_bytes,
        private_bytes=stages.info.private_bytes,
        fusion="\n".join([*stages.fusion.copies, *map(str, stages.fusion.decisions)]) or "nothing to fuse",
        tiling=str(stages.tiling),
        mapping=str(stages.mapping),
        storage=str(stages.storage),
        proof=str(stages.proof),
        fallback=stages.fallback,
        notes=stages.loops.notes,
        assumed=scop.sizes,
    )


def _assumption(sizes: tuple[str, ...]) -> str:
    return f", with {' = '.join((*sizes, str(ASSUMED)))}" if sizes else ""


def _operations(statement: Statement) -> int:
    return cost(statement.value) + (1 if statement.is_update else 0)


def _bytes(array: Array, sizes: tuple[str, ...]) -> int:
    """Size of an array, with what is assumed of symbolic sizes."""
    assumed = dict.fromkeys(sizes, ASSUMED)
    return array.dtype.itemsize * math.prod(max(0, evaluate(from_affine(extent), assumed)) for extent in array.shape)
