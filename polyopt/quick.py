"""What an op knows about calls that enter its kernels through generated code (`runtime.fastcall`).

There are three ways, each a function that answers None where it does not know the call: for plain calls, for calls
with `out=`, and for calls with tensors of torch, whose results are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from polyopt import compilation, settings
from polyopt.classes import dataclass
from polyopt.dsl.results import Structure
from polyopt.dsl.signature import Parameter, Signature
from polyopt.forks import LEARNING
from polyopt.runtime import arrays
from polyopt.runtime.arguments import reach
from polyopt.runtime.calls import Call, Example, Runs
from polyopt.runtime.fastcall import Entries, Entry, Number, Quick, Same
from polyopt.runtime.glance import NUMBERS

REMEMBERED = 4096
"""Kinds of calls that are known to have been learnt; more, and an old one may be learnt again."""
AGAIN_AFTER = 64
"""Calls of a kind that others pushed out of the quick way, until it is learnt again: that takes some ten such calls."""
_NEVER_CHANGE = (int, bool, float, str, bytes, type(None))
"""Types of compile-time values that are known by their identity: an object whose attributes may change is not."""


@dataclass(slots=True)
class _Kind:
    """A kind of call that was learnt. entry: None where no quick way takes it; calls: since it was pushed out"""

    entry: Entry | None
    calls: int = 0


class QuickWays:
    """The quick ways of one op, into kernels for a processor.

    plain: takes the arguments; into: the arguments and the arrays to write to; torch: as plain, tensors as NumPy arrays
    """

    __slots__ = ("_entries", "_is_learning", "_learnt", "_signature", "into", "plain", "torch")

    def __init__(self, signature: Signature) -> None:
        self.plain: Quick | None = None
        self.into: Quick | None = None
        self.torch: Quick | None = None
        self._signature = signature
        self._entries: dict[str, Entries] = {}
        self._is_learning = False
        self._learnt: dict[Hashable, _Kind] = {}

    def learn(self, key: Hashable, call: Runs, structure: Structure, args: tuple[Any, ...]) -> None:
        """Know calls like this one. key: equal for calls that are alike"""
        if isinstance(call, Call) and self._is_new("plain", key):
            self._learn("plain", key, args, lambda examples: call.quick_entry(examples, _maker(structure)))

    def learn_into(self, key: Hashable, call: Runs, args: tuple[Any, ...], out: Any) -> None:
        """Know calls that compute into arrays like `out`: a plain array, or a tuple of them."""
        outs = written(out)
        if outs is None or not isinstance(call, Call) or any(type(array) is not np.ndarray for array in outs):
            return
        full = ("into", key, tuple((array.dtype, array.shape, array.strides) for array in outs))
        if self._is_new("into", full):
            self._learn("into", full, args, lambda examples: call.quick_entry(examples, None, outs))

    def learn_torch(self, key: Hashable, call: Runs, structure: Structure, args: tuple[Any, ...]) -> None:
        """Know calls with tensors like these."""
        views = arrays.torch_views(args)
        full = ("torch", key)
        if views is None or not isinstance(call, Call) or not self._is_new("torch", full):
            return

        def make(parts: tuple[arrays.Array, ...]) -> Any:
            return structure.rebuild(list(map(arrays.as_torch, parts)))

        self._learn("torch", full, tuple(views), lambda examples: call.quick_entry(examples, make))

    def _is_new(self, way: str, key: Hashable) -> bool:
        """Whether calls like this one are to be learnt: never before, or often made since others pushed them out."""
        kind = self._learnt.get(key)
        if kind is None:
            return True
        if kind.entry is None or self._entries[way].knows(kind.entry):
            return False
        kind.calls += 1
        return kind.calls >= AGAIN_AFTER

    def _learn(self, way: str, key: Hashable, args: tuple[Any, ...], entry: Callable[[list[Example]], Entry]) -> None:
        if settings.has_overrides():
            return
        examples = self._examples(args)
        entries = self._entries.get(way) or compilation.quick_entries()
        made = None if examples is None or entries is None else entry(examples)
        if made is None or entries is None or self._add(way, entries, made):
            if len(self._learnt) >= REMEMBERED:
                self._learnt.clear()
            self._learnt[key] = _Kind(made)

    def _add(self, way: str, entries: Entries, made: Entry) -> bool:
        """Whether an entry was added: not where somebody else adds one at this moment."""
        if not LEARNING.acquire(blocking=False):
            return False
        try:
            if self._is_learning:
                return False
            self._is_learning = True
            try:
                known = self._entries.setdefault(way, entries)
                known.add(made)
                setattr(self, way, known.call)
            finally:
                self._is_learning = False
            return True
        finally:
            LEARNING.release()

    def _examples(self, args: tuple[Any, ...]) -> list[Example] | None:
        """The arguments as the quick way takes them; None where it does not take them."""
        parameters = self._signature.parameters
        if len(args) != len(parameters):
            return None
        examples: list[Example] = []
        for value, parameter in zip(args, parameters):
            if parameter.kind == "constant" or value is None:
                if type(value) not in _NEVER_CHANGE:
                    return None
                examples.append(Same(value))
            elif type(value) is np.ndarray:
                examples.append(value)
            else:
                number = _number(value, parameter)
                if number is None or not number.is_supported:
                    return None
                examples.append(number)
        return examples


def _number(value: Any, parameter: Parameter) -> Number | None:
    """An argument that is a number, as the quick way takes it; None where it is none."""
    if type(value) not in NUMBERS:
        return None
    if parameter.number_dtype is not None:
        return Number(type(value), parameter.number_dtype.numpy)
    if parameter.kind != "unannotated":
        return None
    return Number(type(value), np.asarray(value).dtype, reach(value) if type(value) is int else None)


def written(out: Any) -> tuple[Any, ...] | None:
    """The arrays of `out=` as the quick way takes them; None for a tuple of one or none, which looks like an array."""
    if type(out) is not tuple:
        return (out,)
    return out if len(out) > 1 else None


def _maker(structure: Structure) -> Callable[[Any], Any] | None:
    """What puts a tuple of several results together; None where the only result, or the tuple, is what is returned."""
    is_flat = all(part.make is None for part in structure.parts)
    if structure.make is None or (structure.make is tuple and is_flat and len(structure.parts) > 1):
        return None
    return structure.make if is_flat else structure.rebuild
