"""What fusion decided: the tree of shared loops, and why each pair of groups was joined or kept apart."""

from __future__ import annotations

from polyopt.classes import dataclass
from polyopt.poly.tree import Tree, tree_text


@dataclass(frozen=True, slots=True)
class Decision:
    """One producer and one consumer.

    verdict: "fused", "kept apart"
    bytes_saved: traffic of the array between them that fusion keeps in cache or registers; 0 where unknown
    """

    producer: str
    consumer: str
    array: str
    verdict: str
    reason: str
    bytes_saved: int = 0

    def __str__(self) -> str:
        saved = f", {self.bytes_saved} bytes of {self.array} stay close" if self.bytes_saved else ""
        return f"{self.producer} -> {self.consumer}: {self.verdict}: {self.reason}{saved}"


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """The loop tree before tiling and the decisions behind it.

    copies: what tiles compute anew or copy for themselves, and what goes in batches, a sentence each
    """

    tree: Tree
    decisions: tuple[Decision, ...]
    copies: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [tree_text(self.tree)]
        if self.copies:
            lines += ["", *self.copies]
        if self.decisions:
            lines += ["", *(str(decision) for decision in self.decisions)]
        return "\n".join(lines)
