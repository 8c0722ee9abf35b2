"""`po.einsum` outside an op: what `numpy.einsum` computes, compiled once per kind of call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from polyopt import bounded, dtypes
from polyopt.api import Op
from polyopt.classes import dataclass
from polyopt.dsl import einsum as symbolic
from polyopt.dsl import functions
from polyopt.dsl.elaborate import dtype_now
from polyopt.dsl.expr import Element, Expr
from polyopt.dsl.state import Handle
from polyopt.dsl.symbols import as_dtype
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, DTypeError, ShapeError
from polyopt.problem import Choices
from polyopt.runtime import arrays
from polyopt.runtime import outs as result_arrays
from polyopt.runtime.arrays import Array, Given

Labels = tuple[str, ...]

_KEPT_OPS = 1024
_EXACT_SEARCH_OPERANDS = 5
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ORDERS = ("C", "F", "A", "K")
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


def einsum(
    *operands: Any,
    out: Any = None,
    optimize: object = False,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
) -> Any:
    """Compute `numpy.einsum("ij,jk->ik", a, b)` or `einsum(a, [0, 1], b, [1, 2], [0, 2])` with a compiled kernel.

    Implicit output, ellipsis, repeated subscripts and broadcasting are NumPy's, and so is the dtype of the result,
    which is always a new array (0-d for a full contraction). `optimize` is accepted and means nothing: the order of
    contraction is always chosen here.
    Raises `ArgumentError` and `ShapeError` (both a `ValueError`) or `DTypeError` (a `TypeError`) where NumPy raises,
    and `DTypeError` for complex, longdouble and object arrays.
    """
    is_plain = out is None and dtype is None and order == "K" and casting == "safe"
    key = _key(operands) if is_plain else None
    if key is not None and (known := _PLAIN.get(key)) is not None:
        return known(*operands[1:])
    given: dict[int, Given] = {}

    def rank(operand: object) -> int:
        given[id(operand)] = found = _accept(operand, len(given))
        return found.array.ndim

    values, subscripts = symbolic.parse(operands, rank)
    inputs = [given[id(value)].array for value in values]
    target = None if out is None else result_arrays.writable(out, "einsum")
    common = _common_dtype(inputs, target, dtype, casting)
    op = _EINSUMS.op(subscripts, inputs, common)
    if key is not None:
        bounded.put(_PLAIN, key, op, _KEPT_OPS)
    if target is not None:
        _write(target, op, inputs, common, casting)
        return out
    result = _ordered(op(*inputs), order, inputs)
    wrap = next((operand.wrap for operand in given.values() if operand.wrap is not None), None)
    return result if wrap is None else wrap(result)


_PLAIN: dict[Hashable, Op] = {}
"""The ops of calls without options: by the text, and dtype and shape of each array."""


def _key(operands: Sequence[Any]) -> Hashable | None:
    """What decides which op a call without options runs; None where more than NumPy arrays has to be looked at."""
    if not operands or type(operands[0]) is not str or any(type(array) is not np.ndarray for array in operands[1:]):
        return None
    return (operands[0], *((array.dtype, array.shape) for array in operands[1:]))


def _accept(value: Any, position: int) -> Given:
    return arrays.accept(np.asarray(value) if isinstance(value, list | tuple) else value, f"operand {position}")


def _common_dtype(inputs: Sequence[Array], out: Array | None, dtype: Any, casting: str) -> DType:
    """The dtype computed in: NumPy's common dtype, of `out` too, or `dtype` where every operand may be cast to it."""
    if casting not in _CASTINGS:
        raise ArgumentError(f"casting cannot be {casting!r}", fix=f"one of {', '.join(_CASTINGS)}")
    if dtype is None:
        found = [arrays.check_dtype(array, f"operand {n}") for n, array in enumerate(inputs)]
        wanted = _promoted(found if out is None else [*found, arrays.check_dtype(out, "out")])
    else:
        wanted = _named(dtype)
    for position, array in enumerate(inputs):
        _check_cast(array.dtype, wanted.numpy, casting, f"operand {position}")
    return wanted


def _named(dtype: Any) -> DType:
    """The dtype meant. Raises `DTypeError` for a name of another one in NumPy: "i8" counts bits here, bytes there."""
    wanted = as_dtype(dtype)
    numpys = wanted.numpy
    if isinstance(dtype, str):
        with suppress(TypeError):
            numpys = np.dtype(dtype)
    if numpys != wanted.numpy:
        raise DTypeError(
            f"dtype {dtype!r} is {numpys} in NumPy and {wanted} in polyopt",
            fix=f"np.{numpys}, or po.{wanted}",
            facts={"dtype": dtype},
        )
    return wanted


def _promoted(found: Sequence[DType]) -> DType:
    """NumPy's common dtype of all at once; bf16, which NumPy does not know, meets the others one by one."""
    if dtypes.bf16 not in found:
        return dtypes.from_numpy(np.result_type(*(dtype.numpy for dtype in found)))
    return functools.reduce(dtypes.promote, found)


def _check_cast(source: np.dtype[Any], wanted: np.dtype[Any], casting: Any, what: str) -> None:
    if not np.can_cast(source, wanted, casting):
        raise DTypeError(
            f"{what} cannot be cast from {source} to {wanted} by the rule '{casting}'",
            fix="casting='unsafe', or another dtype",
            facts={"source": str(source), "wanted": str(wanted), "casting": casting},
        )


def _write(target: Array, op: Op, inputs: Sequence[Array], common: DType, casting: str) -> None:
    """The result written to `target`, cast if its dtype is another."""
    _check_cast(common.numpy, target.dtype, casting, "the result")
    if target.dtype == common.numpy:
        op(*inputs, out=target)
        return
    result = op(*inputs)
    arrays.check_out(target, "einsum", dtypes.from_numpy(target.dtype), result.shape)
    np.copyto(target, result, casting="unsafe")


def _ordered(result: Array, order: str, inputs: Sequence[Array]) -> Array:
    if order not in _ORDERS:
        raise ArgumentError(f"order cannot be {order!r}", fix=f"one of {', '.join(_ORDERS)}")
    is_fortran = order == "F" or (order == "A" and all(a.flags.fnc for a in inputs))
    return np.asarray(result, order="F") if is_fortran else result


# --- the order of contraction -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """The product of its parts, summed over every label that is not in `output`."""

    parts: tuple[Node, ...]
    output: Labels


Node = int | Product
"""The position of an operand, or a product of others."""


def plan(subscripts: symbolic.Contraction, sizes: Mapping[str, int]) -> Product:
    """The einsum as products of two tensors at a time, in the order that NumPy's path search finds cheapest.

    A label that only one operand has, and not the result, is summed over before that operand meets another.
    """
    terms = [_needed(term, _others(subscripts, n)) for n, term in enumerate(subscripts.operands)]
    nodes: list[Node] = [
        Product((n,), kept) if len(kept) < len(set(term)) else n
        for n, (kept, term) in enumerate(zip(terms, subscripts.operands))
    ]
    if len(nodes) == 1:
        return Product((0,), subscripts.output)
    for positions in _path(terms, subscripts.output, sizes):
        taken = tuple(chain(*(terms[n] for n in positions)))
        parts = tuple(nodes[n] for n in positions)
        nodes = [node for n, node in enumerate(nodes) if n not in positions]
        terms = [term for n, term in enumerate(terms) if n not in positions]
        output = _needed(taken, [*terms, subscripts.output]) if terms else subscripts.output
        nodes.append(Product(parts, output))
        terms.append(output)
    (whole,) = nodes
    assert isinstance(whole, Product), "the path ends with a product"
    return whole


def _others(subscripts: symbolic.Contraction, position: int) -> list[Labels]:
    return [*subscripts.operands[:position], *subscripts.operands[position + 1 :], subscripts.output]


def _needed(labels: Labels, elsewhere: Sequence[Labels]) -> Labels:
    """The labels that occur elsewhere too, each once."""
    others = set(chain(*elsewhere))
    return tuple(label for label in dict.fromkeys(labels) if label in others)


def _path(terms: Sequence[Labels], output: Labels, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Positions to multiply at each step, on a list from which they are taken and to which the result is appended."""
    if len(terms) == 2:
        return [(0, 1)]
    if len(sizes) > len(_LETTERS):
        return [(0, 1)] * (len(terms) - 1)
    names = dict(zip(sizes, _LETTERS))
    text = ",".join("".join(names[label] for label in term) for term in terms)
    text += "->" + "".join(names[label] for label in output)
    shapes = [np.broadcast_to(np.int8(0), [max(1, sizes[label]) for label in term]) for term in terms]
    search = "optimal" if len(terms) <= _EXACT_SEARCH_OPERANDS else "greedy"
    path, _ = np.einsum_path(text, *shapes, optimize=search)
    return [tuple(positions) for positions in path[1:]]


def extents(subscripts: symbolic.Contraction, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The extent of each label; 1 gives way to another extent. Raises `ShapeError` where two disagree."""
    found: dict[str, int] = {}
    for operand, (labels, shape) in enumerate(zip(subscripts.operands, shapes)):
        own: dict[str, int] = {}
        for label, extent in zip(labels, shape):
            known = found.get(label, 1)
            if own.setdefault(label, extent) != extent or (1 not in (known, extent) and known != extent):
                raise _mismatch(label, known if known != 1 else own[label], extent, operand)
            found[label] = extent if known == 1 else known
    return found


def _mismatch(label: str, known: int, extent: int, operand: int) -> ShapeError:
    name = "a broadcast dimension" if label.startswith(".") else f"subscript '{label}'"
    return ShapeError(
        f"{name} of einsum is {known}, and {extent} in operand {operand}",
        fix="pass arrays whose extents agree wherever they share a letter",
        facts={"label": label, "extents": (known, extent), "operand": operand},
    )


# --- the op behind it -------------------------------------------------------------------------------------------


class _Einsums:
    """The ops made so far: by subscripts, dtypes and shapes; and by what they compute."""

    def __init__(self) -> None:
        self._by_call: dict[Hashable, Op] = {}
        self._by_meaning: dict[Hashable, Op] = {}

    def op(self, subscripts: symbolic.Contraction, inputs: Sequence[Array], common: DType) -> Op:
        call = (subscripts, common, *[(array.dtype, array.shape) for array in inputs])
        op = self._by_call.get(call)
        if op is None:
            sizes = extents(subscripts, [array.shape for array in inputs])
            meaning = (subscripts, plan(subscripts, sizes), common)
            op = self._by_meaning.get(meaning) or make_op(*meaning)
            bounded.put(self._by_meaning, meaning, op, _KEPT_OPS)
            bounded.put(self._by_call, call, op, _KEPT_OPS)
        return op


_EINSUMS = _Einsums()


def make_op(subscripts: symbolic.Contraction, whole: Product, common: DType) -> Op:
    """An op of as many arrays as there are operands.

    common: dtype of the result. Sums of narrower types run in their accumulator, and wrap or round at the end
    """
    running = dtypes.accumulator(common)

    def value(node: Node, operands: Sequence[Handle]) -> Handle:
        if isinstance(node, int):
            return operands[node]
        labels = tuple(subscripts.operands[part] if isinstance(part, int) else part.output for part in node.parts)
        parts = [value(part, operands) for part in node.parts]
        made = symbolic.contract(symbolic.Contraction(labels, node.output), parts, running)
        return _as_tensor(functions.cast(made, common), made) if common.is_bool else made

    def _as_tensor(expr: Handle | Expr, source: Handle) -> Handle:
        """A tensor for what may be one element: that of a tensor of rank 0."""
        if isinstance(expr, Handle):
            return expr
        single = source.state.new_tensor(f"{source.name}_{common}", rank=0)
        source.state.define(single, (), expr)
        return single

    def as_common(operand: Handle) -> Handle:
        """The operand as numbers of a dtype that holds few: what they are in a sum's wider one would differ."""
        is_apart = dtype_now(operand) != common and (common.is_bool or common in (dtypes.f16, dtypes.bf16))
        return _as_tensor(functions.cast(operand, common), operand) if is_apart else operand

    def einsum(*operands: Any) -> Any:
        handles = [operand.tensor if isinstance(operand, Element) else operand for operand in operands]
        return functions.cast(value(whole, [as_common(handle) for handle in handles]), common)

    parameter = inspect.Parameter("operand", inspect.Parameter.POSITIONAL_ONLY)
    einsum.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect.signature reads first
        [parameter.replace(name=f"operand{n}") for n in range(len(subscripts.operands))]
    )
    return Op(einsum, Choices())
