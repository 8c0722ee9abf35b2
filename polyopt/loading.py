"""Operators and values as a command line names them: `FILE.py:OP`, `package.module:op`, `NAME=VALUE`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from polyopt.api import Op
from polyopt.errors import ArgumentError

Value: TypeAlias = int | float | bool | str
"""What a command line gives a size or a compile-time parameter."""


def load_operator(name: str) -> Op:
    """The operator called "FILE.py:OP" or "package.module:op". Raises `ArgumentError` where there is none."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise ArgumentError(f"'{name}' names no operator", fix="FILE.py:OP, or package.module:op")
    module = load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    operator: object = module
    for part in attribute.split("."):  # of a class: `Net.step`
        operator = getattr(operator, part, None)
    if not isinstance(operator, Op):
        found = [key for key, value in vars(module).items() if isinstance(value, Op)]
        raise ArgumentError(
            f"'{attribute}' is no operator of {place}",
            why=f"It has {', '.join(found)}." if found else "It has none: an operator is a function under @po.op.",
            fix=f"{place}:{found[0]}" if found else "decorate the function with @po.op.",
            facts={"operator": attribute, "found": tuple(found)},
        )
    return operator


def load_file(path: Path) -> ModuleType:
    """The module in a file, run as Python runs a file. Raises `ArgumentError` where there is none."""
    if not path.is_file():
        raise ArgumentError(f"there is no file '{path}'", fix="check the path; it is relative to this folder.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # its own imports, as when Python runs the file
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ArgumentError(f"'{name}' names no module", fix="FILE.py:OP, or package.module:op")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, and imports what is not
        raise ArgumentError(
            f"there is no module '{name}'", why=str(error), fix="a path to a file ends in .py: FILE.py:OP"
        ) from None


def text_parameters(operator: Op) -> frozenset[str]:
    """The compile-time parameters whose values are texts."""
    return frozenset(p.name for p in operator.signature.parameters if p.constant_type is str)


def assignments(words: Sequence[str], texts: Collection[str] = ()) -> dict[str, Value]:
    """The values of "NAME=VALUE" words. Raises `ArgumentError` for anything else, and for a name that comes twice.

    texts: names whose values are taken as they stand
    """
    values: dict[str, Value] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ArgumentError(f"'{word}' sets nothing", fix="NAME=VALUE, for example M=512")
        if name in values:
            raise ArgumentError(f"{name} is set twice, the second time by '{word}'", fix="one value for each name")
        values[name] = value if name in texts else _value(name, value)
    return values


def _value(name: str, word: str) -> Value:
    if word in ("True", "False", "true", "false"):
        return word.lower() == "true"
    for parse in (int, float):
        try:
            return parse(word)
        except ValueError:
            continue
    raise ArgumentError(f"'{word}' is no value for {name}", fix=f"a number, True or False: {name}=512, or {name}=True")
