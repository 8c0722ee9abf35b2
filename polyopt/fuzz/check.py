"""Runs one random operator and compares it with the reference, without tolerance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any, Literal

import numpy as np

import polyopt as po
from polyopt import compilation
from polyopt.classes import dataclass
from polyopt.errors import (
    ArgumentError,
    BackendUnavailable,
    BoundsError,
    CompileError,
    DefinitionError,
    DTypeError,
    PolyoptError,
    ShapeError,
)
from polyopt.fuzz.arrays import Argument, Array, draw, lay_out, shifted
from polyopt.fuzz.case import Case, shape_of
from polyopt.fuzz.plans import draw as draw_plan
from polyopt.fuzz.plans import plan_text
from polyopt.fuzz.plans import run as run_plan
from polyopt.fuzz.printed import run as run_printed
from polyopt.pipeline import Lowering
from polyopt.runtime.cuda import compilers, devices
from polyopt.runtime.emulator.driver import Emulator

Verdict = Literal["agrees", "rejected", "fails"]
OUTSIDE = 120
"""A subscript beyond every extent that is drawn, which every integer dtype holds."""
REFUSALS = (DefinitionError, ShapeError, BoundsError, DTypeError, ArgumentError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    kind:    a word for the failure, or the error's type
    detail:  what was seen
    kernels: how many were compiled, run and found right
    """

    verdict: Verdict
    kind: str = ""
    detail: str = ""
    kernels: int = 0


class Mismatch(AssertionError):
    """A kernel does not do what the reference does. kind: "mismatch", "refused", "accepted", "fallback",
    "printed C", "compiled" by NVRTC, or "access", a race or a wrong access on the emulator."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class _Text(InspectLoader):
    """Loads a module from source text, which stays readable for error messages."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source


def load(source: str) -> po.Op:
    """The operator `fuzzed` of a module's source."""
    spec = spec_from_loader("polyopt_fuzzed", _Text(source), origin="fuzzed.py")
    assert spec is not None, "a loader makes a specification"
    module = module_from_spec(spec)
    _Text(source).exec_module(module)
    operator: po.Op = module.fuzzed
    return operator


def check(case: Case) -> Outcome:
    """Runs a case. Every exception but a refusal that the reference shares is a failure."""
    try:
        operator = load(case.operator_source())
        arguments, *others = (
            [
                draw(shape_of(p.dims, sizes), p.dtype, p.low, p.high, p.layout, seed=p.seed, rough=p.rough)
                for p in case.parameters
            ]
            for sizes in case.calls()
        )
        po.set_num_threads(case.threads)
        count = compare(
            operator,
            arguments,
            out=case.out,
            plans=case.plans,
            gpu=case.gpu,
            printed=case.printed,
            others=others,
        )
    except Mismatch as found:
        if found.kind == "refused" and "dynamic" in dict(case.options):
            return Outcome("rejected", found.kind, found.detail)  # for some sizes, though not for these
        return Outcome("fails", found.kind, found.detail)
    except (*REFUSALS, BackendUnavailable) as error:
        return Outcome("rejected", type(error).__name__, error.what)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Outcome("fails", type(error).__name__, str(error))
    return Outcome("agrees", kernels=count)


def compare(
    operator: po.Op,
    arguments: Sequence[Argument],
    *,
    out: str | None = None,
    plans: Sequence[int] = (),
    gpu: bool = False,
    printed: bool = False,
    others: Sequence[Sequence[Argument]] = (),
) -> int:
    """Hold an operator against its reference. Raises `Mismatch`, or the refusal that both share.

    plans: seeds of plans to run the operator under as well
    gpu:   whether the operator is for a GPU; the emulator runs it, and looks at every access, and then, if NVRTC is
           installed, what that makes of it
    printed: whether to run what is printed as C, too
    others: arguments of further calls, with other sizes
    Returns the number of kernels.
    """
    if not gpu:
        kernels = _compare_calls(operator, arguments, out, plans, printed=printed)
        _compare_sizes(operator, others)
        return kernels
    emulator = compilation.emulator()
    with devices.use(emulator):
        kernels = _compare_calls(operator, arguments, out, ())
        _compare_sizes(operator, others)
        emulator.seed = 1  # the threads in another order
        _compare_calls(operator, arguments, None, ())
    _compare_accesses(emulator)
    if compilers.nvrtc() is not None:
        kernels += _compare_compiled(operator, arguments)
    return kernels


def _compare_compiled(operator: po.Op, arguments: Sequence[Argument]) -> int:
    """Hold what NVRTC makes of an operator for a GPU, if the emulator knows its instructions, against the reference."""
    emulator = compilation.emulator(through_ptx=True)
    try:
        with devices.use(emulator):
            kernels = _compare_calls(operator, arguments, None, ())
    except CompileError as error:
        if "instruction" not in error.facts:
            raise
        return 0
    except Mismatch as found:
        raise Mismatch("compiled", found.detail) from None
    _compare_accesses(emulator)
    return kernels


def _compare_accesses(emulator: Emulator) -> None:
    if emulator.found:
        raise Mismatch("access", "\n".join(map(str, emulator.found)))


def _compare_calls(
    operator: po.Op, arguments: Sequence[Argument], out: str | None, plans: Sequence[int], *, printed: bool = False
) -> int:
    copies = [argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    wanted, refusal = _reference(operator, copies)
    with _Warnings() as warnings:
        results = _results(operator, arguments, wanted, refusal, out)
        if out is None:
            for _ in range(2):  # calls after the first take shorter ways into the kernel
                _compare(_as_tuple(operator(*arguments)), results, "another call gives another result", exact=True)
            _compare_with_others(operator, copies)
            _compare_out_of_range(operator, copies, printed=printed)
    exact = _is_exact(operator)
    if wanted is not None:
        _compare(results, wanted, "the kernel differs from the reference", exact=exact)
    if out not in ("input", "overlap"):
        _compare(arguments, copies, "an argument was changed", exact=True)
    if warnings.seen:
        raise Mismatch("fallback", warnings.seen[0])
    kernels = 1
    if (plans or printed) and wanted is not None:
        lowering = operator.lower(*copies)
        kernels += sum(_compare_plan(lowering, seed, copies, wanted) for seed in plans)
        if printed:
            drawn = (draw_plan(lowering, seed) for seed in plans[:1])
            kernels += sum(_compare_printed(one, copies, wanted) for one in (lowering, *drawn) if one is not None)
    return kernels


def _compare_with_others(operator: po.Op, arguments: Sequence[Argument]) -> None:
    """Hold a call with other numbers in arrays of the same shapes against the reference."""
    others = [np.flip(a).copy() if isinstance(a, np.ndarray) else a for a in arguments]
    wanted, refusal = _reference(operator, others)
    try:
        results = _results(operator, others, wanted, refusal, None)
    except REFUSALS:
        return
    if wanted is not None:
        what = "the kernel differs from the reference for the arrays turned around"
        _compare(results, wanted, what, exact=_is_exact(operator))


def _compare_sizes(operator: po.Op, others: Sequence[Sequence[Argument]]) -> None:
    """Hold calls with other sizes against the reference; a kernel for many sizes may refuse some that it takes."""
    for arguments in others:
        wanted, refusal = _reference(operator, arguments)
        try:
            results = _results(operator, arguments, wanted, refusal, None)
        except REFUSALS:
            continue
        except Mismatch as found:
            if found.kind == "refused":
                continue
            raise
        if wanted is not None:
            what = "the kernel differs from the reference for other sizes"
            _compare(results, wanted, what, exact=_is_exact(operator))


def _compare_out_of_range(operator: po.Op, arguments: Sequence[Argument], *, printed: bool) -> None:
    """Hold a call with a subscript out of range, which data may leave out, against the reference."""
    names = list(operator.signature.python.parameters)
    others = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    ids = others[names.index("ids")] if "ids" in names else None
    if not isinstance(ids, np.ndarray) or not ids.size:
        return
    ids.flat[ids.size // 2] = OUTSIDE
    wanted, refusal = _reference(operator, others)
    try:
        results = _results(operator, others, wanted, refusal, None)
    except BoundsError:
        if printed and _is_accepted_as_c(operator.lower(*others), others):
            raise Mismatch("accepted", f"the printed C does not say: {refusal}") from None
        return
    if wanted is not None:
        what = "the kernel differs from the reference for a subscript that nobody asks for"
        _compare(results, wanted, what, exact=_is_exact(operator))


def _is_accepted_as_c(lowering: Lowering, arguments: Sequence[Argument]) -> bool:
    try:
        return run_printed(lowering, arguments) is not None
    except AssertionError:
        return False


def _compare_plan(lowering: Lowering, seed: int, arguments: Sequence[Argument], wanted: Sequence[Array]) -> bool:
    """Hold a plan that is drawn, if one is proved, against the reference."""
    drawn = draw_plan(lowering, seed)
    if drawn is None:
        return False
    try:
        results = run_plan(drawn, arguments, effort=seed % 4)
    except Exception as error:
        kind = type(error).__name__
        raise Mismatch(f"plan {kind}", f"{error}\n{plan_text(drawn, seed)}") from error
    try:
        exact = lowering.options.numerics == "strict"
        _compare(results, wanted, "a plan that was proved differs from the reference", exact=exact)
    except Mismatch as found:
        raise Mismatch("plan", f"{found.detail}\n{plan_text(drawn, seed)}") from None
    return True


def _compare_printed(lowering: Lowering, arguments: Sequence[Argument], wanted: Sequence[Array]) -> bool:
    """Hold what is printed as C, if there is a compiler for it, against the reference."""
    try:
        results = run_printed(lowering, arguments)
    except (CompileError, AssertionError) as error:
        raise Mismatch("printed C", f"{error}\n{lowering.loops}") from error
    if results is None:
        return False
    try:
        _compare(results, wanted, "the printed C differs from the reference", exact=False)
    except Mismatch as found:
        raise Mismatch("printed C", f"{found.detail}\n{lowering.loops}") from None
    return True


def _reference(operator: po.Op, arguments: Sequence[Argument]) -> tuple[tuple[Array, ...] | None, PolyoptError | None]:
    """The results in the operator's own dtypes, or why there are none."""
    try:
        return _as_tuple(operator.reference(*arguments, numerics="strict")), None
    except REFUSALS as refusal:
        return None, refusal


def _results(
    operator: po.Op,
    arguments: Sequence[Argument],
    wanted: tuple[Array, ...] | None,
    refusal: PolyoptError | None,
    out: str | None,
) -> tuple[Array, ...]:
    try:
        results = _call(operator, arguments, wanted, out)
    except REFUSALS as error:
        if refusal is None:
            raise Mismatch("refused", f"{type(error).__name__}: {error}") from error
        raise
    if refusal is not None:
        raise Mismatch("accepted", f"the reference says {type(refusal).__name__}: {refusal}")
    return results


def _call(
    operator: po.Op, arguments: Sequence[Argument], wanted: tuple[Array, ...] | None, out: str | None
) -> tuple[Array, ...]:
    if out is None or wanted is None:
        return _as_tuple(operator(*arguments))
    given: list[Argument] = list(arguments)
    outs = [lay_out(np.zeros_like(np.asarray(w)), out) for w in wanted]
    if out in ("input", "overlap"):
        _share_memory(given, outs, out)
    operator(*given, out=outs[0] if len(outs) == 1 else tuple(outs))
    return tuple(outs)


def _share_memory(arguments: list[Argument], outs: list[Array], out: str) -> None:
    """Put the first result into the memory of the first argument that fits, if there is one."""
    for number, argument in enumerate(arguments):
        if not isinstance(argument, np.ndarray) or not argument.ndim:
            continue
        if argument.dtype == outs[0].dtype and argument.shape == outs[0].shape:
            if out == "input":
                arguments[number] = outs[0] = argument.copy()
            else:
                arguments[number], outs[0] = shifted(argument)
            return


def _compare(got: Sequence[Argument], wanted: Sequence[Argument], what: str, *, exact: bool) -> None:
    """Raises `Mismatch` where numbers differ. exact: 0.0 and -0.0 differ too; NaN is NaN, whatever its bits."""
    for number, (a, b) in enumerate(zip(map(np.asarray, got), map(np.asarray, wanted), strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            raise Mismatch("mismatch", f"{what}: {number} is {a.dtype}{a.shape} and should be {b.dtype}{b.shape}")
        differs = np.asarray((a != b) & ((a == a) | (b == b)))
        if exact and a.dtype.kind not in "biu":
            differs |= (a == b) & (np.signbit(a) != np.signbit(b))
        wrong = np.argwhere(differs)
        if len(wrong):
            place = tuple(map(int, wrong[0]))
            seen = f"{number}{list(place)} is {a[place]} and should be {b[place]}; {len(wrong)} of {a.size} are off"
            raise Mismatch("mismatch", f"{what}: {seen}")


def _is_exact(operator: po.Op) -> bool:
    """Whether results have the bits of the reference."""
    return operator._choices.numerics == "strict"


def _as_tuple(results: Any) -> tuple[Array, ...]:
    parts = results if isinstance(results, tuple) else (results,)
    return tuple(map(np.asarray, parts))


_LOGGERS = ("polyopt.pipeline", "polyopt.rewriting")


class _Warnings(logging.Handler):
    """Collects the compiler's warnings: a plan that had to be given up is a failure of the planner."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())

    def __enter__(self) -> _Warnings:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
