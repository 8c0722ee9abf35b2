"""The disk cache: right entries come back, everything else is a miss without an exception."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from polyopt import cache
from polyopt.cache import Entry
from polyopt.dtypes import f32
from polyopt.errors import Span
from polyopt.runtime import kernel
from polyopt.runtime.kernel import ArrayInfo, ConditionInfo, KernelInfo, SiteInfo
from polyopt.settings import override
from polyopt.target import preset

INFO = KernelInfo(
    entry="k",
    arguments=(ArrayInfo("x", f32, "input", (4, ("mul", 2, "N")), (8, -4)),),
    parameters=("N",),
    private_bytes=("maximum", "N", 64),
    is_parallel=True,
    sites=(SiteInfo("x", 1, Span("a.py", 1)), SiteInfo("x", 0)),
    conditions=(ConditionInfo("N > 0", ("gt", "N", 0)),),
    in_place=(("y", "x"),),
)
ENTRY = Entry(INFO, b"\x00machine code\xff" * 20, "a report\nwith ü")
KEY = cache.key(preset("generic"), program="p")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_warn_once", cache._Warner())
    return tmp_path / "cache"


@pytest.fixture
def file(folder: Path) -> Path:
    cache.store(KEY, ENTRY)
    (path,) = folder.iterdir()
    return path


def test_what_was_stored_comes_back() -> None:
    assert cache.lookup(KEY) is None
    cache.store(KEY, ENTRY)
    assert cache.lookup(KEY) == ENTRY


def test_the_folder_is_mine_alone_and_holds_no_temporary_file(folder: Path, file: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.name == f"{KEY}.kernel"


def test_the_key_depends_on_each_part_and_on_the_target() -> None:
    generic = preset("generic")
    keys = {
        cache.key(generic, program="p"),
        cache.key(generic, program="q"),
        cache.key(generic, program="p", sizes={"N": 1}),
        cache.key(generic, program="p", sizes={"N": 2}),
        cache.key(preset("avx2"), program="p"),
    }
    assert len(keys) == 5
    assert cache.key(generic, program="p", sizes={"N": 1, "M": 2}) == cache.key(
        generic, sizes={"M": 2, "N": 1}, program="p"
    )


def test_every_truncation_is_a_miss(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = file.read_bytes()
    with caplog.at_level(logging.WARNING):
        for length in range(len(whole)):
            file.write_bytes(whole[:length])
            assert cache.lookup(KEY) is None
    assert len(caplog.records) == 1


def test_every_flipped_bit_is_a_miss(file: Path) -> None:
    whole = file.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        assert cache.lookup(KEY) is None


def test_bytes_after_the_end_are_a_miss(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")
    assert cache.lookup(KEY) is None


def test_an_entry_under_another_key_is_a_miss(file: Path) -> None:
    other = cache.key(preset("generic"), program="other")
    file.rename(file.with_name(f"{other}.kernel"))
    assert cache.lookup(other) is None


def test_a_whole_payload_that_is_no_kernel_is_a_miss(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "as_json", lambda info: {"entry": "k"})
    cache.store(KEY, ENTRY)
    assert cache.lookup(KEY) is None


def test_a_folder_or_link_in_its_place_is_a_miss_and_stays(folder: Path, file: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    file.rename(moved)
    file.symlink_to(moved)
    assert cache.lookup(KEY) is None
    file.unlink()
    file.mkdir()
    assert cache.lookup(KEY) is None
    cache.store(KEY, ENTRY)
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_a_pipe_in_its_place_does_not_hang(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    assert cache.lookup(KEY) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_a_miss(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert cache.lookup(KEY) is None


def test_a_folder_that_others_can_write_is_not_used(folder: Path, file: Path) -> None:
    folder.chmod(0o777)
    assert cache.lookup(KEY) is None
    assert "other users" in cache.info().problem
    folder.chmod(0o700)
    assert cache.lookup(KEY) == ENTRY


def test_a_file_of_another_user_is_a_miss(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert cache.lookup(KEY) is None


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache.store(KEY, ENTRY)
    assert list(folder.iterdir()) == []


def test_an_interrupted_store_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.store(KEY, ENTRY)
    assert list(folder.iterdir()) == []


def test_a_cache_path_that_is_a_file_means_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYOPT_CACHE_DIR", str(tmp_path / "file"))
    cache.store(KEY, ENTRY)
    assert cache.lookup(KEY) is None
    assert cache.info().problem


def test_without_a_home_there_is_no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYOPT_CACHE_DIR")
    monkeypatch.setattr(cache, "_default_folder", lambda: None)
    cache.store(KEY, ENTRY)
    assert cache.lookup(KEY) is None
    assert cache.info().problem == "there is no home folder"


def test_the_default_is_never_below_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in" / "it"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cache._default_folder() is None
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    inside = tmp_path.is_relative_to(tempfile.gettempdir())
    assert (cache._default_folder() is None) == inside


def test_a_home_that_is_no_folder_means_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """platformdirs raises where a container's user has no home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "none")
    assert cache._default_folder() is None


@pytest.mark.parametrize("given", [None, "", "relative", "/somewhere/else", "/with a space/"])
def test_the_default_is_where_the_platform_has_it(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """polyopt does not ask the two modules that know it, which are slow to import."""
    if given is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("TMPDIR", "/")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert cache._user_folder() == Path(platformdirs.user_cache_dir("polyopt", appauthor=False))
    assert cache._temporary_folder() == Path(tempfile.gettempdir())


def test_the_oldest_entries_go_first(folder: Path) -> None:
    keys = [cache.key(preset("generic"), program=str(k)) for k in range(8)]
    for age, key in enumerate(keys):
        cache.store(key, ENTRY)
        os.utime(folder / f"{key}.kernel", (1000 + age, 1000 + age))
    size = cache.info().total_bytes // 8
    last = cache.key(preset("generic"), program="last")
    with override(cache_bytes=5 * size):
        cache.store(last, ENTRY)
    kept = [key for key in [*keys, last] if cache.lookup(key)]
    assert kept == [*keys[5:], last]


def test_a_full_folder_is_not_listed_with_every_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand entries take tens of milliseconds to look at, which each compile waited for."""
    listings: list[Path] = []

    def entries(folder: Path) -> Iterator[Any]:
        listings.append(folder)
        return iter(())

    monkeypatch.setattr(cache, "_entries", entries)
    for k in range(100):
        cache.store(cache.key(preset("generic"), program=str(k)), ENTRY)
    assert len(listings) == 1


def test_the_cap_holds_over_many_entries(folder: Path) -> None:
    cache.store(KEY, ENTRY)
    limit = 10 * cache.info().total_bytes
    with override(cache_bytes=limit):
        for k in range(50):
            cache.store(cache.key(preset("generic"), program=str(k)), ENTRY)
            assert cache.info().total_bytes <= limit


def test_abandoned_temporary_files_are_swept(folder: Path, file: Path) -> None:
    left = folder / ".x-1-ab.tmp"
    left.write_text("")
    os.utime(left, (0, 0))
    young = folder / ".y-1-ab.tmp"
    young.write_text("")
    cache._room.clear()  # as in a new process
    cache.store(KEY, ENTRY)
    assert not left.exists()
    assert young.exists()


def test_a_cap_of_zero_turns_the_disk_cache_off(folder: Path) -> None:
    with override(cache_bytes=0):
        cache.store(KEY, ENTRY)
        assert cache.lookup(KEY) is None
    assert not folder.exists()


def test_info_counts_and_clear_removes(file: Path) -> None:
    assert cache.info().entries == 1
    assert cache.info().total_bytes == file.stat().st_size
    assert cache.clear() == 1
    assert cache.info().entries == 0


def test_a_folder_whose_listing_is_interrupted_is_closed(file: Path) -> None:
    cache.store(cache.key(preset("generic"), program="another"), ENTRY)
    opened = os.scandir(file.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.scandir", lambda _: opened)
        entries = cache._entries(file.parent)
        next(entries)
        del entries
    assert list(opened) == [], "a listing that is closed has no more entries"


def test_processes_that_store_the_same_key_leave_a_whole_entry(folder: Path) -> None:
    code = (
        "from polyopt import cache; from polyopt.runtime.kernel import KernelInfo\n"
        f"for k in range(30): cache.store('{KEY}', cache.Entry(KernelInfo('k', ()), b'x' * 5000))\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    children[0].kill()
    for child in children[1:]:
        assert child.wait() == 0
    children[0].wait()
    entry = cache.lookup(KEY)
    assert entry is not None and entry.object_code == b"x" * 5000


@pytest.mark.parametrize("has_one_time", [False, True])
def test_two_versions_of_the_library_are_told_apart(has_one_time: bool, tmp_path: Path) -> None:
    """Also where a reproducible build gave all files one time, and a change left their sizes as they were."""
    found = []
    for version in "12":
        folder = tmp_path / version
        (folder / "poly").mkdir(parents=True)
        for number, name in enumerate(("a.py", "poly/b.py", "c.h")):
            (folder / name).write_text(f"version = {version}\n", encoding="utf-8")
            time = 1 if has_one_time else number + (version == "2")
            os.utime(folder / name, (time, time))
        found.append(cache._fingerprint(folder))
        assert cache._fingerprint(folder) == found[-1]
    assert found[0] != found[1]
