"""What parts of a program are asked again and again, found once for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Part = TypeVar("Part")
Fact = TypeVar("Fact")


class Once(Generic[Part, Fact]):
    """What is known of statements or expressions, found once for each object: an address is quicker to look up than
    what lies there is to compare. The objects are kept, so that no other one takes an address."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Part, Fact]] = {}

    def __call__(self, part: Part, find: Callable[[Part], Fact]) -> Fact:
        """What `find` says of a part, which it is asked once; it must always be the same `find`."""
        known = self._known.get(id(part))
        if known is None:
            known = self._known[id(part)] = part, find(part)
        return known[1]
