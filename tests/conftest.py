"""What all tests share: hypothesis profiles, the `--update-golden` option, a cache folder of their own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SLOW_FOLDERS = frozenset({"polybench", "operators"})
SLOW_FILES = frozenset({"test_examples.py", "test_docs.py"})

settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "fuzz", deadline=None, max_examples=5_000, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files from what is printed now")
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N equal parts of what is selected")


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
