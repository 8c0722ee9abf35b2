"""Compiled kernels on disk, one file per kernel.

A file is: magic, format version, the key it was stored under, length and SHA-256 of the payload, the payload. The
payload is a JSON header and object code. Nothing in it is unpickled, evaluated or opened as a library. A file counts
only if it is a regular file, mine, not writable by others, and whole; any doubt is a miss, and the process says so at
most once. Whatever goes wrong here, a caller gets a miss and compiles.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import logging
import os
import platform
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from polyopt import settings
from polyopt.classes import dataclass
from polyopt.runtime import kernel
from polyopt.runtime.kernel import KernelInfo
from polyopt.target import Target

MAGIC = b"POLYOPT\n"
FORMAT_VERSION = 1
_FRAME = struct.Struct("<8sI32sQ32s")
_HEADER_LENGTH = struct.Struct("<I")
_SUFFIX = ".kernel"
_TEMPORARY_SUFFIX = ".tmp"
_ABANDONED_S = 3600.0
_ROOM_AFTER_EVICTION = 0.9
_LOOKS = 64
"""How often a process looks at the folder while it stores as much as the cap allows."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A compiled kernel as it is stored: what a caller must know of it, its machine code, its report."""

    info: KernelInfo
    object_code: bytes
    report: str = ""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the disk cache holds.

    folder:  where it is; None where there is none
    problem: why the disk is not used; empty where it is
    """

    folder: Path | None
    problem: str
    entries: int
    total_bytes: int
    limit_bytes: int


# --- keys -----------------------------------------------------------------------------------------------------


def key(target: Target, **parts: object) -> str:
    """The name of a kernel: a SHA-256 over `parts`, the target, and the versions of all that makes code.

    parts: what decides the code (program text, dtypes, sizes, layouts, options), as values that JSON can write
    """
    return digest(parts=parts, target=dataclasses.asdict(target))


def digest(**facts: object) -> str:
    """A SHA-256 over facts and the versions of all that makes code, as an entry's name."""
    text = json.dumps({"facts": facts, "versions": _versions()}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _versions() -> Mapping[str, str]:
    """Versions of isl, of LLVM, and of polyopt: a fingerprint of its files, as a working copy has no version."""
    return {
        "islpy": _installed("islpy"),
        "llvmlite": _installed("llvmlite"),
        "polyopt": _fingerprint(Path(__file__).parent),
    }


def _installed(package: str) -> str:
    """The version of a package, from the name of its metadata folder: quicker than asking it, or importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return "none"
    with os.scandir(Path(spec.origin).parent.parent) as items:
        names = [item.name for item in items if item.name.startswith(f"{package}-")]
    found = sorted(name for name in names if name.endswith(".dist-info"))
    return ",".join(found) or f"{Path(spec.origin).stat().st_mtime_ns}"


def _fingerprint(folder: Path) -> str:
    """By names, sizes and times of files; by their contents where a reproducible build gave all of them one time."""
    seen: list[tuple[str, int, int]] = []
    pending = [str(folder)]
    while pending:
        for item in os.scandir(pending.pop()):
            if item.is_dir(follow_symlinks=False):
                pending.append(item.path)
            elif item.name.endswith((".py", ".h", ".cpp")):
                status = item.stat()
                seen.append((item.path[len(str(folder)) :], status.st_size, status.st_mtime_ns))
    found = hashlib.sha256(json.dumps(sorted(seen)).encode())
    if len({time for _, _, time in seen}) == 1:
        for name, _, _ in sorted(seen):
            found.update(Path(f"{folder}{name}").read_bytes())
    return found.hexdigest()


# --- lookup and store -----------------------------------------------------------------------------------------


def lookup(key: str) -> Entry | None:
    """The entry stored under `key`; None where there is none that can be trusted."""
    folder = _folder()
    if folder is None:
        return None
    try:
        entry = _decode(_read_mine(folder / (key + _SUFFIX)), key)
    except FileNotFoundError:
        _log.debug("miss %s", key[:12])
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _warn_once(f"ignoring the damaged or foreign cache entry {key[:12]}: {error}")
        return None
    _log.debug("hit %s", key[:12])
    return entry


def store(key: str, entry: Entry) -> None:
    """Keep `entry` under `key`, and drop the oldest entries above the size cap. Where that fails, nothing is kept."""
    folder = _folder()
    if folder is None:
        return
    try:
        # An entry that a crash of the machine cut short does not fit its digest, so nobody waits for the disk.
        data = _encode(entry, key)
        _write_whole(folder / (key + _SUFFIX), data, waits=False)
        _make_room(folder, settings.current().cache_bytes, len(data))
    except OSError as error:
        _warn_once(f"cannot write to the cache folder: {error.strerror or error}")


def info() -> CacheInfo:
    """Where the cache is and what it holds."""
    limit = settings.current().cache_bytes
    folder, problem = _find_folder()
    if folder is None or problem:
        return CacheInfo(folder, problem, 0, 0, limit)
    found = list(_entries(folder))
    return CacheInfo(folder, "", len(found), sum(status.st_size for _, status in found), limit)


def clear() -> int:
    """Remove every entry; how many there were."""
    folder = _folder()
    if folder is None:
        return 0
    removed = 0
    for path, _ in _entries(folder):
        with suppress(OSError):
            path.unlink()
            removed += 1
    return removed


# --- text -----------------------------------------------------------------------------------------------------


def read_text(name: str) -> str | None:
    """What `write_text` kept under this file name; None where there is nothing that can be trusted."""
    folder = _folder()
    if folder is None:
        return None
    try:
        return _read_mine(folder / name).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _warn_once(f"ignoring {name}: {error}")
        return None


def write_text(name: str, text: str) -> bool:
    """Keep a text beside the kernels, where neither `clear` nor the size cap removes it; whether that was possible."""
    folder = _folder()
    if folder is None:
        return False
    try:
        _write_whole(folder / name, text.encode("utf-8"))
    except OSError as error:
        _warn_once(f"cannot write to the cache folder: {error.strerror or error}")
        return False
    return True


# --- the folder -----------------------------------------------------------------------------------------------


def _folder() -> Path | None:
    """The cache folder, made if need be; None where the disk cannot be used."""
    folder, problem = _find_folder()
    if problem:
        _warn_once(f"compiled kernels are kept in memory only: {problem}")
        return None
    return folder


def _find_folder() -> tuple[Path | None, str]:
    """The folder, and why it cannot be used (empty: it can). No folder and no problem: the cache is turned off."""
    wanted = settings.current()
    if wanted.cache_bytes == 0:
        return None, ""
    folder = wanted.cache_dir or _default_folder()
    if folder is None:
        return None, "there is no home folder"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder, _distrust(folder.stat(), "folder")
    except OSError as error:
        return folder, f"{folder}: {error.strerror or error}"


def _default_folder() -> Path | None:
    """The platform's user cache folder; None without a home, or where that is the system's temporary folder."""
    folder = _user_folder()
    is_temporary = folder.is_relative_to(_temporary_folder())
    return folder if folder.is_absolute() and not is_temporary else None


def _user_folder() -> Path:
    """Where the platform keeps what can be made again."""
    if platform.system() == "Linux":  # as platformdirs finds it, whose import takes a fifth of a start from the cache
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (given if given.is_absolute() else _home() / ".cache") / "polyopt"
    import platformdirs

    return Path(platformdirs.user_cache_dir("polyopt", appauthor=False))


def _home() -> Path:
    """The user's home folder; a relative path where there is none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path()


def _temporary_folder() -> Path:
    """The system's temporary folder as `tempfile` finds it, which is as slow to import and writes a file there."""
    given = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return next((Path(folder).absolute() for folder in given if folder and Path(folder).is_dir()), Path("/tmp"))


def _distrust(status: os.stat_result, kind: str) -> str:
    """Why a folder or file is not to be trusted; empty where it is."""
    if kind == "file" and not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"the {kind} belongs to another user"
    if os.name == "posix" and status.st_mode & _OTHERS_WRITE:
        return f"the {kind} can be written by other users"
    return ""


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every entry with its status, and abandoned temporary files too."""
    with os.scandir(folder) as items:
        for item in items:
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    continue
                abandoned = item.name.endswith(_TEMPORARY_SUFFIX) and status.st_mtime < time.time() - _ABANDONED_S
                if item.name.endswith(_SUFFIX) or abandoned:
                    yield Path(item.path), status


_room: dict[tuple[Path, int], int] = {}
"""How many bytes this process may store in a folder with a cap before it looks at the folder again."""


def _make_room(folder: Path, limit: int, stored: int) -> None:
    """Keeps a folder below its cap without a look at thousands of entries for each one that is stored.

    Entries of other processes are seen when this one looks: each may store a 64th of the cap unseen.
    """
    room = _room.get((folder, limit), 0) - stored
    _room[folder, limit] = room if room > 0 else min(limit - _evict(folder, limit), limit // _LOOKS)


def _evict(folder: Path, limit: int) -> int:
    """Removes abandoned files and, from a folder above its cap, the oldest entries; the bytes that stay."""
    found = sorted(_entries(folder), key=lambda entry: entry[1].st_mtime_ns)
    total = sum(status.st_size for _, status in found)
    wanted = int(limit * _ROOM_AFTER_EVICTION) if total > limit else total
    for path, status in found:
        if total > wanted or path.name.endswith(_TEMPORARY_SUFFIX):
            path.unlink(missing_ok=True)
            total -= status.st_size
    return total


# --- files ----------------------------------------------------------------------------------------------------


def _read_mine(path: Path) -> bytes:
    """The bytes of a file that is mine alone to write. Raises `OSError` or `ValueError`."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        doubt = _distrust(os.fstat(file.fileno()), "file")
        if doubt:
            raise ValueError(doubt)
        return file.read()


def _write_whole(path: Path, data: bytes, *, waits: bool = True) -> None:
    """Write so that a reader sees the former file or the new one, also after a crash. Raises `OSError`.

    waits: until the disk has it; otherwise the new file may be cut short if the machine itself crashes
    """
    temporary = path.with_name(f".{path.stem[:16]}-{os.getpid()}-{os.urandom(4).hex()}{_TEMPORARY_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            if waits:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _encode(entry: Entry, key: str) -> bytes:
    header = json.dumps({"info": kernel.as_json(entry.info), "report": entry.report}).encode()
    payload = _HEADER_LENGTH.pack(len(header)) + header + entry.object_code
    digest = hashlib.sha256(payload).digest()
    return _FRAME.pack(MAGIC, FORMAT_VERSION, bytes.fromhex(key), len(payload), digest) + payload


def _decode(data: bytes, key: str) -> Entry:
    """The entry in `data`. Raises `ValueError`, `KeyError` or `TypeError` where anything does not fit."""
    payload = _payload(data, key)
    (length,) = _HEADER_LENGTH.unpack_from(payload)
    start = _HEADER_LENGTH.size
    header: Mapping[str, Any] = json.loads(payload[start : start + length])
    return Entry(kernel.from_json(header["info"]), payload[start + length :], str(header["report"]))


def _payload(data: bytes, key: str) -> bytes:
    if len(data) < _FRAME.size + _HEADER_LENGTH.size:
        raise ValueError("cut short")
    magic, version, echo, length, digest = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if magic != MAGIC or version != FORMAT_VERSION:
        raise ValueError("another format")
    if echo != bytes.fromhex(key):
        raise ValueError("stored under another key")
    if length != len(payload) or hashlib.sha256(payload).digest() != digest:
        raise ValueError("damaged")
    return payload


class _Warner:
    """Says the first thing that is wrong with the cache aloud, and the rest in the debug log."""

    def __init__(self) -> None:
        self._has_warned = False

    def __call__(self, message: str) -> None:
        _log.log(logging.DEBUG if self._has_warned else logging.WARNING, message)
        self._has_warned = True


_warn_once = _Warner()
