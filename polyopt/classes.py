"""`dataclass` as the standard library means it, at a tenth of its cost when a module opens.

The standard library writes and compiles the source of six methods for each class; opening the compiler, with some two
hundred of them, spent half its time there. Here `__eq__`, `__hash__`, `__repr__` and the comparisons are functions that
read a class's fields, and `__init__` does too until many instances are made; then it is compiled, from code that all
classes of one form share.
Fields stay those of the standard library, so `dataclasses.replace`, `fields`, `asdict` and `is_dataclass` work as ever,
and to a type checker a class is an ordinary one. Keyword-only fields and `InitVar` are left out: nothing uses them.
docs/decisions/0022-light-dataclasses.md
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache, partial
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

_ORDINARY = vars(dataclasses)["_FIELD"]  # how the standard library marks a field that is no ClassVar and no InitVar

UNCOMPILED = 16
"""Instances of a class that are made field by field: some 20 cost what compiling an `__init__` does. Of the 150 classes
that a compile makes instances of, a third have more."""

_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__")


def light(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    order: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """The decorator, with the meaning of `dataclasses.dataclass` of the same arguments.

    Raises `ValueError` for a default that is a list, dict or set, and `TypeError` for a field that has no annotation.
    """
    if cls is None:
        return lambda cls: _made(cls, frozen, slots, eq, order, weakref_slot)
    return _made(cls, frozen, slots, eq, order, weakref_slot)


def _made(cls: type, frozen: bool, slots: bool, eq: bool, order: bool, weakref_slot: bool) -> type:
    inherited: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        inherited |= base.__dict__.get("__dataclass_fields__", {})
    own = _own_fields(cls)
    fields = inherited | own
    owner: list[Any] = []
    members: dict[str, Any] = {"__dataclass_fields__": fields, "__init__": _first_init(owner, fields, frozen)}
    members["__match_args__"] = tuple(name for name, field in fields.items() if field.init)
    compared = tuple(name for name, field in fields.items() if field.compare)
    members["__repr__"] = _repr_of(tuple(name for name, field in fields.items() if field.repr))
    if eq:
        values = _values_of(compared)
        members |= {"__eq__": _comparison(operator.eq, values), "__hash__": _hash_of(values) if frozen else None}
        if order:
            members |= {name: _comparison(getattr(operator, name), values) for name in _COMPARISONS}
    if frozen:
        members |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            members |= {"__getstate__": _state, "__setstate__": _set_state}
    written = {**cls.__dict__}
    if written.get("__hash__") is None and "__eq__" in written:
        written.pop("__hash__", None)  # Python's own mark of a class that defines equality and no hash
    for name, member in members.items():
        if name not in written or name in ("__dataclass_fields__", "__setattr__", "__delattr__"):
            setattr(cls, name, member)
    if slots:
        cls = _with_slots(cls, own, inherited, weakref_slot)
    else:
        for name, field in own.items():
            if field.default is not MISSING:
                setattr(cls, name, field.default)
            elif name in cls.__dict__:
                delattr(cls, name)
    owner.append(cls)
    return cls


def _own_fields(cls: type) -> dict[str, Field[Any]]:
    fields: dict[str, Any] = {}
    for name, annotation in cls.__annotations__.items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = cls.__dict__.get(name, MISSING)
        field: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
        if field.default is not MISSING and type(field.default).__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: a default that can change belongs in `default_factory`")
        field.name, field.type, field._field_type, field.kw_only = name, annotation, _ORDINARY, False
        fields[name] = field
    for name, value in cls.__dict__.items():
        if isinstance(value, Field) and name not in fields:
            raise TypeError(f"{cls.__name__}.{name} is a field without an annotation")
    return fields


def _with_slots(cls: type, own: dict[str, Field[Any]], inherited: dict[str, Field[Any]], weakref_slot: bool) -> type:
    """The class made anew: Python lays out an object's slots when it makes its class."""
    members = {name: value for name, value in cls.__dict__.items() if name not in own}
    members.pop("__dict__", None)
    members.pop("__weakref__", None)
    names = tuple(name for name in own if name not in inherited)
    members["__slots__"] = (*names, "__weakref__") if weakref_slot else names
    made = type(cls)(cls.__name__, cls.__bases__, members)
    made.__qualname__ = cls.__qualname__
    return made


# --- methods ------------------------------------------------------------------------------------------------------


def _first_init(owner: list[Any], fields: dict[str, Field[Any]], frozen: bool) -> Callable[..., None]:
    """An `__init__` that goes through the fields of a class, the only entry of `owner`. After some instances, or where
    arguments do not fit, it replaces itself by one compiled for them, which is quicker and says what does not fit."""
    parameters = [name for name, field in fields.items() if field.init]
    assign = object.__setattr__ if frozen else setattr
    instances = 0

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal instances
        instances += 1
        (cls,) = owner
        if instances <= UNCOMPILED and len(args) <= len(parameters):
            given = dict(zip(parameters, args), **kwargs) if kwargs else dict(zip(parameters, args))
            if len(given) == len(args) + len(kwargs) and _is_filled(partial(assign, self), fields, given):
                if hasattr(cls, "__post_init__"):
                    self.__post_init__()
                return
        init = _init_of(cls)
        cls.__init__ = init
        init(self, *args, **kwargs)

    return __init__


def _is_filled(assign: Callable[[str, Any], None], fields: dict[str, Field[Any]], given: dict[str, Any]) -> bool:
    """Gives fields their values, and says whether the given ones are as they should be."""
    used = 0
    for name, field in fields.items():
        if field.init and name in given:
            value = given[name]
            used += 1
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        elif field.default is not MISSING:
            value = field.default
        elif field.init:
            return False
        else:
            continue
        assign(name, value)
    return used == len(given)


def _init_of(cls: Any) -> Callable[..., None]:
    """`__init__` for the fields of a class: compiled once for all classes alike, and given their names."""
    fields = [field for field in cls.__dataclass_fields__.values() if field.init or _source_of(field) != "argument"]
    frozen = cls.__setattr__ is _refuse_to_set
    code = _init_code(tuple((field.init, _source_of(field)) for field in fields), frozen, hasattr(cls, "__post_init__"))
    names = {f"field{number}": field.name for number, field in enumerate(fields)}
    named = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
        co_qualname=f"{cls.__qualname__}.__init__",
    )
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    for number, field in enumerate(fields):
        if field.default_factory is not MISSING:
            known[f"_make{number}"] = field.default_factory
        elif not field.init:
            known[f"_default{number}"] = field.default
    parameters = [field for field in fields if field.init]
    optional = [_source_of(field) != "argument" for field in parameters]
    if optional != sorted(optional):
        raise TypeError(f"{cls.__qualname__}: a field without a default follows one that has one")
    defaults = tuple(field.default for field, has in zip(parameters, optional) if has)  # `MISSING`: make one
    init = FunctionType(named, known, "__init__", defaults)
    init.__annotations__ = {field.name: field.type for field in parameters} | {"return": None}
    return init


def _source_of(field: Field[Any]) -> str:
    """Where the value of a field comes from when none is given."""
    return (
        "factory" if field.default_factory is not MISSING else "default" if field.default is not MISSING else "argument"
    )


@cache
def _init_code(kinds: tuple[tuple[bool, str], ...], frozen: bool, has_post_init: bool) -> CodeType:
    """The code of an `__init__` whose fields are called `field0`, `field1`, ...

    kinds: for each field, whether it is a parameter, and the source of its value otherwise
    """
    parameters, lines = [], []
    for number, (is_parameter, source) in enumerate(kinds):
        name = f"field{number}"
        if is_parameter:
            parameters.append(name)
            value = f"_make{number}() if {name} is _MISSING else {name}" if source == "factory" else name
        else:
            value = f"_make{number}()" if source == "factory" else f"_default{number}"
        lines.append(f"    _set(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}")
    if has_post_init:
        lines.append("    self.__post_init__()")
    found: dict[str, Any] = {}
    exec("\n".join((f"def __init__({', '.join(('self', *parameters))}):", *lines, "    pass")), found)
    code: CodeType = found["__init__"].__code__
    return code


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    if not names:
        return lambda self: ()
    one = operator.attrgetter(*names)
    return lambda self: (one(self),)


def _comparison(compare: Callable[[Any, Any], bool], values: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    def comparison(self: Any, other: Any) -> Any:
        return compare(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

    return comparison


def _hash_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state):
        object.__setattr__(self, name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # what a checker knows about fields holds here as well
else:
    dataclass = light
