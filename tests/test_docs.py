"""What the pages show runs: every Python block, every command, every link."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from polyopt import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"<!-- run: polyopt (.*?) -->\n```text\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")
PAGES_WITH_CODE = tuple(p for p in PAGES if p.parent.name != "examples" and BLOCK.search(p.read_text("utf-8")))
COMMANDS = tuple(
    (page, command, shown)
    for page in PAGES
    for command, shown in COMMAND.findall(page.read_text("utf-8"))
    if command != "demo"  # `tests/test_cli.py` runs it, on one example
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name_of)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    """The blocks of a page are one program; a function that looks like a test is defined and not run."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text("utf-8"))), "utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("page", "command", "shown"), COMMANDS, ids=[name_of(page) for page, _, _ in COMMANDS])
def test_a_shown_command_works(
    page: Path, command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers in a schedule are the machine's (cache sizes, lanes), so the shown text is not compared."""
    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command)) == 0
    assert capsys.readouterr().out.strip()
    assert shown.strip(), f"{name_of(page)} shows nothing below '{command}': run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_every_setting_has_its_line() -> None:
    source = (ROOT / "polyopt" / "settings.py").read_text("utf-8")
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    for variable in sorted(set(re.findall(r"POLYOPT_[A-Z_]+", source))):
        assert f"`{variable}`" in page


def test_every_key_in_a_docstring_is_a_reference() -> None:
    defined = set(re.findall(r"^\| \[(\w+)\]", (ROOT / "docs" / "references.md").read_text("utf-8"), re.MULTILINE))
    for module in sorted((ROOT / "polyopt").rglob("*.py")):
        for key in re.findall(r"\[([A-Z][A-Za-z]*[0-9]{2})[\],]", module.read_text("utf-8")):
            assert key in defined, f"{module.relative_to(ROOT)} cites [{key}]"


def test_every_error_has_its_line() -> None:
    source = (ROOT / "polyopt" / "errors.py").read_text("utf-8")
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for name in re.findall(r"^class (\w+)\(PolyoptError", source, re.MULTILINE):
        assert f"`{name}`" in page
