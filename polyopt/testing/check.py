"""Holds an op against the reference: numbers, dtypes, shapes, inputs, memory, and the legality of its schedule."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import BoundArguments
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from _pytest.outcomes import Failed  # what pytest calls `pytest.fail.Exception`, a name that is no type to a checker
from numpy.typing import NDArray

from polyopt import compilation, reference
from polyopt.api import Method
from polyopt.classes import dataclass
from polyopt.dsl.affine import SizeRef
from polyopt.dsl.ir import Program
from polyopt.errors import ArgumentError, BackendUnavailable, with_article
from polyopt.loops.text import loop_text
from polyopt.reference.compare import Tolerance, difference, flatten, rebuild
from polyopt.runtime.arguments import is_constant
from polyopt.runtime.cuda import devices
from polyopt.runtime.outs import by_position
from polyopt.testing.guarded import guarded, guarded_copy, survives
from polyopt.testing.inputs import as_array, random_inputs

if TYPE_CHECKING:
    from polyopt.api import Op
    from polyopt.pipeline import Lowering
    from polyopt.runtime.emulator.driver import Emulator

Array = NDArray[Any]

OTHER_ORDER = 7
"""The emulator's seed for a second run: threads in a random order."""
_SLACK = 2.0
"""The bound on errors is of first order, and the reference itself is rounded: twice the bound is allowed."""


class CheckFailed(Failed, AssertionError):
    """An op does not pass. pytest shows the message alone, and it is an error of Python's, as of a failed assertion."""


@dataclass(frozen=True, slots=True)
class Checker:
    """What the fixture `polyopt_check` is.

    targets: None stands for the op's own
    seed:    of random inputs
    forks:   whether a kernel first runs in a child process; without, one that touches memory behind an array ends this
    """

    targets: tuple[str | None, ...] = (None,)
    seed: int = 0
    forks: bool = True

    def __call__(
        self,
        op: Op | Method,
        /,
        *args: Any,
        expected: Any = None,
        rtol: float | None = None,
        atol: float | None = None,
        inputs: Mapping[str, Any] | None = None,
        target: str | None = None,
        seed: int | None = None,
        **named: Any,
    ) -> Any:
        """Check an op on the given arguments, or on random ones for the given sizes. Returns what the op returned.

        args, named: the op's arguments, as in a call; or only sizes and compile-time values by name, and random
                     arrays are drawn (`inputs` holds those that should not be)
        expected:    what the results should be, apart from the reference; in the op's structure
        rtol, atol:  instead of the tolerance that follows from dtypes and reduction lengths

        Raises `CheckFailed` with the element that is furthest off, the seed, and the loops.
        """
        chosen = self.seed if seed is None else seed
        result = None
        for name in (target,) if target is not None else self.targets:
            try:
                case = replace(_prepare(op, args, named, dict(inputs or {}), chosen, name), forks=self.forks)
                result = _checked(case, expected, Tolerance(rtol, atol))
            except BackendUnavailable as missing:
                if target is not None:
                    raise
                pytest.skip(f"target {name}: {missing.what}")
        return result


def _checked(case: _Case, expected: Any, tolerance: Tolerance) -> Any:
    """Kernels for a GPU run there, or, where there is none, on the emulator, which looks at every access too."""
    if not case.is_gpu:
        return case.check(expected, tolerance)
    here = compilation.gpu_here()
    if here is not None:
        return replace(case, note=f"{case.note}, on this machine's GPU ({here.name})").check(expected, tolerance)
    emulator = compilation.emulator()
    case = replace(case, note=f"{case.note}, on the CPU emulator: there is no GPU here", emulator=emulator)
    with devices.use(emulator):
        return case.check(expected, tolerance)


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """An op with arguments.

    arguments: as the op is called, by name
    arrays:    the program's inputs, by name
    emulator:  what runs kernels for a GPU where there is none
    forks:     as in `Checker`
    """

    op: Op
    arguments: Mapping[str, Any]
    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]
    lowered: Lowering
    note: str
    emulator: Emulator | None = None
    forks: bool = True

    @property
    def is_gpu(self) -> bool:
        """Whether the kernels are for a GPU."""
        return self.lowered.options.target.gpu is not None

    @property
    def program(self) -> Program:
        return self.lowered.program

    def call(self, arguments: Mapping[str, Any], **more: Any) -> Any:
        """The op on arguments by name, each passed in the way that its parameter allows."""
        bound = BoundArguments(self.op.signature.python, OrderedDict(arguments))
        return self.op(*bound.args, **bound.kwargs, **more)

    def check(self, expected: Any, tolerance: Tolerance) -> Any:
        """All checks; memory first, since a kernel that writes where it must not may break everything after it."""
        self.lowered.verify()
        values, bounds = self._reference()
        placed = [] if self.is_gpu else self._run_guarded(values)
        before = {name: array.copy() for name, array in self.arrays.items()}
        result = self.call(self.arguments)
        if self.is_gpu:
            self._check_accesses()
            placed = self._run_again(result, values)
        self._check_untouched(before)
        got = {place: np.asarray(value) for place, value in flatten(result).items()}
        for name, (place, array) in zip(self.program.results, got.items(), strict=True):
            self._check_form(place, array, values[name], name)
            allowed = tolerance.allowed(values[name], bounds[name])
            self._compare("the reference", place, array, values[name], allowed)
        if expected is not None:
            wanted = self._in_structure(result, expected)
            self._check_expected(got, wanted, list(bounds.values()), tolerance)
        for (place, array), other in zip(got.items(), placed, strict=False):
            self._check_repeated(place, array, other)
        return result

    def _reference(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The values to compare with, and how far from them is allowed: nothing in strict numerics."""
        strict = self.lowered.options.numerics == "strict"
        values, bounds = reference.evaluate_with_bounds(self.program, self.arrays, self.sizes, in_order=strict)
        if strict:
            bound = BoundArguments(self.op.signature.python, OrderedDict(self.arguments))
            exact = flatten(self.op.reference(*bound.args, **bound.kwargs, numerics="strict")).values()
            values = dict(zip(self.program.results, map(np.asarray, exact), strict=True))
            return values, {name: np.zeros(value.shape) for name, value in values.items()}
        return values, {name: _SLACK * bounds[name] for name in values}

    def _check_form(self, place: str, got: Array, value: Array, name: str) -> None:
        dtype = self.program.tensor(name).dtype.numpy
        if got.dtype != dtype:
            self._fail(f"{place} is {got.dtype} and should be {dtype}")
        if got.shape != value.shape:
            self._fail(f"{place} has shape {got.shape} and should have {value.shape}")

    def _in_structure(self, result: Any, expected: Any) -> list[Array]:
        """What is expected of each result, found in `expected` as `out=` is: by position and by key."""
        count = len(flatten(result))
        try:
            found = by_position(expected, rebuild(result, list(range(count))), "expected")
        except ArgumentError as error:
            self._fail(f"{error.what}, and {error.why}")
        return [np.asarray(found[n]) for n in range(count)]

    def _check_expected(
        self, got: Mapping[str, Array], wanted: list[Array], bounds: list[Array], tolerance: Tolerance
    ) -> None:
        for (place, array), value, bound in zip(got.items(), wanted, bounds, strict=True):
            if value.shape != array.shape:
                self._fail(f"{place} has shape {array.shape}, and expected= has {value.shape}")
            allowed = tolerance.allowed(value, 2 * bound + _rounding(array, value))
            self._compare("expected=", place, array, value, allowed)

    def _compare(self, source: str, place: str, got: Array, value: Array, allowed: Array) -> None:
        worst = difference(place, got, value, allowed)
        if worst is not None:
            self._fail(f"the result differs from {source}\n{worst}")

    def _check_untouched(self, before: Mapping[str, Array]) -> None:
        for name, copy in before.items():
            if self.arrays[name].tobytes() != copy.tobytes():
                changed = np.argwhere(~_same_bits(self.arrays[name], copy))
                self._fail(f"the input '{name}' was changed, first at {tuple(map(int, changed[0]))}")

    def _run_guarded(self, values: Mapping[str, Array]) -> list[Array]:
        """Runs the op on arrays behind which nothing can be touched, in a child process; its results with `out=`.

        Nothing for arrays of other libraries, which cannot be placed, and for ops whose `out` is a parameter.
        """
        ours = all(isinstance(v, np.ndarray | np.generic | int | float) for v in self.arguments.values())
        if not ours or "out" in self.op.signature.python.parameters:
            return []
        outs = [guarded(v.shape, self.program.tensor(name).dtype.numpy) for name, v in values.items()]
        arguments = {
            name: guarded_copy(value).array if _can_be_placed(value) else value
            for name, value in self.arguments.items()
        }
        bound = BoundArguments(self.op.signature.python, OrderedDict(arguments))
        self.op.compile(*bound.args, **bound.kwargs)  # here, so that the child's work is not lost

        def run() -> None:
            self.call(arguments, out=rebuild(self.call(arguments), [out.array for out in outs]))

        if not self.forks:
            run()
        elif not survives(run):
            self._fail("it touches memory behind the end of an array (or crashes)")
        for name, out in zip(values, outs, strict=True):
            if not out.is_intact:
                self._fail(f"bytes before the start of the result '{name}' were written")
        return [out.array for out in outs]

    def _run_again(self, result: Any, values: Mapping[str, Array]) -> list[Array]:
        """Runs the op with `out=`, its threads in another order where they are emulated; its results.

        result: what the op returned, for the structure. Nothing where `_run_guarded` does nothing.
        """
        ours = all(isinstance(v, np.ndarray | np.generic | int | float) for v in self.arguments.values())
        if not ours or "out" in self.op.signature.python.parameters:
            return []
        outs = [np.full(v.shape, 77, self.program.tensor(name).dtype.numpy) for name, v in values.items()]
        if self.emulator is not None:
            self.emulator.seed = OTHER_ORDER
        self.call(self.arguments, out=rebuild(result, list(outs)))
        if self.emulator is not None:
            self._check_accesses()
            self.emulator.seed = 0
        return outs

    def _check_accesses(self) -> None:
        """No access of a kernel raced with another, was out of bounds, or read what nothing had written."""
        if self.emulator is not None and self.emulator.found:
            self._fail("its kernels are wrong\n" + "\n".join(map(str, self.emulator.found)))

    def _check_repeated(self, place: str, got: Array, other: Array) -> None:
        if not _same_bits(other, got).all():
            worst = difference(place, other, got, np.zeros(got.shape))
            self._fail(f"another call, with out=, gives another result\n{worst or 'a zero has another sign'}")

    def _fail(self, what: str) -> NoReturn:
        shown = f"loops:\n{_indented(loop_text(self.lowered.loops).splitlines())}"
        if self.is_gpu:
            numbered = (f"{n:>4} {line}" for n, line in enumerate(self.lowered.source("cuda").splitlines(), 1))
            shown += f"\nkernels:\n{_indented(numbered)}"
        raise CheckFailed(f"{self.program.name}: {what}\n{self.note}\n{shown}", pytrace=False)


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _same_bits(a: Array, b: Array) -> Array:
    """Whether elements are the same bit for bit; one NaN is as good as another."""
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    same = x.view(unsigned) == y.view(unsigned)
    with np.errstate(invalid="ignore"):
        return np.asarray(same | ((x != x) & (y != y))).reshape(a.shape)


def _can_be_placed(value: Any) -> bool:
    return type(value) is np.ndarray and value.flags.c_contiguous and value.flags.aligned


def _rounding(got: Array, expected: Array) -> Array:
    """What converting the expected value to the result's dtype may change."""
    if got.dtype == expected.dtype or got.dtype.kind in "biu":
        return np.zeros(expected.shape)
    size = np.abs(expected.astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.abs(expected.astype(got.dtype).astype(np.float64) - expected.astype(np.float64))
    return np.where(np.isfinite(size), np.where(np.isnan(change), np.inf, change), 0.0)


# --- arguments ------------------------------------------------------------------------------------------------


def _prepare(
    op: Op | Method,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    inputs: dict[str, Any],
    seed: int,
    target: str | None,
) -> _Case:
    """The op with its arguments. Raises `ArgumentError` for names that the op does not have, and for open sizes."""
    if isinstance(op, Method):
        args = (op.__self__, *args)
        op = op.op
    if not hasattr(op, "signature"):
        raise ArgumentError(
            f"polyopt_check checks ops, and is given {with_article(type(op).__name__)}",
            fix="decorate the function with @po.op",
            facts={"type": type(op).__name__},
        )
    op = op if target is None else op.on(target)
    note = f"target {target or 'of the op'}"
    names = {parameter.name: parameter for parameter in op.signature.parameters}
    bound = op.signature.python.bind_partial(*args)
    bound.arguments.update({name: value for name, value in named.items() if name in names})
    others = {name: value for name, value in named.items() if name not in names}
    values = bound.arguments
    if any(not is_constant(names[n], v) and not _is_plain(names[n].kind, v) for n, v in values.items()):
        lowered = op.lower(*bound.args, **bound.kwargs, **others)
        bound.apply_defaults()
        found = {name: as_array(bound.arguments[name], name) for name in lowered.program.parameters}
        return _Case(op, bound.arguments, found, sizes_of(lowered.program, found), lowered, note)
    constants = {name: value for name, value in values.items() if is_constant(names[name], value)}
    lowered = op.lower(**others, **constants)
    open_sizes = _open_sizes(lowered.program, others)
    _check_names(inputs, lowered.program)
    scalars = {name: value for name, value in values.items() if name not in constants}
    drawn = random_inputs(lowered.program, open_sizes, seed, {**scalars, **inputs})
    note += f", seed {seed} (--polyopt-seed={seed} draws the same inputs)"
    arguments = {name: drawn[name] if name in drawn else values[name] for name in names if name in {**drawn, **values}}
    return _Case(op, arguments, drawn, open_sizes, lowered, note)


def _open_sizes(program: Program, given: Mapping[str, Any]) -> dict[str, int]:
    """The values of the sizes that stayed symbolic."""
    missing = [name for name in program.sizes if name not in given]
    if missing:
        raise ArgumentError(
            f"'{program.name}' needs a value for {', '.join(missing)}",
            why="random inputs are drawn for given sizes",
            fix=f"set them: {', '.join(f'{name}=7' for name in missing)}",
            facts={"sizes": tuple(missing)},
        )
    return {name: given[name] for name in program.sizes}


def _check_names(inputs: Mapping[str, Any], program: Program) -> None:
    for name in inputs:
        if name not in program.parameters:
            raise ArgumentError(
                f"inputs= holds '{name}', and '{program.name}' has no such array",
                why=f"its arrays are {', '.join(program.parameters) or 'none'}",
                facts={"name": name, "parameters": program.parameters},
            )


def _is_plain(kind: str, value: Any) -> bool:
    """Whether the value of a run-time scalar is a plain number, which says nothing about sizes."""
    return kind == "scalar" and np.ndim(value) == 0


def sizes_of(program: Program, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The values of the sizes that stayed symbolic, read off the shapes of the arrays."""
    found: dict[str, int] = {}
    for name in program.parameters:
        for extent, length in zip(program.tensor(name).shape or (), arrays[name].shape, strict=True):
            if len(extent.terms) == 1 and isinstance(extent.terms[0][0], SizeRef):
                found[extent.terms[0][0].name] = (length - extent.constant) // extent.terms[0][1]
    return {name: found[name] for name in program.sizes}
