"""Compile-time values as keys: what they hold now, so that equations are read again after any of it changed."""

from __future__ import annotations

import enum
from array import array as packed
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import ReferenceType

import numpy as np


class Unchanging:
    """Base of classes whose instances count by identity alone: what they hold does not change what they mean."""

    __slots__ = ()


class Composed:
    """Base of classes whose instances count by their parts alone; each says what those are."""

    __slots__ = ()

    @property
    def parts(self) -> Sequence[object]:
        raise NotImplementedError


def constants_key(constants: Mapping[str, object]) -> Hashable:
    """A key that differs whenever a compile-time value does (`1`, `1.0` and `True` are three values).

    Containers are told by content; objects by identity, or by their own equality where they have one, together with
    the attributes that they have now: in `__dict__`, in slots, and of their class. Classes are told by identity and
    attributes. Functions, modules, loggers and threads are told by identity.
    """
    return _Walk().key(constants) if constants else ()


class _Walk:
    """Looks through values and all that they hold, each object once, and notes what it finds in one flat sequence.

    found:   the sequence. Each thing in it says what follows, so that two states with equal sequences are equal
    kept:    objects that are noted by their identity, which stays theirs while they live
    numbers: of the objects looked into, by identity, in order: an object met again is its number
    alive:   those objects, some of which are made for the walk
    owners:  the classes whose attributes are noted, with their slots
    waiting: objects whose types are noted and that are still to be looked into, the next one last
    """

    __slots__ = ("alive", "found", "kept", "numbers", "owners", "waiting")

    def __init__(self) -> None:
        self.found: list[object] = []
        self.kept: list[object] = []
        self.numbers: dict[int, int] = {}
        self.alive: list[object] = []
        self.owners: dict[type, Sequence[MemberDescriptorType]] = {}
        self.waiting: list[object] = []

    def key(self, constants: Mapping[str, object]) -> Hashable:
        self.found.extend(constants)
        self.note(constants.values())
        waiting = self.waiting
        while waiting:
            self.look_into(waiting.pop())
        if self.kept:
            self.found.append(_Kept(self.kept))
        return tuple(self.found)

    def note(self, parts: Iterable[object]) -> None:
        """Note the type of each part, and the value where the type is plain; the others wait, the first one next."""
        found, others = self.found, []
        for part in parts:
            kind = type(part)
            found.append(kind)
            if kind in _PLAIN:
                found.append(part)
            elif kind is float:
                found.append(part.hex())  # type: ignore[attr-defined]  # a float has it
            else:
                others.append(part)
        others.reverse()
        self.waiting.extend(others)

    def look_into(self, value: object) -> None:
        count = len(self.numbers)
        number = self.numbers.setdefault(id(value), count)
        self.found.append(number)
        if number != count:
            return
        self.alive.append(value)
        kind = type(value)
        if issubclass(kind, type):
            self.note_class(kind)
            self.note_class(value)  # type: ignore[arg-type]  # its type is one of types
        elif kind.__module__ in _STATELESS or issubclass(kind, Unchanging):
            self.note_identity(value)
        else:
            self.note_content(value, kind)
            if kind not in _BUILT_IN and not issubclass(kind, Composed):
                self.note_attributes(value, kind)

    def note_content(self, value: Any, kind: type) -> None:
        """Note what is inside a value that is no set of attributes: its parts, its memory, or its own equality."""
        read = _reader(kind)
        content = _memory(value, kind) if read is None else read(value)
        if content is not None:
            facts, parts = content
            self.found.append(facts)
            self.found.append(len(parts))
            self.note(parts)
        elif _has_equality(value, kind):
            self.found.append(value)
        else:
            self.note_identity(value)

    def note_identity(self, value: object) -> None:
        self.found.append(id(value))
        self.kept.append(value)

    def note_attributes(self, value: object, kind: type) -> None:
        """Note the attributes that an object has now: its class's, in slots, and in `__dict__`."""
        self.note_class(kind)
        names: list[str] = []
        parts: list[object] = []
        for owner in kind.__mro__:
            for slot in self.owners[owner]:
                try:
                    parts.append(slot.__get__(value, kind))
                except AttributeError:
                    continue
                names.append(slot.__name__)
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            own = own.copy()
            names.extend(own)
            parts.extend(own.values())
        self.found.append(len(names))
        self.found.extend(names)
        self.note(parts)

    def note_class(self, kind: type) -> None:
        """Note the attributes of a class and its bases, those excepted that no assignment can change."""
        owners = self.owners
        self.found.append(kind.__mro__)
        for owner in kind.__mro__:
            if owner in owners:
                continue
            owners[owner] = ()
            if owner in _LIBRARY or owner.__flags__ & _CAN_CHANGE != _IS_HEAP_TYPE:
                continue
            width = 1 if type(owner) is enum.EnumMeta else 2  # of the underscores around names that Python reserves
            mark, own = "__"[:width], vars(owner).copy()
            held = {
                name: part
                for name, part in own.items()
                if type(part) is FunctionType or not name[:width] == mark == name[-width:]
            }
            owners[owner] = [part for part in held.values() if type(part) is MemberDescriptorType]
            self.found.append(len(held))
            self.found.extend(held)
            self.note(held.values())


class _Kept:
    """Keeps objects alive whose identities are in a key; equal to others of its kind, as the identities tell."""

    __slots__ = ("_objects",)

    def __init__(self, objects: list[object]) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept)

    def __hash__(self) -> int:
        return 0


# --- what there is to see, by type ----------------------------------------------------------------------------------

Content = tuple[Hashable, Sequence[object]]

_PLAIN = frozenset(
    {
        *(int, bool, str, bytes, NoneType, EllipsisType, type(NotImplemented)),
        *(FunctionType, CodeType, ModuleType, property),
        *(ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType),
        WrapperDescriptorType,
    }
)
"""Types of values that never change, or that count by identity, and whose equality says so."""

_STATELESS = ("logging", "logging.handlers", "threading")
"""Modules whose own objects say nothing about numbers; those of classes derived from theirs may."""

_LIBRARY = frozenset({enum.Enum, enum.IntEnum, enum.Flag, enum.IntFlag})
"""Classes of the standard library with many attributes, which are beneath many values."""

_IS_HEAP_TYPE = 1 << 9
_CAN_CHANGE = _IS_HEAP_TYPE | 1 << 8
"""Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of CPython: attributes can change where the first alone is set."""


def _array(value: Any) -> Content:
    if value.dtype.hasobject:
        return (value.dtype, value.shape), [np.asarray(value).tolist()]
    return (value.dtype, value.shape, np.asarray(value).tobytes()), ()


def _of_builtin(value: Any) -> Content:
    return value, (value.__self__,)


_READ: Mapping[type, Callable[[Any], Content]] = {
    list: lambda value: (None, list(value)),
    tuple: lambda value: (None, list(value)),
    dict: lambda value: (None, [part for pair in list(value.items()) for part in pair]),
    set: lambda value: (None, list(value)),
    frozenset: lambda value: (None, list(value)),
    np.ndarray: _array,
    np.generic: _array,
    float: lambda value: (float.hex(value), ()),
    complex: lambda value: ((value.real.hex(), value.imag.hex()), ()),
    deque: lambda value: (value.maxlen, list(value)),
    packed: lambda value: ((value.typecode, value.tobytes()), ()),
    bytearray: lambda value: (bytes(value), ()),
    memoryview: lambda value: ((value.format, value.shape, value.tobytes()), ()),
    range: lambda value: ((value.start, value.stop, value.step), ()),
    slice: lambda value: (None, (value.start, value.stop, value.step)),
    MethodType: lambda value: (None, (value.__func__, value.__self__)),
    classmethod: lambda value: (None, (value.__func__,)),
    staticmethod: lambda value: (None, (value.__func__,)),
    BuiltinFunctionType: _of_builtin,
    MethodWrapperType: _of_builtin,
    partial: lambda value: (None, (value.func, value.args, value.keywords)),
    ReferenceType: lambda value: (None, (value(),)),
    MappingProxyType: lambda value: (None, (dict(value),)),
    **dict.fromkeys(map(type, ({}.keys(), {}.values(), {}.items())), lambda value: (None, list(value))),
    Composed: lambda value: (None, value.parts),
}
"""For types whose values hold more than attributes: facts, and the parts to look into."""

_BUILT_IN = frozenset(_READ) - {partial}
"""Types of values that have no attributes of their own; their subclasses may."""


def _reader(kind: type) -> Callable[[Any], Content] | None:
    for base in kind.__mro__:
        if base in _READ:
            return _READ[base]
    return None


def _memory(value: Any, kind: type) -> Content | None:
    """The elements of an object that shows its memory, as arrays of other libraries and those of ctypes do."""
    try:
        if hasattr(kind, "__array__"):
            return _array(np.asarray(value))
        with memoryview(value) as seen:
            return (seen.format, seen.shape, seen.tobytes()), ()
    except Exception:  # noqa: BLE001  # whatever another library raises where its array is not on the host
        return None


def _has_equality(value: object, kind: type) -> bool:
    """Whether an object has an equality of its own, other than one that compares fields, and can be in a key."""
    own: object = kind.__hash__
    if own is object.__hash__ or is_dataclass(kind):
        return False
    try:
        hash(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
