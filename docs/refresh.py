"""Rewrites the outputs that README and docs show: `make docs`.

A comment in a page says what stands in the block below it:

    <!-- run: polyopt show-schedule examples/linear.py:linear_relu M=512 -->   what the command prints
    <!-- error: reading_past_the_end -->                                       the message of a mistake in tests/errors
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from polyopt import cli  # noqa: E402  # the checkout's modules, whether installed or not
from polyopt.errors import PolyoptError  # noqa: E402  # as above
from tests.errors.mistake import MARK, run  # noqa: E402  # as above
from tests.errors.test_mistakes import MISTAKES  # noqa: E402  # as above

BLOCK = re.compile(r"<!-- (run|error): (.*?) -->\n```text\n.*?```", re.DOTALL)


def command_output(command: str) -> str:
    """What `polyopt ...` prints. Raises `SystemExit` where it fails."""
    name, *arguments = shlex.split(command)
    assert name == "polyopt", f"pages show the command polyopt, not {name}"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT):
        status = cli.main(arguments)
    if status != cli.EXIT_OK:
        raise SystemExit(f"'{command}' failed")
    return printed.getvalue()


def error_message(name: str) -> str:
    """The message that the mistake called `name` earns."""
    mistake = next(mistake for mistake in MISTAKES if mistake.name == name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(mistake.source.replace(f"  {MARK}", ""), Path(folder) / "model.py")
        except PolyoptError as error:
            return f"{type(error).__name__}: {error}\n"
    raise SystemExit(f"the mistake '{name}' raises nothing")


MAKERS: Mapping[str, Callable[[str], str]] = {"run": command_output, "error": error_message}


def refreshed(page: str) -> str:
    """The page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        kind, what = match.groups()
        return f"<!-- {kind}: {what} -->\n```text\n{MAKERS[kind](what).rstrip()}\n```"

    return BLOCK.sub(block, page)


def main() -> None:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        page = path.read_text("utf-8")
        new = refreshed(page)
        if new != page:
            path.write_text(new, "utf-8")
            print(f"rewrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
