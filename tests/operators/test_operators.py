"""Every operator of the catalogue gives what NumPy gives, at awkward sizes, in every layout and dtype.

The ordinary run takes from each operator the first rows of a pairwise covering of sizes, layouts and dtypes; the
operators start at different levels, so that together they hold every pair. `-m trust` runs the full product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice, product
from typing import Any

import pytest

import polyopt as po
from polyopt.dtypes import from_name
from tests.operators.catalogue import OPERATORS
from tests.operators.covering import pairwise
from tests.operators.operator import LAYOUTS, SIZE_CLASSES, Case, Operator, SizeClass

ROWS = 12
"""Cases per operator in the ordinary run."""

Check = Callable[..., None]


def rotated(levels: Sequence[Any], start: int) -> list[Any]:
    """The same levels, beginning elsewhere."""
    start %= max(len(levels), 1)
    return [*levels[start:], *levels[:start]]


def size_classes(operator: Operator, name: str) -> list[SizeClass]:
    return [c for c in SIZE_CLASSES if not (c == "0" and name in operator.nonempty)]


def case_of(operator: Operator, row: tuple[Any, ...]) -> Case:
    *classes, layout, dtype = row
    return Case(operator, tuple(classes), layout, dtype)


def pairwise_cases(operator: Operator, start: int) -> Iterator[Case]:
    """Cases that hold every pair of choices for this operator, beginning elsewhere for each `start`."""
    levels = [*(size_classes(operator, name) for name in operator.sizes), LAYOUTS, operator.dtypes]
    turned = [rotated(choices, start * (factor + 1)) for factor, choices in enumerate(levels)]
    return (case_of(operator, row) for row in pairwise(turned))


def ordinary_cases() -> list[Case]:
    return [case for n, operator in enumerate(OPERATORS) for case in islice(pairwise_cases(operator, n), ROWS)]


def check(polyopt_check: Check, case: Case) -> None:
    arguments = case.arguments
    expected = case.operator.expected(from_name(case.dtype), arguments)
    bound = {"rtol": case.operator.rtol[case.dtype]} if case.dtype in case.operator.rtol else {}
    polyopt_check(case.operator.op, *arguments, expected=expected, **bound)


def test_there_are_many_operators_and_no_name_twice() -> None:
    assert len(OPERATORS) >= 40
    assert len({operator.name for operator in OPERATORS}) == len(OPERATORS)


def test_the_ordinary_cases_hold_every_pair_of_choices() -> None:
    """Of size class, layout and dtype, over the catalogue as a whole."""
    held = set()
    for case in ordinary_cases():
        for size_class in case.classes:
            held |= set(combinations((size_class, case.layout, case.dtype), 2))
    dtypes = {dtype for operator in OPERATORS for dtype in operator.dtypes if dtype != "bool"}
    wanted = {*product(SIZE_CLASSES, LAYOUTS), *product(SIZE_CLASSES, dtypes), *product(LAYOUTS, dtypes)}
    assert not wanted - held


@pytest.mark.parametrize("case", ordinary_cases(), ids=str)
def test_gives_what_numpy_gives(polyopt_check: Check, case: Case) -> None:
    check(polyopt_check, case)


@pytest.mark.trust
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gives_what_numpy_gives_in_the_full_product(polyopt_check: Check, operator: Operator, layout: str) -> None:
    classes = product(*(size_classes(operator, name) for name in operator.sizes))
    for row in product(classes, operator.dtypes):
        check(polyopt_check, case_of(operator, (*row[0], layout, row[1])))


@pytest.mark.parametrize(
    "operator",
    [op for op in OPERATORS if op.name in ("softmax", "extremes", "argmax_rows")],
    ids=lambda operator: operator.name,
)
def test_a_maximum_over_nothing_is_refused(operator: Operator) -> None:
    classes: list[SizeClass] = ["0" if name in operator.nonempty else "prime" for name in operator.sizes]
    with pytest.raises(po.DefinitionError):
        operator.op(*Case(operator, tuple(classes), "contiguous", operator.dtypes[0]).arguments)
