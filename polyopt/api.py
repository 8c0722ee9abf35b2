"""Operators as a user calls them: `@po.op`, calls, and the ways to look inside."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, overload

from polyopt import bounded, compilation, settings
from polyopt.classes import dataclass
from polyopt.dsl import inlining
from polyopt.dsl import trace as tracing
from polyopt.dsl.bind import solve_sizes
from polyopt.dsl.expr import Size
from polyopt.dsl.ir import Program
from polyopt.dsl.results import Structure
from polyopt.dsl.signature import Signature, read_signature
from polyopt.dsl.spans import ends_at_the_user, hide_internals
from polyopt.dsl.trace import Traced
from polyopt.equations import Equations, specialised
from polyopt.errors import ArgumentError, PolyoptError
from polyopt.forks import COMPILING, is_compiling
from polyopt.problem import Choices, Numerics, Problem, check_choices, dynamic_names
from polyopt.quick import QuickWays, written
from polyopt.runtime import arguments, arrays, pool
from polyopt.runtime import outs as result_arrays
from polyopt.runtime.arguments import Arguments
from polyopt.runtime.arrays import Array, Layout
from polyopt.runtime.calls import Call, Runs, run_into
from polyopt.runtime.glance import Glance, Seen
from polyopt.runtime.state import Composed, Unchanging
from polyopt.target import Target
from polyopt.text import fragment
from polyopt.working import working

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering

settings.configure_logging(settings.topics())

set_num_threads = pool.set_num_threads
strict_checks = settings.strict_checks


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """An op prepared for one kind of call. structure: how its results are put together."""

    call: Runs
    structure: Structure


class Op(Unchanging):
    """A function of equations, compiled for the arrays it is called with.

    `op(x, w)` computes; `op(x, w, out=y)` computes into existing arrays. Inside another op its equations are inlined.
    """

    def __init__(self, function: Callable[..., Any], choices: Choices, signature: Signature | None = None) -> None:
        """signature: the function's, where it is known: annotations may name what is there when it is defined only"""
        functools.update_wrapper(self, function)
        self.signature = signature or read_signature(function)
        self._function = function
        self._choices = check_choices(choices)
        self._equations = Equations(function, self.signature, self._choices)
        self._names = tuple(parameter.name for parameter in self.signature.parameters)
        self._is_positional = not any(parameter.is_keyword_only for parameter in self.signature.parameters)
        self._glance = Glance(self.signature)
        self._ways = QuickWays(self.signature)
        self._hot: dict[Hashable, Variant] = {}
        self._variants: dict[Hashable, _Prepared] = {}
        self._ahead: list[object] = []
        self._on: dict[object, Op] = {}
        self._parent: Op | None = None

    # --- calls ------------------------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the results. `out=`: arrays to write them to, in the structure in which the function returns them.

        Raises `ArgumentError`, `DTypeError` or `ShapeError` for arguments that do not fit, `DefinitionError` for
        equations that do not hold together, `BoundsError` for a data subscript out of range.
        """
        try:
            if settings.has_overrides() or tracing.is_tracing():
                return self._call_carefully(args, kwargs)
            ways = self._ways
            if not kwargs:
                if ways.plain is not None and self._is_positional:
                    result = ways.plain(*args)
                    if result is not None:
                        return result
                if ways.torch is not None and (views := arrays.torch_views(args)) is not None:
                    result = ways.torch(*views)
                    if result is not None:
                        return result
            elif ways.into is not None and self._is_positional and len(kwargs) == 1 and len(args) == len(self._names):
                out = kwargs.get("out")
                outs = written(out)
                if outs is not None and ways.into(*args, *outs) is not None:
                    return out
            return self._call_like_before(args, kwargs)
        except PolyoptError as error:
            hide_internals(error)
            raise

    def _call_like_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is recognised at a glance, if it is like one before."""
        out = kwargs.get("out") if "out" not in self._names else None
        named = kwargs if out is None else {name: value for name, value in kwargs.items() if name != "out"}
        values = self._glance.values(args, named)
        if values is None:
            return self._call_carefully(args, kwargs)
        found = self._call_quickly(values, out) if len(values) > len(args) else None
        if found is not None:
            return found
        seen = self._glance.look_at(values)
        variant = self._hot.get(seen[0]) if seen is not None else None
        if seen is None or variant is None or compilation.has_other_device():
            return self._call_carefully(args, kwargs)
        if out is not None:
            if variant.structure.make is not None or not variant.call.into(seen[1], out):
                return self._call_carefully(args, kwargs)
            self._ways.learn_into(seen[0], variant.call, values, out)
            return out
        results = variant.call(seen[1])
        if results is None:
            return self._call_carefully(args, kwargs)
        self._ways.learn(seen[0], variant.call, variant.structure, values)
        return results[0] if variant.structure.make is None else variant.structure.rebuild(results)

    def _call_quickly(self, values: tuple[Any, ...], out: Any) -> Any:
        """A call with every parameter's value, in order, by the quick way; None where that does not know it."""
        ways = self._ways
        if out is None:
            return None if ways.plain is None else ways.plain(*values)
        outs = written(out)
        if outs is None or ways.into is None or ways.into(*values, *outs) is None:
            return None
        return out

    def _call_carefully(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose arguments are looked at one by one."""
        if tracing.is_tracing():
            return inlining.inline(self._function, self.signature, args, kwargs, arrays.scalar)
        named = dict(kwargs)
        out = named.pop("out", None) if "out" not in self._names else None
        seen = self._glance.look(args, named)  # first: equations may change what they look at
        given = self._bind(args, named)
        if out is not None:
            return self._call_into(given, out, args, named, seen)
        variant = self._variant(given, {})
        if given.is_as_given:
            self._remember(seen, args, named, variant)
        results = variant.call.new_results()
        variant.call.run(tuple(given.arrays.values()), results)
        if given.wrap is None:
            return variant.structure.rebuild(results)
        if given.wrap is arrays.as_torch and not named and given.is_as_given:
            self._ways.learn_torch(given.key(), variant.call, variant.structure, args)
        return variant.structure.rebuild(list(map(given.wrap, results)))

    def _call_into(
        self, given: Arguments, out: Any, args: tuple[Any, ...], named: Mapping[str, Any], seen: Seen | None
    ) -> Any:
        traced = self._equations.traced(given)
        values = result_arrays.by_position(out, traced.structure.rebuild(range(traced.structure.count)), "out")
        targets = {name: result_arrays.writable(values[n], name) for n, name in enumerate(traced.program.results)}
        compilation.check_places({**given.arrays, **targets}, self._target(given))
        aligned = {name: array for name, array in targets.items() if arrays.is_aligned(array)}
        strided = {name: array for name, array in aligned.items() if arrays.layout(array) is not None}
        variant = self._variant(given, strided)
        run_into(variant.call, lambda: self._variant(given, {}).call, given.arrays, tuple(targets.values()))
        if given.is_as_given and not strided:
            self._remember(seen, args, named, variant)
        if seen is not None and args and not named and given.is_as_given and len(aligned) == len(targets):
            self._ways.learn_into(seen[0], variant.call, args, out)
        return out

    def _remember(self, seen: Seen | None, args: tuple[Any, ...], kwargs: Mapping[str, Any], variant: Variant) -> None:
        """Let the next call like this one be recognised at a glance, if compile-time values are still as `seen`."""
        if seen is None or settings.has_overrides() or compilation.has_other_device():
            return
        again = self._glance.look(args, kwargs)
        if again is not None and again[0] == seen[0]:
            bounded.put(self._hot, seen[0], variant)

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
            bounded.trim(self._variants)

    def _prepare(self, given: Arguments, outs: Mapping[str, Array]) -> Variant:
        return self._equations.apply(lambda traced: self._prepare_traced(traced, given, outs), given)

    def _prepare_traced(self, traced: Traced, given: Arguments, outs: Mapping[str, Array]) -> Variant:
        sizes = solve_sizes(self.signature, traced.program, given.shapes)
        target = self._target(given)
        compilation.check_runs_here(target)
        shapes = {name: array.shape for name, array in outs.items()}
        problem = replace(self._equations.problem(traced, sizes, target), result_shapes=shapes)
        if target.gpu is not None:
            return Variant(compilation.gpu_call(problem, sizes, given.arrays, outs), traced.structure)
        layouts = {**given.layouts, **{name: arrays.layout(array) for name, array in outs.items()}}
        problem = replace(problem, layouts=_strided(layouts))
        if self._choices.tune:
            from polyopt import tuning  # only who tunes needs it

            tuning.ensure(problem, sizes)
        call = Call(compilation.kernel_for(problem), sizes, given.arrays, outs)
        compilation.check_strictly(problem, sizes, given.arrays, lambda: _results(call, given.arrays, outs))
        return Variant(call, traced.structure)

    def _target(self, given: Arguments) -> Target:
        return compilation.choose_target(self._choices.target, on_device=given.is_on_device)

    # --- ahead of time, and looking inside ------------------------------------------------------------------------

    @ends_at_the_user
    def compile(self, /, *args: Any, **kwargs: Any) -> Op:
        """Compile for sizes (`op.compile(M=512, N=512)`) or for arrays, ahead of a call. Returns the op."""
        if self._is_call(args, kwargs):
            self._variant(self._bind(args, kwargs), {})
            return self
        target = compilation.choose_target(self._choices.target)
        compilation.check_runs_here(target)
        make: Callable[[Problem], object] = compilation.kernel_for
        if target.gpu is not None:
            make = compilation.gpu_kernel_for
        self._ahead.append(self._equations.apply_to_values(make, self._by_name(args, kwargs), target))
        return self

    @ends_at_the_user
    def lower(self, /, *args: Any, target: str | Target | None = None, **kwargs: Any) -> Lowering:
        """The stages of the compilation for sizes or for arrays; sizes that are left out stay symbolic."""
        if "target" in self._names and _is_argument(target):
            target, kwargs = None, {**kwargs, "target": target}
        machine = compilation.choose_target(self._choices.target if target is None else target)
        if not self._is_call(args, kwargs):
            return self._equations.apply_to_values(compilation.lower, self._by_name(args, kwargs), machine)
        given = arguments.bind(self.signature, args, kwargs)
        return self._equations.apply(lambda traced: self._lower_traced(traced, given, machine), given)

    @ends_at_the_user
    def reference(self, /, *args: Any, numerics: str = "default", **kwargs: Any) -> Any:
        """The results by evaluating the equations one element at a time with NumPy: slow, in float64.

        numerics="strict": in the op's own dtypes, sums in index order, as a strict kernel computes them
        """
        with COMPILING:  # so that none is half imported where a process forks
            from polyopt import reference
            from polyopt.codegen_c.vmath.numpy import forms

        check_choices(replace(self._choices, numerics=numerics))  # type: ignore[arg-type]  # it is what is checked
        given = arguments.bind(self.signature, args, kwargs)

        def resolved(traced: Traced) -> tuple[Program, Structure]:
            sizes = solve_sizes(self.signature, traced.program, given.shapes)
            return compilation.resolve(specialised(traced.program, sizes)), traced.structure

        program, structure = self._equations.apply(resolved, given)
        evaluate = functools.partial(reference.evaluate, program, given.arrays)
        if numerics == "strict":
            evaluate = functools.partial(evaluate, precision="strict", functions=forms())
        values = working(program, evaluate)
        return structure.rebuild([values[name] for name in program.results])

    def on(self, target: str | Target) -> Op:
        """The same op for another target: "cpu", "cuda", or a preset."""
        try:
            found = self._on.get(target)
        except TypeError:  # what has no hash is no target, as the check says
            found = None
        if found is None:
            choices = replace(self._choices, target=target)
            check_choices(choices)
            made = Op(self._function, choices, self.signature)
            made._parent = self
            found = self._on.setdefault(target, made)
        return found

    def _is_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether these are the arguments of a call, and not sizes and compile-time values.

        Raises `ArgumentError` for a run-time number beside sizes.
        """
        values = self._by_name(args, kwargs)
        given = (p for p in self.signature.parameters if p.name in values)
        found = next((p.name for p in given if not arguments.is_constant(p, values[p.name])), None)
        size = next((name for name in kwargs if name not in self._names), None)
        if found is not None and size is not None and isinstance(values[found], int | float):
            raise ArgumentError(
                f"{self.signature.name}: '{found}' is an argument of a call, and '{size}' is none",
                why="either sizes and compile-time values are given, or what a call is given",
                fix=f"leave out '{found}', or '{size}'",
                facts={"argument": found, "size": size},
            )
        return found is not None

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._names, args)), **kwargs}

    def _lower_traced(self, traced: Traced, given: Arguments, target: Target) -> Lowering:
        sizes = solve_sizes(self.signature, traced.program, given.shapes)
        problem = self._equations.problem(traced, sizes, target)
        return compilation.lower(replace(problem, layouts=_strided(given.layouts)))

    def problem(self, /, **values: Any) -> Problem:
        """What a compile for these sizes and compile-time values decides on, as `polyopt.tuning` takes it."""
        target = compilation.choose_target(self._choices.target)
        return self._equations.apply_to_values(_resolvable, values, target)

    def describe(self, /, **values: Any) -> str:
        """The signature and the equations, for these sizes and compile-time values where the equations depend on them.

        Without the equations where they depend on values that are not given, or on the dtypes of arguments.
        """
        try:
            program = self._equations.traced_for_values(values).program
            return f"{self.signature}\n\n{working(program, lambda: str(program))}"
        except PolyoptError:
            return str(self.signature)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<op {self.signature}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the signature and the equations."""
        return fragment(self.signature.name, str(self))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name, as a function is; one for another target by the op that it was made from."""
        if self._parent is not None:
            return _on_target, (self._parent, self._choices.target)
        return self._function.__qualname__

    def __copy__(self) -> Op:
        """Itself, as a function's copy is."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Op:
        """Itself, as a function's copy is."""
        return self

    # --- methods --------------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type) -> Op: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Method: ...
    def __get__(self, instance: object, owner: type | None = None) -> Op | Method:
        """As a function does: an op that stands in a class takes the instance as its first argument."""
        return self if instance is None else Method(self, instance)


class _Prepared:
    """A variant that is made by the first thread that wants it, while the others wait.

    A signal handler or a finaliser that wants it in a thread that makes or compiles something makes it itself: whoever
    makes it may wait for that very thread.
    """

    __slots__ = ("_lock", "_variant")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._variant: Variant | None = None

    def get(self, make: Callable[[], Variant]) -> Variant:
        if self._variant is None:
            is_alone = self._lock.acquire(blocking=not (_MAKING.depth or is_compiling()))
            _MAKING.depth += 1
            try:
                if self._variant is None:
                    self._variant = make()
            finally:
                _MAKING.depth -= 1
                if is_alone:
                    self._lock.release()
        return self._variant


class _Making(threading.local):
    """How many variants, one inside the other, this thread makes."""

    depth = 0


_MAKING = _Making()


class Method(Composed):
    """An op with its instance, as a bound method: equal to another one of the same two."""

    __slots__ = ("__self__", "__weakref__", "op")

    def __init__(self, op: Op, instance: object) -> None:
        self.op = op
        self.__self__ = instance

    @property
    def parts(self) -> Sequence[object]:
        """What decides what it computes."""
        return self.op, self.__self__

    @property
    def __func__(self) -> Op:
        return self.op

    @property
    def __name__(self) -> str:
        return self.op.signature.name

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Python's own method: `inspect.signature` looks for it."""
        return MethodType(self.op._function, self.__self__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.op is other.op and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash((id(self.op), id(self.__self__)))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute, as `Op.__call__` does."""
        try:
            return self.op(self.__self__, *args, **kwargs)
        except PolyoptError as error:
            hide_internals(error)
            raise

    @ends_at_the_user
    def compile(self, /, *args: Any, **kwargs: Any) -> Method:
        """As `Op.compile`."""
        self.op.compile(self.__self__, *args, **kwargs)
        return self

    @ends_at_the_user
    def lower(self, /, *args: Any, target: str | Target | None = None, **kwargs: Any) -> Lowering:
        """As `Op.lower`."""
        return self.op.lower(self.__self__, *args, target=target, **kwargs)

    @ends_at_the_user
    def reference(self, /, *args: Any, numerics: str = "default", **kwargs: Any) -> Any:
        """As `Op.reference`."""
        return self.op.reference(self.__self__, *args, numerics=numerics, **kwargs)

    def on(self, target: str | Target) -> Method:
        """As `Op.on`."""
        return Method(self.op.on(target), self.__self__)

    def __str__(self) -> str:
        return self.op.describe(**self._bound())

    def __repr__(self) -> str:
        return f"<bound {repr(self.op)[1:-1]} of {self.__self__!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the signature and the equations."""
        return fragment(self.op.signature.name, str(self))

    def _bound(self) -> dict[str, object]:
        return {parameter.name: self.__self__ for parameter in self.op.signature.parameters[:1]}


def _is_argument(target: object) -> bool:
    """Whether what is given as `target` is for a parameter of that name."""
    return target is not None and not isinstance(target, str | Target)


# --- making ops -------------------------------------------------------------------------------------------------


@overload
def op(function: Callable[..., Any], /) -> Op: ...
@overload
def op(
    *,
    dynamic: bool | str | Size | Sequence[str | Size] = False,
    target: str | Target | None = None,
    numerics: Numerics = "default",
    tune: bool = False,
) -> Callable[[Callable[..., Any]], Op]: ...
@ends_at_the_user
def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    dynamic: bool | str | Size | Sequence[str | Size] = False,
    target: str | Target | None = None,
    numerics: Numerics = "default",
    tune: bool = False,
) -> Op | Callable[[Callable[..., Any]], Op]:
    """Make a function of equations an operator: `@po.op`, or `@po.op(dynamic=["M"], numerics="strict")`.

    dynamic:  sizes, or names of sizes, that one kernel serves at every value; True for all
    target:   "cpu", "cuda" or a preset; by default where the arrays are
    numerics: "default" reorders declared reductions; "strict" computes in index order, bitwise as the reference; "fast"
              also lets LLVM reorder and approximate
    tune:     try several plans and keep the quickest
    """
    choices = Choices(dynamic_names(dynamic), target, numerics, tune)
    if function is None:
        return ends_at_the_user(lambda decorated: Op(decorated, choices))
    return Op(function, choices)


def einsum(*operands: Any, **options: Any) -> Any:
    """`numpy.einsum`, compiled: see `contraction.einsum`."""
    return _einsum()(*operands, **options)


@functools.cache
def _einsum() -> Callable[..., Any]:
    with COMPILING:  # so that it is not half imported where a process forks
        from polyopt import contraction  # it makes ops, so it builds on this module

        return contraction.einsum


# --- helpers ----------------------------------------------------------------------------------------------------


def _results(call: Runs, inputs: Mapping[str, Array], outs: Mapping[str, Array]) -> list[Array]:
    """What the call computes, in arrays that lie in memory as those of `outs` do, which it was made for."""
    results = [
        arrays.laid_out_as(outs[info.name]) if info.name in outs else new
        for (info, _), new in zip(call.results, call.new_results())
    ]
    call.run(tuple(inputs.values()), results)
    return results


def _resolvable(problem: Problem) -> Problem:
    """The problem, once ranges and shapes are found to hold together."""
    compilation.resolve(problem.program)
    return problem


def _on_target(op: Op, target: str | Target) -> Op:
    """What a pickled `op.on(target)` is read as."""
    return op.on(target)


def _strided(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    return {name: layout for name, layout in layouts.items() if layout is not None}
