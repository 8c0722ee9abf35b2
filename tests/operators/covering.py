"""A small set of cases in which every pair of choices occurs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

Choice = tuple[int, object]


def pairwise(levels: Sequence[Sequence[object]]) -> Iterator[tuple[object, ...]]:
    """Rows that pick one level per factor so that every two levels of two factors occur in some row.

    levels: the levels of each factor
    Greedy and deterministic: each row starts from a pair not covered yet and takes, factor by factor, the
    level that covers the most new pairs. At most a few rows more than the product of the two longest factors.
    Source: D. M. Cohen et al., The AETG system (IEEE TSE, 1997), without its random restarts.
    """
    missing = dict.fromkeys(
        ((a, x), (b, y)) for a, b in combinations(range(len(levels)), 2) for x, y in product(levels[a], levels[b])
    )
    if len(levels) < 2:
        yield from product(*levels)
    while missing:
        chosen: dict[int, object] = dict(next(iter(missing)))
        for factor in range(len(levels)):
            if factor not in chosen:
                chosen[factor] = _most_new_pairs(factor, levels[factor], chosen, missing)
        row = tuple(chosen[factor] for factor in range(len(levels)))
        for pair in combinations(enumerate(row), 2):
            missing.pop(pair, None)
        yield row


def _most_new_pairs(
    factor: int, candidates: Sequence[object], chosen: dict[int, object], missing: dict[tuple[Choice, Choice], None]
) -> object:
    def gain(level: object) -> int:
        pairs = (tuple(sorted([(factor, level), other], key=lambda choice: choice[0])) for other in chosen.items())
        return sum(pair in missing for pair in pairs)

    return max(candidates, key=gain)
