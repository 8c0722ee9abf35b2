"""Each mistake earns its message, with the user's line and concrete values, and the fix it suggests works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyopt.errors import BackendUnavailable, PolyoptError
from tests.errors import calling, defining, indexing, python_habits
from tests.errors.mistake import Mistake, run

MISTAKES = (*indexing.MISTAKES, *defining.MISTAKES, *python_habits.MISTAKES, *calling.MISTAKES)
REQUIRED_MISTAKES = 40

# What isl, LLVM, ctypes and NumPy print, and what would show that a message leaked out of them.
FOREIGN_TEXT = re.compile(
    r"isl_|\.c:\d+|\[[A-Z, ]*\] -> \{|\{ \w+\[|LLVM|getelementptr|0x[0-9a-f]{6,}|<polyopt|Traceback"
)


def fails(mistake: Mistake, tmp_path: Path) -> PolyoptError:
    with pytest.raises(mistake.error) as caught:
        run(mistake.source, tmp_path / "mistake.py")
    return caught.value


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_earns_its_error(mistake: Mistake, tmp_path: Path) -> None:
    error = fails(mistake, tmp_path)
    message = str(error)
    assert type(error) is mistake.error, message
    for phrase in mistake.says:
        assert phrase in message, f"{phrase!r} is missing in:\n{message}"
    assert not FOREIGN_TEXT.search(message), message
    assert error.fix, f"no suggestion in:\n{message}"


@pytest.mark.parametrize(
    "mistake", [mistake for mistake in MISTAKES if mistake.blamed_line is not None], ids=lambda mistake: mistake.name
)
def test_an_error_points_at_the_line_and_the_text(mistake: Mistake, tmp_path: Path) -> None:
    error = fails(mistake, tmp_path)
    assert error.where is not None, f"no line in:\n{error}"
    assert Path(error.where.file) == tmp_path / "mistake.py"
    assert error.where.line == mistake.blamed_line, str(error)
    line = mistake.source.splitlines()[error.where.line - 1]
    if mistake.caret:
        assert line[error.where.column : error.where.end_column] == mistake.caret, str(error)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_suggested_fix_compiles_and_gives_right_numbers(mistake: Mistake, tmp_path: Path) -> None:
    if mistake.error is BackendUnavailable:
        pytest.skip("the fix is another machine")
    run(mistake.fixed_source, tmp_path / "fixed.py")


def test_names_are_unique_and_there_are_enough() -> None:
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names)
    assert len(names) >= REQUIRED_MISTAKES
