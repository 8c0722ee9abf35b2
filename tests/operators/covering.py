"""A small set of cases in which choices that should meet occur together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

Choices = tuple[tuple[int, object], ...]
"""A level of each of some factors, in the order of the factors."""


def covering(levels: Sequence[Sequence[object]], together: Sequence[tuple[int, ...]]) -> Iterator[tuple[object, ...]]:
    """Rows that pick one level per factor, so that the factors of each set take every combination in some row.

    levels:   the levels of each factor
    together: sets of factors, each in ascending order; every factor is in one of them
    Greedy and deterministic: each row starts from a combination not covered yet and takes, factor by factor, the
    level that covers the most new ones.
    Source: D. M. Cohen et al., The AETG system (IEEE TSE, 1997), without its random restarts, for sets of unlike
    sizes (M. B. Cohen et al., Variable strength interaction testing of components, COMPSAC 2003).
    """
    missing = dict.fromkeys(choices for factors in together for choices in _combinations(factors, levels))
    while missing:
        chosen = dict(next(iter(missing)))
        for factor in range(len(levels)):
            if factor not in chosen:
                chosen[factor] = _most_new(factor, levels[factor], chosen, together, missing)
        for factors in together:
            missing.pop(_of(factors, chosen), None)
        yield tuple(chosen[factor] for factor in range(len(levels)))


def _combinations(factors: tuple[int, ...], levels: Sequence[Sequence[object]]) -> Iterator[Choices]:
    for picked in product(*(levels[factor] for factor in factors)):
        yield tuple(zip(factors, picked, strict=True))


def _of(factors: tuple[int, ...], chosen: dict[int, object]) -> Choices:
    return tuple((factor, chosen[factor]) for factor in factors)


def _most_new(
    factor: int,
    candidates: Sequence[object],
    chosen: dict[int, object],
    together: Sequence[tuple[int, ...]],
    missing: dict[Choices, None],
) -> object:
    """The candidate that completes the most combinations not covered yet, with what is chosen already."""
    known = chosen.keys() | {factor}
    completed = [factors for factors in together if factor in factors and known.issuperset(factors)]

    def gain(level: object) -> int:
        return sum(_of(factors, {**chosen, factor: level}) in missing for factors in completed)

    return max(candidates, key=gain)
