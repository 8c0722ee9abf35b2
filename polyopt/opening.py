"""How a process opens the compiler, with its first kernel that no cache has: a third of what that kernel takes."""

from __future__ import annotations

import gc
import importlib
import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


@cache
def open_compiler() -> None:
    """Imports `polyopt.pipeline`. No collection runs meanwhile: modules make much, and drop nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        _open_isl()
        importlib.import_module("polyopt.pipeline")
    finally:
        if was_enabled:
            gc.enable()


def _open_isl() -> None:
    """Imports islpy. It asks `importlib.metadata` for its version, which opens `email`, `socket` and `zipfile`: two
    thirds of its time, where nobody has opened them before. The folder beside it has the version in its name."""
    if "islpy" in sys.modules or "importlib.metadata" in sys.modules:
        return
    known = _version_module()
    if known is not None:
        sys.modules[known.__name__] = known
        vars(importlib.import_module("islpy"))["version"] = known


def _version_module() -> ModuleType | None:
    """`islpy.version` as it would be; None where its version is not to be seen."""
    spec = find_spec("islpy")
    if spec is None or spec.origin is None:
        return None
    places = list(Path(spec.origin).parent.parent.glob("islpy-*.dist-info"))
    named = re.fullmatch(r"islpy-((\d+(?:\.\d+)*)([a-z0-9]*))\.dist-info", places[0].name) if len(places) == 1 else None
    if named is None:
        return None
    text, numbers, status = named.groups()
    module = ModuleType("islpy.version")
    version = tuple(map(int, numbers.split(".")))
    vars(module).update(VERSION_TEXT=text, VERSION_STATUS=status, VERSION=version)
    return module
