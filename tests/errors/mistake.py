"""A mistake that users make: the program, the message it earns, and the program put right."""

from __future__ import annotations

import importlib.util
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from polyopt.errors import PolyoptError

PRELUDE = """\
import numpy as np
import polyopt as po
from polyopt import f32, f64, i32, i64

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
rng = np.random.default_rng(0)
"""

MARK = "# <-"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake.

    name:    the guarantee, as a test's name
    error:   the exact class that is raised
    program: source behind `PRELUDE`; the line to blame ends in `# <-`, and has none where a call is to blame
             that no line of an operator explains
    caret:   the source text that the caret stands under; empty where the whole line, or no line, is to blame
    says:    what the message must contain: names, sizes, a concrete element
    fixed:   the program put right as the message suggests; it checks its own result
    """

    name: str
    error: type[PolyoptError]
    program: str
    says: tuple[str, ...]
    fixed: str
    caret: str = ""

    @property
    def source(self) -> str:
        return PRELUDE + textwrap.dedent(self.program).lstrip("\n") + "\n"

    @property
    def fixed_source(self) -> str:
        return PRELUDE + textwrap.dedent(self.fixed).lstrip("\n") + "\n"

    @property
    def blamed_line(self) -> int | None:
        """Line number of the mark in `source`, from 1."""
        lines = self.source.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.endswith(MARK)), None)


def run(source: str, file: Path) -> ModuleType:
    """Write `source` to `file` and import it, as a user's own module."""
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
