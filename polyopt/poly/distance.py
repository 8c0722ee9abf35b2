"""How far apart a loop puts the two ends of a dependence: the test behind every fusion and every row.

The distance of a pair is the target's row minus the source's. A loop respects a dependence when no distance is
negative, carries the pairs of positive distance, and leaves those of distance zero to the loops inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.poly.dependence import Dependence
from polyopt.poly.scop import Scop
from polyopt.poly.space import Space, coalesced

_BACK = isl.Map("{ [x] -> [y] : y < x }")
_TOGETHER = isl.Map("{ [x] -> [x] }")
_AHEAD = isl.Map("{ [x] -> [y] : x < y }")

Rows = Mapping[str, Affine]


@dataclass(frozen=True, slots=True)
class Distance:
    """What is known of the distances of a dependence under two rows."""

    non_negative: bool
    positive: bool
    zero: bool


@dataclass(slots=True)
class DistanceTester:
    """Distance tests on one scop, remembered per dependence and pair of rows."""

    spaces: dict[str, Space]
    _maps: dict[tuple[str, Affine], isl.Map] = field(default_factory=dict)
    _known: dict[tuple[int, Affine, Affine], Distance] = field(default_factory=dict)
    _alive: list[Dependence] = field(default_factory=list)

    @staticmethod
    def of(scop: Scop) -> DistanceTester:
        return DistanceTester({s.name: Space(s.name, s.axes, scop.sizes) for s in scop.statements})

    def row_map(self, statement: str, row: Affine) -> isl.Map:
        """`{ S[x] -> [row(x)] }`"""
        key = (statement, row)
        if key not in self._maps:
            self._maps[key] = isl.Map.from_aff(self.spaces[statement].aff(row))
        return self._maps[key]

    def distance(self, dependence: Dependence, rows: Rows) -> Distance:
        """The distances of the dependence when its two statements have the given rows."""
        source, target = rows[dependence.source], rows[dependence.target]
        key = (id(dependence), source, target)
        if key not in self._known:
            self._alive.append(dependence)  # its id must stay its own
            self._known[key] = self._measure(dependence, source, target)
        return self._known[key]

    def _measure(self, dependence: Dependence, source: Affine, target: Affine) -> Distance:
        """Pairs are looked for among those of the relation: to compute all distances takes isl many times as long."""
        first, last = self.row_map(dependence.source, source), self.row_map(dependence.target, target).reverse()

        def is_apart(how: isl.Map) -> bool:
            return bool((dependence.relation & first.apply_range(how).apply_range(last)).is_empty())

        non_negative = is_apart(_BACK)
        positive = non_negative and is_apart(_TOGETHER)
        zero = non_negative and not positive and is_apart(_AHEAD)
        return Distance(non_negative, positive, zero)

    def respects(self, dependences: Iterable[Dependence], rows: Rows) -> bool:
        return all(self.distance(d, rows).non_negative for d in dependences)

    def is_coincident(self, dependences: Iterable[Dependence], rows: Rows) -> bool:
        """Whether no pair of the dependences is apart: the loop could run its iterations at once."""
        return all(self.distance(d, rows).zero for d in dependences)

    def is_carrying(self, dependences: Iterable[Dependence], rows: Rows) -> bool:
        """Whether all pairs of the dependences are apart: the loops inside could run their iterations at once."""
        return all(self.distance(d, rows).positive for d in dependences)

    def left(self, dependences: Iterable[Dependence], rows: Rows) -> tuple[Dependence, ...]:
        """The pairs at distance zero: what the loops inside must respect."""
        remaining = []
        for dependence in dependences:
            distance = self.distance(dependence, rows)
            if distance.positive:
                continue
            if distance.zero:
                remaining.append(dependence)
                continue
            together = self.row_map(dependence.source, rows[dependence.source]).apply_range(
                self.row_map(dependence.target, rows[dependence.target]).reverse()
            )
            relation = dependence.relation & together
            if not relation.is_empty():
                grew = relation.n_basic_map() > dependence.relation.n_basic_map()
                remaining.append(replace(dependence, relation=coalesced(relation) if grew else relation))
        return tuple(remaining)
