"""A quick look at a call's arguments: enough to recognise a call like an earlier one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from polyopt.dsl.signature import Signature
from polyopt.dtypes import DType
from polyopt.runtime.arguments import is_constant, reach
from polyopt.runtime.arrays import Array, is_representable, tensor_key
from polyopt.runtime.state import constants_key

Seen = tuple[Hashable, list[Any]]


class Glance:
    """Looks at calls of one signature.

    Only plain NumPy arrays, tensors of torch on a GPU, numbers of Python and NumPy, and compile-time values are looked
    at, these as they are now; whatever else is there, the call takes the careful way.
    """

    def __init__(self, signature: Signature) -> None:
        self._parameters = tuple((p, p.kind, p.number_dtype) for p in signature.parameters)
        self._names = tuple(p.name for p in signature.parameters)
        self._defaults = {p.name: p.default for p in signature.parameters if p.has_default}
        kinds = [p.python_kind for p in signature.parameters]
        self._positions = sum(kind is not kind.KEYWORD_ONLY for kind in kinds)
        self._keywords = frozenset(name for name, kind in zip(self._names, kinds) if kind is not kind.POSITIONAL_ONLY)

    def look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seen | None:
        """As `look_at`, for a call; None too where names and positions do not fit."""
        values = self.values(args, kwargs)
        return None if values is None else self.look_at(values)

    def look_at(self, values: tuple[Any, ...]) -> Seen | None:
        """A key, and the arrays, tensors and run-time numbers in order; None where a closer look is needed.

        Calls with equal keys run the same kernel. The key holds dtype and its name, shape and strides of arrays,
        the device of tensors, the type of run-time numbers, the value of compile-time parameters.
        """
        key: list[Any] = []
        inputs: list[Any] = []
        constants: dict[str, object] = {}
        for value, (parameter, kind, dtype) in zip(values, self._parameters):
            if type(value) is np.ndarray and kind != "constant":
                if kind == "scalar" and (dtype is None or value.dtype != dtype.numpy):
                    return None
                key.append((value.dtype, value.dtype.char, value.shape, value.strides))
                inputs.append(value)
            elif type(value) in NUMBERS and (kind == "unannotated" or dtype is not None):
                number = _as_array(value, dtype)
                if number is None:
                    return None
                key.append((int, reach(value)) if dtype is None and type(value) is int else type(value))
                inputs.append(number)
            elif value is None or (kind == "constant" and type(value) in _CONSTANTS):
                key.append((type(value), value.hex() if type(value) is float else value))
            elif kind in _TENSORS and (found := tensor_key(value)) is not None:
                key.append(found)
                inputs.append(value)
            elif is_constant(parameter, value):
                constants[parameter.name] = value
            else:
                return None
        if constants:
            key.append(constants_key(constants))
        return tuple(key), inputs

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Every parameter's value, defaults included; None where names and positions do not fit."""
        if len(args) > self._positions or not self._keywords.issuperset(kwargs):
            return None
        rest = self._names[len(args) :]
        if not rest and not kwargs:
            return args
        if sum(name in kwargs for name in rest) != len(kwargs):
            return None
        try:
            return (*args, *(kwargs[name] if name in kwargs else self._defaults[name] for name in rest))
        except KeyError:
            return None


NUMBERS = frozenset({float, int, bool, *(np.dtype(char).type for char in "?bBhHiIlLqQefd")})
_TENSORS = ("tensor", "unannotated")
_CONSTANTS = (int, bool, float, str, type(None))


def _as_array(value: Any, dtype: DType | None) -> Array | None:
    """A number as `runtime.arguments` binds it, for a parameter of this dtype; None where it may not fit.

    Whether a number of its type is taken at all is known: it was, by a call like this one.
    """
    if type(value) is int and not is_representable(value):
        return None
    if dtype is None:
        return np.asarray(value)
    try:
        number = value.item() if isinstance(value, np.generic) else value
        return np.array(float(number) if dtype.is_float else number, dtype.numpy)
    except (OverflowError, TypeError, ValueError):  # too large, so for bf16, and NaN for an integer
        return None
