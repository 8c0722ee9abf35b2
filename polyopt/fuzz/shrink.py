"""Makes a failing case smaller while it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from polyopt.fuzz.case import Case, Definition, Equation, Node, Parameter

ATTEMPTS = 400
"""Cases tried for one failure."""


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = ATTEMPTS) -> Case:
    """The smallest case found. fails: whether a case fails in the way at hand."""
    left = attempts
    while True:
        for candidate in candidates(case):
            if left == 0:
                return case
            left -= 1
            if fails(candidate):
                case = candidate
                break
        else:
            return case


def candidates(case: Case) -> Iterator[Case]:
    """Cases one step smaller, the greatest steps first."""
    yield from _with_fewer_results(case)
    yield from _without_definitions(case)
    yield from _with_simpler_calls(case)
    yield from _with_smaller_sizes(case)
    for number, definition in enumerate(case.definitions):
        for smaller in _smaller_definitions(definition):
            yield _put(case, number, smaller)
    yield from _without_parameters(case)


def _with_fewer_results(case: Case) -> Iterator[Case]:
    if len(case.results) > 1:
        yield from (replace(case, results=(name,)) for name in case.results)


def _without_definitions(case: Case) -> Iterator[Case]:
    """Without a definition that nothing reads, or with an argument in its place."""
    for number in reversed(range(len(case.definitions))):
        definition = case.definitions[number]
        others = (*case.definitions[:number], *case.definitions[number + 1 :])
        if definition.name in case.results:
            continue
        if not _is_used(definition.name, others):
            yield replace(case, definitions=others)
        else:
            high = 1 if definition.dtype == "bool_" else 3
            argument = Parameter(definition.name, definition.dims, definition.dtype, 0, high, "contiguous", number)
            yield replace(case, definitions=others, parameters=(*case.parameters, argument))


def _without_parameters(case: Case) -> Iterator[Case]:
    for number, parameter in enumerate(case.parameters):
        if not _is_used(parameter.name, case.definitions):
            yield replace(case, parameters=(*case.parameters[:number], *case.parameters[number + 1 :]))


def _with_simpler_calls(case: Case) -> Iterator[Case]:
    for number in range(len(case.options)):
        yield replace(case, options=(*case.options[:number], *case.options[number + 1 :]))
    if len(case.plans) > 1:
        yield from (replace(case, plans=(seed,)) for seed in case.plans)
    elif case.plans:
        yield replace(case, plans=())
    if case.out is not None:
        yield replace(case, out=None)
    if case.printed:
        yield replace(case, printed=False)
    if case.threads > 1:
        yield replace(case, threads=1)
    if not case.extents:
        yield replace(case, extents=True)
    if any(p.layout != "contiguous" for p in case.parameters):
        yield replace(case, parameters=tuple(replace(p, layout="contiguous") for p in case.parameters))
    for number, parameter in enumerate(case.parameters):
        if parameter.layout != "contiguous":
            plain = replace(parameter, layout="contiguous")
            yield replace(case, parameters=(*case.parameters[:number], plain, *case.parameters[number + 1 :]))


def _with_smaller_sizes(case: Case) -> Iterator[Case]:
    for number, (name, size) in enumerate(case.sizes):
        for smaller in sorted({1, size // 2, size - 1}):
            if 0 < smaller < size:
                sizes = (*case.sizes[:number], (name, smaller), *case.sizes[number + 1 :])
                yield replace(case, sizes=sizes, parameters=tuple(_kept_in_range(p, smaller) for p in case.parameters))


def _kept_in_range(parameter: Parameter, size: int) -> Parameter:
    """Subscripts stay below every size."""
    return replace(parameter, high=min(parameter.high, size - 1)) if parameter.name == "ids" else parameter


def _smaller_definitions(definition: Definition) -> Iterator[Definition]:
    equations = definition.equations
    for number in range(len(equations)):
        if len(equations) > 1:
            yield replace(definition, equations=(*equations[:number], *equations[number + 1 :]))
    for number, equation in enumerate(equations):
        for smaller in _smaller_equations(equation):
            yield replace(definition, equations=(*equations[:number], smaller, *equations[number + 1 :]))


def _smaller_equations(equation: Equation) -> Iterator[Equation]:
    if equation.guard is not None:
        yield replace(equation, guard=None)
        yield from (replace(equation, guard=guard) for guard in _smaller_nodes(equation.guard))
    yield from (replace(equation, value=value) for value in _smaller_nodes(equation.value))


def _smaller_nodes(node: Node) -> Iterator[Node]:
    """The node with a part, or a number, in the place of it or of something in it."""
    if not node.fixed:
        yield from (part for part in node.parts if part.dtype == node.dtype and part.bound <= node.bound)
        number = Node(f"po.cast(1, po.{node.dtype})", dtype=node.dtype, bound=1)
        if node.dtype and (node.parts or not node.template.startswith("po.cast(")):
            yield number
    for number_of_part, part in enumerate(node.parts):
        for smaller in _smaller_nodes(part):
            yield replace(node, parts=(*node.parts[:number_of_part], smaller, *node.parts[number_of_part + 1 :]))


def _is_used(name: str, definitions: tuple[Definition, ...]) -> bool:
    return any(re.search(rf"\b{name}\b", line) for definition in definitions for line in definition.lines())


def _put(case: Case, number: int, definition: Definition) -> Case:
    return replace(case, definitions=(*case.definitions[:number], definition, *case.definitions[number + 1 :]))
