"""What all tests share: hypothesis profiles, options that select, `--update-golden`, a cache folder of their own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SLOW_FOLDERS = frozenset({"polybench", "operators"})
SLOW_FILES = frozenset({"test_examples.py", "test_docs.py"})

MEASURED = frozenset({"dsl", "poly", "fusion", "tiling", "loops", "api_surface", "errors", "test_cache.py"})
"""Where coverage is measured: the tests of the packages it is reported for, and what users call."""
LONG = frozenset(
    {
        "test_blocks.py",
        "test_columns.py",
        "test_converted.py",
        "test_dots.py",
        "test_halves.py",
        "test_margins.py",
        "test_pack.py",
        "test_partials.py",
        "test_plans.py",
        "test_prefixes.py",
        "test_random_contractions.py",
        "test_short_axes.py",
        "test_symbolic_sizes.py",
        "test_terms.py",
        "test_unguarded.py",
        "test_versions.py",
    }
)
"""Files there that run many kernels: the tracer makes a compile three times as slow, and others reach as much."""

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, max_examples=5_000, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what is printed now")
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N equal parts of what is selected")
    parser.addoption(
        "--coverage-part", choices=("measured", "rest"), help="only files whose coverage is measured, or not"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    part = config.getoption("--coverage-part")
    if part is None or collection_path.is_dir():
        return None
    name, folders = collection_path.name, collection_path.relative_to(Path(__file__).parent).parts[:1]
    is_measured = not MEASURED.isdisjoint({name, *folders}) and name not in LONG
    return True if is_measured != (part == "measured") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES or SLOW_FOLDERS.intersection(item.path.parts):
            item.add_marker(pytest.mark.slow)
    number, count = map(int, config.getoption("--shard").split("/"))
    if count > 1:
        kept = [item for item in items if zlib.crc32(item.nodeid.encode()) % count == number - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels of a test run go to a folder of that run, never to the user's."""
    folder = tmp_path_factory.mktemp("polyopt-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYOPT_CACHE_DIR", str(folder))
        yield folder
