"""A quick look at a call's arguments: enough to recognise a call like an earlier one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from polyopt.dsl.signature import Signature
from polyopt.runtime.arrays import tensor_key

Seen = tuple[Hashable, list[Any]]


class Glance:
    """Looks at calls of one signature.

    Only plain NumPy arrays, tensors of torch on a GPU, and Python's numbers and strings are looked at; whatever else is
    there, the call takes the careful way.
    """

    def __init__(self, signature: Signature) -> None:
        self._parameters = tuple((p.kind, p.dtype) for p in signature.parameters)
        self._names = tuple(p.name for p in signature.parameters)
        self._defaults = {p.name: p.default for p in signature.parameters if p.has_default}
        kinds = [p.python_kind for p in signature.parameters]
        self._takes_positions = all(kind is not kind.KEYWORD_ONLY for kind in kinds)
        self._takes_keywords = all(kind is not kind.POSITIONAL_ONLY for kind in kinds)

    def look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Seen | None:
        """A key, and the arrays, tensors and run-time scalars in order; None where a closer look is needed.

        Calls with equal keys run the same kernel. The key holds dtype, shape and strides of arrays, the device of
        tensors, the type of run-time scalars, the value of compile-time parameters.
        """
        is_plain = len(args) == len(self._parameters) and not kwargs and self._takes_positions
        values = args if is_plain else self._values(args, kwargs)
        if values is None:
            return None
        key: list[Any] = []
        inputs: list[Any] = []
        for value, (kind, dtype) in zip(values, self._parameters):
            if type(value) is np.ndarray and kind != "constant":
                if kind == "scalar" and (dtype is None or value.dtype != dtype.numpy):
                    return None
                key.append((value.dtype, value.shape, value.strides))
                inputs.append(value)
            elif kind == "scalar" and type(value) in _NUMBERS:
                assert dtype is not None, "a scalar parameter has a dtype"
                try:
                    inputs.append(np.array(value, dtype.numpy))
                except (OverflowError, TypeError, ValueError):  # too large, so for bf16, and NaN for an integer
                    return None
                key.append(type(value))
            elif value is None or (kind == "constant" and type(value) in _CONSTANTS):
                key.append((type(value), value.hex() if type(value) is float else value))
            elif kind in _TENSORS and (found := tensor_key(value)) is not None:
                key.append(found)
                inputs.append(value)
            else:
                return None
        return tuple(key), inputs

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Every parameter's value, defaults included; None where names and positions do not fit."""
        rest = self._names[len(args) :]
        used = sum(name in kwargs for name in rest)
        if len(args) > len(self._names) or used != len(kwargs):
            return None
        if (args and not self._takes_positions) or (kwargs and not self._takes_keywords):
            return None
        try:
            return (*args, *(kwargs[name] if name in kwargs else self._defaults[name] for name in rest))
        except KeyError:
            return None


_NUMBERS = (float, int, bool)
_TENSORS = ("tensor", "unannotated")
_CONSTANTS = (int, bool, float, str, type(None))
