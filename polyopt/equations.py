"""The equations of an operator: traced as arguments or sizes need them, and made the problem that a compile solves."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from polyopt import bounded
from polyopt.dsl import ir
from polyopt.dsl import trace as tracing
from polyopt.dsl.affine import FALSE, condition_text
from polyopt.dsl.bind import solve_sizes, specialise, specialise_condition
from polyopt.dsl.expr import Size, walk
from polyopt.dsl.recognise import NeedsSizes
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.trace import Traced
from polyopt.errors import ArgumentError, BoundsError, DefinitionError, DTypeError, ShapeError
from polyopt.problem import Choices, Problem
from polyopt.runtime import arguments, arrays
from polyopt.runtime.arguments import Arguments
from polyopt.runtime.state import constants_key
from polyopt.target import Target
from polyopt.working import working

Value = TypeVar("Value")
_LOG = logging.getLogger(__name__)


class Equations:
    """What a function says about its parameters. It is traced once for each set of compile-time values."""

    def __init__(self, function: Callable[..., Any], signature: Signature, choices: Choices) -> None:
        self._function = function
        self._signature = signature
        self._choices = choices
        self._names = frozenset(parameter.name for parameter in signature.parameters)
        self._traces: dict[Hashable, Traced] = {}

    # --- for arguments --------------------------------------------------------------------------------------------

    def traced(self, given: Arguments) -> Traced:
        """The equations for arguments like these. Sizes stay symbolic where the function can be read so."""
        return self.apply(lambda traced: traced, given)

    def apply(self, use: Callable[[Traced], Value], given: Arguments) -> Value:
        """What `use` makes of the equations for arguments like these."""
        sizes = functools.partial(solve_sizes, self._signature, None, given.shapes)
        return self._apply(use, given.constants, given.free, sizes)

    def _apply(
        self,
        use: Callable[[Traced], Value],
        constants: Mapping[str, object],
        free: Mapping[str, Any],
        sizes: Callable[[], dict[str, int]],
    ) -> Value:
        """What `use` makes of the equations, where they do not hold together with symbolic sizes, with numbers.

        Then slices clip as NumPy's do (`x[-3:]` of two elements), those of one element are broadcast (`x[:1]`), and
        sugar can say that two shapes do not fit together.
        """
        try:
            return use(self._trace(constants, free, sizes))
        except (DefinitionError, BoundsError, ShapeError) as first:
            if self._choices.dynamic:
                raise
            try:
                return use(self._trace_with_numbers(constants, free, sizes()))
            except DTypeError as clearer:
                raise clearer from None
            except ShapeError as clearer:
                if not isinstance(first, ShapeError) or (first.where is None and clearer.where is not None):
                    raise clearer from None  # an unmet condition has no line
            except (DefinitionError, BoundsError):
                pass  # the first message has the sizes' names
            raise

    def problem(self, traced: Traced, sizes: Mapping[str, int], target: Target) -> Problem:
        """The problem for known sizes; those that are dynamic, and those not known, stay symbolic."""
        dynamic = self._dynamic(traced.program.sizes)
        program = specialised(traced.program, {name: size for name, size in sizes.items() if name not in dynamic})
        return Problem(program, program.sizes, {}, target, self._choices.numerics)

    # --- for sizes and compile-time values, by name ---------------------------------------------------------------

    def traced_for_values(self, values: Mapping[str, Any]) -> Traced:
        """The equations for compile-time values. Raises `ArgumentError` where those of an argument are needed."""
        return self._trace(self._constants(values), {}, lambda: self._sizes(values))

    def apply_to_values(self, use: Callable[[Problem], Value], values: Mapping[str, Any], target: Target) -> Value:
        """What `use` makes of the problem for sizes and compile-time values; sizes that are left out stay symbolic."""
        sizes = self._sizes(values)
        known = _size_names(self._signature)
        numbers = {name: int(size) for name, size in sizes.items() if _is_size(size)}

        def use_problem(traced: Traced) -> Value:
            known.update(traced.program.sizes)
            _check_sizes(sizes, known, self._signature)
            return use(self.problem(traced, numbers, target))

        return self._apply(use_problem, self._constants(values), {}, lambda: numbers)

    def _constants(self, values: Mapping[str, Any]) -> dict[str, object]:
        constants = {p.name: values.get(p.name, p.default) for p in self._signature.parameters if _is_known(p, values)}
        self._refuse_unannotated(constants)
        return constants

    def _sizes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in self._names}

    def _refuse_unannotated(self, constants: Mapping[str, object]) -> None:
        for parameter in self._signature.parameters:
            if parameter.kind == "unannotated" and parameter.name not in constants:
                raise ArgumentError(
                    f"the dtype and rank of parameter '{parameter.name}' are not known",
                    where=self._signature.span,
                    why="it has no annotation, so they follow from the argument",
                    fix=f"pass arrays instead of sizes, or annotate it: {parameter.name}: f32[...]",
                    facts={"parameter": parameter.name},
                )

    def _dynamic(self, sizes: Sequence[str]) -> frozenset[str]:
        chosen = self._choices.dynamic
        if isinstance(chosen, bool):
            return frozenset(sizes if chosen else ())
        known = {*sizes, *_size_names(self._signature)}  # equations read with numbers have no sizes left
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise ArgumentError(
                f"'{self._signature.name}' has no size '{unknown[0]}' to keep dynamic",
                where=self._signature.span,
                why=f"its sizes are {', '.join(sorted(known)) or 'none'}",
                fix="name sizes that the annotations use",
                facts={"size": unknown[0], "sizes": tuple(sorted(known))},
            )
        return frozenset(chosen) & frozenset(sizes)

    # --- tracing --------------------------------------------------------------------------------------------------

    def _trace(
        self, constants: Mapping[str, object], free: Mapping[str, Any], sizes: Callable[[], dict[str, int]]
    ) -> Traced:
        """sizes: asked for where the equations are affine for numbers only"""
        key = (constants_key(constants), tuple(free.items()))
        try:
            return self._remembered(key, constants, free, None)
        except NeedsSizes as reason:
            if self._choices.dynamic:
                _LOG.warning("%s: no size stays dynamic: %s", self._signature.name, reason.what)
            return self._trace_with_numbers(constants, free, sizes())

    def _trace_with_numbers(
        self, constants: Mapping[str, object], free: Mapping[str, Any], sizes: dict[str, int]
    ) -> Traced:
        key = (constants_key(constants), tuple(free.items()), tuple(sizes.items()))
        return self._remembered(key, constants, free, sizes)

    def _remembered(
        self, key: Hashable, constants: Mapping[str, object], free: Mapping[str, Any], sizes: dict[str, int] | None
    ) -> Traced:
        found = self._traces.get(key)
        if found is not None:
            return found
        return bounded.put(self._traces, key, tracing.trace(self._function, self._signature, constants, free, sizes))


def specialised(program: ir.Program, sizes: Mapping[str, int]) -> ir.Program:
    """The program for these sizes. Raises `ShapeError` where they do not meet its conditions."""
    found = working(program, lambda: specialise(program, sizes))
    if FALSE in found.conditions:
        raise _unmet(program, sizes)
    return found


def _unmet(program: ir.Program, sizes: Mapping[str, int]) -> ShapeError:
    """The error of a condition that does not hold. It is an extent, or one of an op that was inlined."""
    text = next(condition_text(c) for c in program.conditions if specialise_condition(c, sizes) == FALSE)
    values = ", ".join(f"{name} = {value}" for name, value in sorted(sizes.items()))
    return ShapeError(
        f"the sizes of this call do not satisfy {text}",
        why=f"here {values}; extents do not fit together, or one that the equations count with is below 0, otherwise",
        fix="pass arrays whose sizes satisfy it; where such sizes are meant, po.index(..., extent=) says how far an "
        "index runs that several dimensions bound",
        facts={"condition": text, "sizes": dict(sizes)},
    )


def _is_known(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether a compile-time parameter has a value, given or by default."""
    if parameter.name in values:
        return True
    return parameter.has_default and arguments.is_constant(parameter, parameter.default)


def _check_sizes(sizes: Mapping[str, Any], known: Collection[str], signature: Signature) -> None:
    """Raise `ArgumentError` for a size that the op does not have, or that is no size."""
    for name, value in sizes.items():
        if name not in known:
            raise ArgumentError(
                f"'{signature.name}' has no size or compile-time parameter '{name}'",
                where=signature.span,
                why=f"its sizes are {', '.join(sorted(known)) or 'none'}",
                fix="set only sizes and compile-time parameters of the op",
                facts={"size": name, "sizes": tuple(sorted(known))},
            )
        if not _is_size(value):
            raise ArgumentError(
                f"size '{name}' cannot be {value!r}",
                why="a size is a whole number from 0 to 2**63 - 1",
                fix=f"{name}=512, for example",
                facts={"size": name},
            )


def _is_size(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and bool(0 <= value <= arrays.MAX_EXTENT)


def _size_names(signature: Signature) -> set[str]:
    return {node.name for p in signature.parameters for dim in p.dims for node in walk(dim) if isinstance(node, Size)}
