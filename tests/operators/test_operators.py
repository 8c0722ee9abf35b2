"""Every operator of the catalogue gives what NumPy gives, at awkward sizes, in every layout and dtype.

The ordinary run takes every size of every index in every layout and dtype, and every two sizes of two indices, in as
few cases as a greedy search finds. `-m trust` runs the full product, all sizes of one index with all of the others,
which `--shard=k/n` cuts into n parts; `product.py` logs how far it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import pytest

import polyopt as po
from polyopt.testing.check import Checker
from tests.operators.catalogue import OPERATORS
from tests.operators.children import failed
from tests.operators.covering import covering
from tests.operators.operator import LAYOUTS, SIZE_CLASSES, Case, Layout, Operator, SizeClass

BATCH = 12
"""Cases of one operator that run as one test."""


def rotated(levels: Sequence[Any], start: int) -> list[Any]:
    """The same levels, beginning elsewhere."""
    start %= max(len(levels), 1)
    return [*levels[start:], *levels[:start]]


def size_classes(operator: Operator, name: str) -> list[SizeClass]:
    return [c for c in SIZE_CLASSES if not (c == "0" and name in operator.nonempty)]


def case_of(operator: Operator, row: tuple[Any, ...]) -> Case:
    *classes, layout, dtype = row
    return Case(operator, tuple(classes), layout, dtype)


def choices(operator: Operator) -> list[Sequence[Any]]:
    """What the factors of a case of this operator may be: its sizes, its layout, its dtype."""
    return [*(size_classes(operator, name) for name in operator.sizes), LAYOUTS, operator.dtypes]


def together(operator: Operator) -> list[tuple[int, ...]]:
    """The factors that take every combination: each size with layout and dtype, and each two sizes."""
    layout = len(operator.sizes)
    sizes = range(layout)
    return [*((size, layout, layout + 1) for size in sizes), *combinations(sizes, 2)]


def covering_cases(operator: Operator, start: int) -> Iterator[Case]:
    """Cases in which the factors of this operator that belong together meet, beginning elsewhere for each `start`."""
    turned = [rotated(levels, start * (factor + 1)) for factor, levels in enumerate(choices(operator))]
    return (case_of(operator, row) for row in covering(turned, together(operator)))


@dataclass(frozen=True, slots=True)
class Batch:
    """Some cases of one operator. number: which of its batches"""

    operator: Operator
    number: int
    cases: tuple[Case, ...]

    def __str__(self) -> str:
        return f"{self.operator.name}-{self.number}"


def batches() -> list[Batch]:
    """The cases of every operator."""
    found = []
    for start, operator in enumerate(OPERATORS):
        cases = list(covering_cases(operator, start))
        for number, first in enumerate(range(0, len(cases), BATCH)):
            found.append(Batch(operator, number, tuple(cases[first : first + BATCH])))
    return found


def check_all(checker: Checker, cases: Sequence[Case]) -> None:
    """Checks each case, and then names all that failed."""
    failures = [*failed(cases, checker)]
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


def test_there_are_many_operators_and_no_name_twice() -> None:
    assert len(OPERATORS) >= 40
    assert len({operator.name for operator in OPERATORS}) == len(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_the_cases_of_an_operator_hold_every_size_in_every_layout_and_dtype(operator: Operator) -> None:
    cases = list(covering_cases(operator, OPERATORS.index(operator)))
    for place, name in enumerate(operator.sizes):
        found = {(case.classes[place], case.layout, case.dtype) for case in cases}
        assert found == set(product(size_classes(operator, name), LAYOUTS, operator.dtypes))
    for (a, name), (b, other) in combinations(enumerate(operator.sizes), 2):
        found = {(case.classes[a], case.classes[b]) for case in cases}
        assert found == set(product(size_classes(operator, name), size_classes(operator, other)))


@pytest.mark.parametrize("batch", batches(), ids=str)
def test_gives_what_numpy_gives(polyopt_check: Checker, batch: Batch) -> None:
    check_all(polyopt_check, batch.cases)


@pytest.mark.trust
@pytest.mark.parametrize(
    ("operator", "layout", "dtype"),
    [(operator, layout, dtype) for operator in OPERATORS for layout in LAYOUTS for dtype in operator.dtypes],
    ids=lambda value: getattr(value, "name", value),
)
def test_gives_what_numpy_gives_in_the_full_product(
    polyopt_check: Checker, operator: Operator, layout: Layout, dtype: str
) -> None:
    classes = product(*(size_classes(operator, name) for name in operator.sizes))
    check_all(polyopt_check, [Case(operator, row, layout, dtype) for row in classes])


@pytest.mark.parametrize(
    "operator",
    [op for op in OPERATORS if op.name in ("softmax", "extremes", "argmax_rows")],
    ids=lambda operator: operator.name,
)
def test_a_maximum_over_nothing_is_refused(operator: Operator) -> None:
    classes: list[SizeClass] = ["0" if name in operator.nonempty else "prime" for name in operator.sizes]
    with pytest.raises(po.DefinitionError):
        operator.op(*Case(operator, tuple(classes), "contiguous", operator.dtypes[0]).arguments)
