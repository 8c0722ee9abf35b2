"""Operators as a user calls them: `@po.op`, calls, and the ways to look inside."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from polyopt import compilation, settings
from polyopt.classes import dataclass
from polyopt.dsl import trace as tracing
from polyopt.dsl.bind import solve_sizes, specialise
from polyopt.dsl.expr import Size, walk
from polyopt.dsl.ir import Program
from polyopt.dsl.recognise import NeedsSizes
from polyopt.dsl.results import Structure
from polyopt.dsl.signature import Parameter, Signature, read_signature
from polyopt.dsl.text import program_text
from polyopt.dsl.trace import Traced
from polyopt.errors import ArgumentError, BoundsError, DefinitionError, PolyoptError, ShapeError
from polyopt.problem import Choices, Numerics, Problem, check_choices
from polyopt.quick import QuickWays
from polyopt.runtime import arguments, arrays, pool
from polyopt.runtime import outs as result_arrays
from polyopt.runtime.arguments import Arguments
from polyopt.runtime.arrays import Array, Layout
from polyopt.runtime.calls import Call, Runs, run_into
from polyopt.runtime.glance import Glance
from polyopt.target import Target
from polyopt.text import fragment

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering

settings.configure_logging(settings.current())

set_num_threads = pool.set_num_threads
strict_checks = settings.strict_checks

Value = TypeVar("Value")

KEPT_CALLS = 4096
"""Kinds of calls that an op remembers; the oldest are forgotten first. Their kernels stay in the disk cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """An op prepared for one kind of call. structure: how its results are put together."""

    call: Runs
    structure: Structure


class Op:
    """A function of equations, compiled for the arrays it is called with.

    `op(x, w)` computes; `op(x, w, out=y)` computes into existing arrays. Inside another op its equations are inlined.
    """

    def __init__(self, function: Callable[..., Any], choices: Choices) -> None:
        functools.update_wrapper(self, function)
        self.signature: Signature = read_signature(function)
        self._function = function
        self._choices = check_choices(choices)
        self._names = tuple(parameter.name for parameter in self.signature.parameters)
        self._glance = Glance(self.signature)
        self._ways = QuickWays(self.signature)
        self._hot: dict[Hashable, Variant] = {}
        self._variants: dict[Hashable, _Prepared] = {}
        self._traces: dict[Hashable, Traced] = {}
        self._ahead: list[object] = []
        self._on: dict[object, Op] = {}

    # --- calls ------------------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the results. `out=`: arrays to write them to, in the structure in which the function returns them.

        Raises `ArgumentError`, `DTypeError` or `ShapeError` for arguments that do not fit, `DefinitionError` for
        equations that do not hold together, `BoundsError` for a data subscript out of range.
        """
        if settings.has_overrides() or tracing.is_tracing():
            return self._call_carefully(args, kwargs)
        ways = self._ways
        if not kwargs:
            if ways.plain is not None:
                result = ways.plain(*args)
                if result is not None:
                    return result
            if ways.torch is not None and (views := arrays.torch_views(args)) is not None:
                result = ways.torch(*views)
                if result is not None:
                    return result
        elif ways.into is not None and len(kwargs) == 1 and "out" in kwargs:
            out = kwargs["out"]
            outs = out if type(out) is tuple else (out,)
            if ways.into(*args, *outs) is not None:
                return out
        return self._call_like_before(args, kwargs)

    def _call_like_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is recognised at a glance, if it is like one before."""
        out = kwargs.get("out") if "out" not in self._names else None
        named = kwargs if out is None else {name: value for name, value in kwargs.items() if name != "out"}
        seen = self._glance.look(args, named)
        variant = self._hot.get(seen[0]) if seen is not None else None
        if seen is None or variant is None:
            return self._call_carefully(args, kwargs)
        if out is not None:
            if not variant.call.into(seen[1], out):
                return self._call_carefully(args, kwargs)
            if not named:
                self._ways.learn_into(seen[0], variant.call, args, out)
            return out
        results = variant.call(seen[1])
        if results is None:
            return self._call_carefully(args, kwargs)
        if not kwargs:
            self._ways.learn(seen[0], variant.call, variant.structure, args)
        return results[0] if variant.structure.make is None else variant.structure.rebuild(results)

    def _call_carefully(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose arguments are looked at one by one."""
        if tracing.is_tracing():
            return tracing.inline(self._function, self.signature, args, kwargs)
        named = dict(kwargs)
        out = named.pop("out", None) if "out" not in self._names else None
        given = self._bind(args, named)
        if out is not None:
            return self._call_into(given, out, args if not named else ())
        variant = self._variant(given, {})
        self._remember(args, named, variant)
        results = variant.call.new_results()
        variant.call.run(tuple(given.arrays.values()), results)
        if given.wrap is None:
            return variant.structure.rebuild(results)
        if given.wrap is arrays.as_torch and not named:
            self._ways.learn_torch(given.key(), variant.call, variant.structure, args)
        return variant.structure.rebuild(list(map(given.wrap, results)))

    def _call_into(self, given: Arguments, out: Any, args: tuple[Any, ...]) -> Any:
        traced = self._traced(given)
        values = result_arrays.by_position(out, traced.structure.rebuild(range(traced.structure.count)), "out")
        targets = {name: result_arrays.writable(values[n], name) for n, name in enumerate(traced.program.results)}
        compilation.check_places({**given.arrays, **targets}, self._target(given))
        strided = {name: array for name, array in targets.items() if arrays.layout(array) is not None}
        variant = self._variant(given, strided)
        run_into(variant.call, lambda: self._variant(given, {}).call, given.arrays, tuple(targets.values()))
        seen = self._glance.look(args, {}) if args else None
        if seen is not None:
            self._ways.learn_into(seen[0], variant.call, args, out)
        return out

    def _remember(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], variant: Variant) -> None:
        """Let the next call like this one be recognised at a glance."""
        seen = self._glance.look(args, kwargs)
        if seen is None or settings.has_overrides() or compilation.has_other_device():
            return
        _put(self._hot, seen[0], variant)

    # --- from arguments to a kernel -----------------------------------------------------------------------------

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        on_device = any(map(arrays.is_on_device, (*args, *kwargs.values())))
        if not on_device:
            return arguments.bind(self.signature, args, kwargs)
        target = compilation.choose_target(self._choices.target, on_device=True)
        compilation.check_runs_here(target)
        if target.gpu is None:
            arguments.refuse_device_arrays(self.signature, args, kwargs)
        given = arguments.bind(self.signature, args, kwargs)
        compilation.check_places(given.arrays, target)
        return given

    def _variant(self, given: Arguments, outs: Mapping[str, Array]) -> Variant:
        """The op prepared for arguments like these; made once, while other threads that want the same wait."""
        out_key = tuple((name, array.shape, arrays.layout(array)) for name, array in outs.items())
        key = (os.getpid(), settings.call_key(), compilation.device_key(), given.key(), out_key)
        prepared = self._variants.get(key)
        if prepared is None:
            prepared = self._variants.setdefault(key, _Prepared())
        try:
            return prepared.get(lambda: self._prepare(given, outs))
        except BaseException:
            self._variants.pop(key, None)
            raise
        finally:
            _forget_oldest(self._variants)

    def _prepare(self, given: Arguments, outs: Mapping[str, Array]) -> Variant:
        return self._for_equations(given, lambda traced: self._prepare_traced(traced, given, outs))

    def _prepare_traced(self, traced: Traced, given: Arguments, outs: Mapping[str, Array]) -> Variant:
        sizes = solve_sizes(self.signature, traced.program, given.shapes)
        target = self._target(given)
        compilation.check_runs_here(target)
        shapes = {name: array.shape for name, array in outs.items()}
        problem = replace(self._problem(traced, sizes, target), result_shapes=shapes)
        if target.gpu is not None:
            return Variant(compilation.gpu_call(problem, sizes, given.arrays, outs), traced.structure)
        layouts = {**given.layouts, **{name: arrays.layout(array) for name, array in outs.items()}}
        problem = replace(problem, layouts=_strided(layouts))
        if self._choices.tune:
            from polyopt import tuning  # only who tunes needs it

            tuning.ensure(problem, sizes)
        call = Call(compilation.kernel_for(problem), sizes, given.arrays, outs)
        compilation.check_strictly(problem, sizes, given.arrays, lambda: _results(call, given.arrays))
        return Variant(call, traced.structure)

    def _target(self, given: Arguments) -> Target:
        return compilation.choose_target(self._choices.target, on_device=given.is_on_device)

    def _problem(self, traced: Traced, sizes: Mapping[str, int], target: Target) -> Problem:
        """The problem for known sizes; those that are dynamic, and those not known, stay symbolic."""
        dynamic = self._dynamic(traced.program.sizes)
        with compilation.working(traced.program):
            program = specialise(traced.program, {name: size for name, size in sizes.items() if name not in dynamic})
        return Problem(program, program.sizes, {}, target, self._choices.numerics)

    def _dynamic(self, sizes: Sequence[str]) -> frozenset[str]:
        chosen = self._choices.dynamic
        if isinstance(chosen, bool):
            return frozenset(sizes if chosen else ())
        unknown = [name for name in chosen if name not in sizes]
        if unknown:
            raise ArgumentError(
                f"'{self.signature.name}' has no size '{unknown[0]}' to keep dynamic",
                where=self.signature.span,
                why=f"its sizes are {', '.join(sizes) or 'none'}",
                fix="name sizes that the annotations use",
                facts={"size": unknown[0], "sizes": tuple(sizes)},
            )
        return frozenset(chosen)

    def _for_equations(self, given: Arguments, use: Callable[[Traced], Value]) -> Value:
        """What `use` makes of the equations for arguments like these.

        Where they do not hold together with symbolic sizes, they are read once more with numbers for sizes: then
        slices clip as NumPy's do (`x[-3:]` of two elements), and sugar can say that two shapes do not fit together.
        """
        try:
            return use(self._traced(given))
        except (DefinitionError, BoundsError):
            if self._choices.dynamic:
                raise
            sizes = solve_sizes(self.signature, None, given.shapes)
            try:
                return use(self._trace_with_numbers(given.constants, given.free, sizes))
            except ShapeError as clearer:
                raise clearer from None
            except (DefinitionError, BoundsError):
                pass  # the first message has the sizes' names
            raise

    def _traced(self, given: Arguments) -> Traced:
        """The equations for arguments like these. Sizes stay symbolic, unless the function multiplies sizes."""
        sizes = functools.partial(solve_sizes, self.signature, None, given.shapes)
        return self._trace(given.constants, given.free, sizes)

    def _trace(
        self, constants: Mapping[str, object], free: Mapping[str, Any], sizes: Callable[[], dict[str, int]]
    ) -> Traced:
        """sizes: asked for where the equations are affine for numbers only"""
        key = (arguments.constants_key(constants), tuple(free.items()))
        try:
            return _remembered(
                self._traces, key, lambda: tracing.trace(self._function, self.signature, constants, free)
            )
        except NeedsSizes:
            return self._trace_with_numbers(constants, free, sizes())

    def _trace_with_numbers(
        self, constants: Mapping[str, object], free: Mapping[str, Any], sizes: dict[str, int]
    ) -> Traced:
        key = (arguments.constants_key(constants), tuple(free.items()), tuple(sizes.items()))
        make = functools.partial(tracing.trace, self._function, self.signature, constants, free, sizes)
        return _remembered(self._traces, key, make)

    # --- ahead of time, and looking inside ------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> Op:
        """Compile for sizes (`op.compile(M=512, N=512)`) or for arrays, ahead of a call. Returns the op."""
        if self._is_call(args, kwargs):
            self._variant(self._bind(args, kwargs), {})
            return self
        target = compilation.choose_target(self._choices.target)
        compilation.check_runs_here(target)
        problem = self._problem_for_sizes(args, kwargs, target)
        make = compilation.kernel_for if target.gpu is None else compilation.gpu_kernel_for
        self._ahead.append(make(problem))
        return self

    def lower(self, *args: Any, target: str | Target | None = None, **kwargs: Any) -> Lowering:
        """The stages of the compilation for sizes or for arrays; sizes that are left out stay symbolic."""
        machine = compilation.choose_target(target or self._choices.target)
        if not self._is_call(args, kwargs):
            return compilation.lower(self._problem_for_sizes(args, kwargs, machine))
        given = arguments.bind(self.signature, args, kwargs)
        return self._for_equations(given, lambda traced: self._lower_traced(traced, given, machine))

    def reference(self, *args: Any, numerics: str = "default", **kwargs: Any) -> Any:
        """The results by evaluating the equations one element at a time with NumPy: slow, in float64.

        numerics="strict": in the op's own dtypes, sums in index order, as a strict kernel computes them
        """
        from polyopt import reference
        from polyopt.codegen_c.vmath.numpy import forms

        given = arguments.bind(self.signature, args, kwargs)

        def resolved(traced: Traced) -> tuple[Program, Structure]:
            sizes = solve_sizes(self.signature, traced.program, given.shapes)
            with compilation.working(traced.program):
                return compilation.resolve(specialise(traced.program, sizes)), traced.structure

        program, structure = self._for_equations(given, resolved)
        with compilation.working(program):
            if numerics == "strict":
                values = reference.evaluate(program, given.arrays, precision="strict", functions=forms())
            else:
                values = reference.evaluate(program, given.arrays)
        return structure.rebuild([values[name] for name in program.results])

    def on(self, target: str | Target) -> Op:
        """The same op for another target: "cpu", "cuda", or a preset."""
        if target not in self._on:
            self._on[target] = Op(self._function, replace(self._choices, target=target))
        return self._on[target]

    def _is_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether these are the arguments of a call, and not sizes and compile-time values."""
        values = {**dict(zip(self._names, args)), **kwargs}
        given = (p for p in self.signature.parameters if p.name in values)
        return any(not arguments.is_constant(p, values[p.name]) for p in given)

    def _lower_traced(self, traced: Traced, given: Arguments, target: Target) -> Lowering:
        sizes = solve_sizes(self.signature, traced.program, given.shapes)
        problem = self._problem(traced, sizes, target)
        return compilation.lower(replace(problem, layouts=_strided(given.layouts)))

    def problem(self, **values: Any) -> Problem:
        """What a compile for these sizes and compile-time values decides on, as `polyopt.tuning` takes it."""
        return self._problem_for_sizes((), values, compilation.choose_target(self._choices.target))

    def _problem_for_sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: Target) -> Problem:
        values = {**dict(zip(self._names, args)), **kwargs}
        constants = {p.name: values.get(p.name, p.default) for p in self.signature.parameters if _is_known(p, values)}
        sizes = {name: value for name, value in values.items() if name not in self._names}
        self._refuse_unannotated(constants)
        traced = self._trace(constants, {}, lambda: sizes)
        _check_sizes(sizes, traced, self.signature)
        return self._problem(traced, sizes, target)

    def _refuse_unannotated(self, constants: Mapping[str, object]) -> None:
        for parameter in self.signature.parameters:
            if parameter.kind == "unannotated" and parameter.name not in constants:
                raise ArgumentError(
                    f"the dtype and rank of parameter '{parameter.name}' are not known",
                    where=self.signature.span,
                    why="it has no annotation, so they follow from the argument",
                    fix=f"pass arrays instead of sizes, or annotate it: {parameter.name}: f32[...]",
                    facts={"parameter": parameter.name},
                )

    def describe(self, **values: Any) -> str:
        """The signature and the equations, for these sizes and compile-time values where the equations depend on them.

        Without the equations where they depend on values that are not given, or on the dtypes of arguments.
        """
        constants = {p.name: values.get(p.name, p.default) for p in self.signature.parameters if _is_known(p, values)}
        sizes = {name: value for name, value in values.items() if name not in self._names}
        try:
            self._refuse_unannotated(constants)
            return f"{self.signature}\n\n{program_text(self._trace(constants, {}, lambda: sizes).program)}"
        except PolyoptError:
            return str(self.signature)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<op {self.signature}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the signature and the equations."""
        return fragment(self.signature.name, str(self))

    def __reduce__(self) -> str:
        """Pickled by name, as a function is."""
        return self._function.__qualname__

    # --- methods --------------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type) -> Op: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Method: ...
    def __get__(self, instance: object, owner: type | None = None) -> Op | Method:
        """As a function does: an op that stands in a class takes the instance as its first argument."""
        return self if instance is None else Method(self, instance)


class _Prepared:
    """A variant that is made by the first thread that wants it, while the others wait."""

    __slots__ = ("_lock", "_variant")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._variant: Variant | None = None

    def get(self, make: Callable[[], Variant]) -> Variant:
        if self._variant is None:
            with self._lock:
                if self._variant is None:
                    self._variant = make()
        return self._variant


class Method:
    """An op with its instance, as a bound method."""

    __slots__ = ("__self__", "op")

    def __init__(self, op: Op, instance: object) -> None:
        self.op = op
        self.__self__ = instance

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute, as `Op.__call__` does."""
        return self.op(self.__self__, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Method:
        """As `Op.compile`."""
        self.op.compile(self.__self__, *args, **kwargs)
        return self

    def lower(self, *args: Any, target: str | Target | None = None, **kwargs: Any) -> Lowering:
        """As `Op.lower`."""
        return self.op.lower(self.__self__, *args, target=target, **kwargs)

    def reference(self, *args: Any, numerics: str = "default", **kwargs: Any) -> Any:
        """As `Op.reference`."""
        return self.op.reference(self.__self__, *args, numerics=numerics, **kwargs)

    def on(self, target: str | Target) -> Method:
        """As `Op.on`."""
        return Method(self.op.on(target), self.__self__)


# --- making ops -------------------------------------------------------------------------------------------------


@overload
def op(function: Callable[..., Any], /) -> Op: ...
@overload
def op(
    *,
    dynamic: bool | str | Sequence[str] = False,
    target: str | Target | None = None,
    numerics: Numerics = "default",
    tune: bool = False,
) -> Callable[[Callable[..., Any]], Op]: ...
def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    dynamic: bool | str | Sequence[str] = False,
    target: str | Target | None = None,
    numerics: Numerics = "default",
    tune: bool = False,
) -> Op | Callable[[Callable[..., Any]], Op]:
    """Make a function of equations an operator: `@po.op`, or `@po.op(dynamic=["M"], numerics="strict")`.

    dynamic:  sizes that one kernel serves at every value; True for all
    target:   "cpu", "cuda" or a preset; by default where the arrays are
    numerics: "default" reorders declared reductions; "strict" computes in index order, bitwise as the reference; "fast"
    tune:     try several plans and keep the quickest
    """
    choices = Choices(_dynamic_names(dynamic), target, numerics, tune)
    if function is None:
        return lambda decorated: Op(decorated, choices)
    return Op(function, choices)


def einsum(*operands: Any, **options: Any) -> Any:
    """`numpy.einsum`, compiled: see `contraction.einsum`."""
    from polyopt import contraction  # it makes ops, so it builds on this module

    return contraction.einsum(*operands, **options)


# --- helpers ----------------------------------------------------------------------------------------------------


def _dynamic_names(dynamic: bool | str | Sequence[str]) -> tuple[str, ...] | bool:
    """The sizes to keep symbolic. Raises `ArgumentError` for what is neither a name, nor names, nor a truth value."""
    if isinstance(dynamic, bool):
        return dynamic
    if isinstance(dynamic, str):
        return tuple(dynamic.split())
    try:
        return tuple(map(str, dynamic))
    except TypeError:
        raise ArgumentError(
            f"dynamic cannot be {dynamic!r}",
            why="it names the sizes that one kernel serves at every value",
            fix="dynamic=['M'], or dynamic=True for all",
            facts={"dynamic": dynamic},
        ) from None


def _results(call: Runs, inputs: Mapping[str, Array]) -> list[Array]:
    results = call.new_results()
    call.run(tuple(inputs.values()), results)
    return results


def _strided(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    return {name: layout for name, layout in layouts.items() if layout is not None}


def _is_known(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether a compile-time parameter has a value, given or by default."""
    if parameter.name in values:
        return True
    return parameter.has_default and arguments.is_constant(parameter, parameter.default)


def _check_sizes(sizes: Mapping[str, Any], traced: Traced, signature: Signature) -> None:
    """Raise `ArgumentError` for a size that the op does not have, or that is no size."""
    known = sorted(_size_names(signature) | set(traced.program.sizes))
    for name, value in sizes.items():
        if name not in known:
            raise ArgumentError(
                f"'{signature.name}' has no size or compile-time parameter '{name}'",
                where=signature.span,
                why=f"its sizes are {', '.join(known) or 'none'}",
                fix="set only sizes and compile-time parameters of the op",
                facts={"size": name, "sizes": tuple(known)},
            )
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or not 0 <= value <= arrays.MAX_EXTENT:
            raise ArgumentError(
                f"size '{name}' cannot be {value!r}",
                why="a size is a whole number from 0 to 2**63 - 1",
                fix=f"{name}=512, for example",
                facts={"size": name},
            )


def _size_names(signature: Signature) -> set[str]:
    return {node.name for p in signature.parameters for dim in p.dims for node in walk(dim) if isinstance(node, Size)}


def _remembered(table: dict[Hashable, Traced], key: Hashable, make: Callable[[], Traced]) -> Traced:
    found = table.get(key)
    return found if found is not None else _put(table, key, make())


def _put(table: dict[Hashable, Value], key: Hashable, value: Value) -> Value:
    table[key] = value
    _forget_oldest(table)
    return value


def _forget_oldest(table: dict[Hashable, Any]) -> None:
    while len(table) > KEPT_CALLS:
        table.pop(next(iter(table)), None)
