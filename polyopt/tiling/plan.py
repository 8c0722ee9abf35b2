"""What tiling decided for each nest: tile sizes, the vector axis, the register tile, and why."""

from __future__ import annotations

from polyopt.classes import dataclass


@dataclass(frozen=True, slots=True)
class NestPlan:
    """Decisions for a chain of coincident loops, or for one innermost reduction loop.

    chain:          names of the loops, outermost first, before tiling
    order:          the chain's loops as they will run, outermost first; a tiled one stands for its tile loop
    tiles:          points per tile of each tiled loop; its point loop moves innermost
    rows:           the loop whose points are unrolled into a register tile; None without one. The points of all tiled
                    loops are, where none of the chain becomes lanes
    vector:         the loop whose points become lanes; None where no loop may or should
    kept_bytes:     what one tile touches, in bytes; 0 where unknown
    block:          points of the vector loop whose tiles pass by before a reduction goes on; 0: one tile at a time
    group:          the loop whose points one instruction takes at once, and how many; it is tiled, and stands innermost
    is_apart:       the points of a register row stand a tile apart, so that each is a stream of its own
    passes:         with a block: the innermost reduction loops inside, and how many iterations each does meanwhile
    panels_first:   with passes: all rows pass by a tile's columns before the next columns come
    reason:         one sentence
    """

    chain: tuple[str, ...]
    order: tuple[str, ...]
    tiles: tuple[tuple[str, int], ...]
    rows: str | None
    vector: str | None
    reason: str
    kept_bytes: int = 0
    block: int = 0
    passes: tuple[tuple[str, int], ...] = ()
    panels_first: bool = False
    group: tuple[str, int] | None = None
    is_apart: bool = False

    def tile(self, loop: str) -> int | None:
        return dict(self.tiles).get(loop)

    def __str__(self) -> str:
        parts = [f"nest {', '.join(self.chain)}:"]
        if self.tiles:
            parts.append("tiles " + ", ".join(f"{name} by {size}" for name, size in self.tiles) + ";")
        if self.block:
            each = ", ".join(f"{size} of {name}" for name, size in self.passes)
            parts.append(f"blocks of {self.block} pass by {each};")
        if self.rows:
            parts.append(f"register rows {self.rows}{', a tile apart' if self.is_apart else ''};")
        parts.append(f"vector {self.vector};" if self.vector else "no vector loop;")
        if self.group:
            parts.append(f"groups of {self.group[1]} along {self.group[0]};")
        return " ".join(parts) + f" {self.reason}"


@dataclass(frozen=True, slots=True)
class TilingPlan:
    """One plan per nest, in order of the tree."""

    nests: tuple[NestPlan, ...]

    def __str__(self) -> str:
        return "\n".join(str(nest) for nest in self.nests) or "nothing to tile"
