"""Every environment variable that polyopt reads, with type, default and a scoped override.

Values are read when they are needed, so that a test or a notebook may change the environment after the import; the
thread count, the log's topics, the entry code and the memory for results are asked for once in a process. An override
made by `override(...)` or `strict_checks()` holds in the current thread or task only.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

from polyopt.classes import dataclass
from polyopt.errors import ArgumentError

DEFAULT_CACHE_BYTES = 512 << 20
MOST_THREADS = 1024
PROOF_LEVEL = 1
ENUMERATION_LEVEL = 2
_OF_CHILDREN = ("polyopt", "numpy", "ml_dtypes", "llvmlite")
"""What processes of ours import beside Python's library."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force.

    target:      POLYOPT_TARGET, "cpu", "cuda" or a preset of `target.py`; None: by the kind of the arrays
    num_threads: POLYOPT_NUM_THREADS; None: the usable cores
    cache_dir:   POLYOPT_CACHE_DIR; None: the platform's user cache folder
    cache_bytes: POLYOPT_CACHE_BYTES, size cap of the disk cache; 0 turns the disk cache off
    log:         POLYOPT_LOG, topics to log to the terminal
    verify:      POLYOPT_VERIFY, 2 checks each kernel against an enumeration at the call's sizes too; every schedule is
                 proved in any case
    fast_call:   POLYOPT_FAST_CALL, call kernels through generated code where its self-test passes
    kept_bytes:  POLYOPT_KEPT_BYTES, memory of large results that is kept for the next ones; None: a sixteenth of the
                 memory, at most 1 GiB; 0 keeps none
    traceback:   POLYOPT_TRACEBACK, 1 leaves polyopt's own frames in the tracebacks of errors
    """

    target: str | None = None
    num_threads: int | None = None
    cache_dir: Path | None = None
    cache_bytes: int = DEFAULT_CACHE_BYTES
    log: tuple[str, ...] = ()
    verify: int = PROOF_LEVEL
    fast_call: bool = True
    kept_bytes: int | None = None
    traceback: bool = False


_NO_OVERRIDES: Mapping[str, object] = MappingProxyType({})
_overrides: ContextVar[Mapping[str, object]] = ContextVar("polyopt_settings", default=_NO_OVERRIDES)


def current() -> Settings:
    """The environment's settings with the overrides in force. Raises `ArgumentError` for an unreadable value."""
    changes = _overrides.get()
    settings = from_environment(os.environ)
    return replace(settings, **changes) if changes else settings  # type: ignore[arg-type]


def target() -> str | None:
    """`current().target`, without a look at the other settings."""
    found = _overrides.get().get("target", os.environ.get("POLYOPT_TARGET"))
    return found or None  # type: ignore[return-value]  # an override is as `Settings` has it


def call_key() -> Hashable:
    """What decides between kernels of one op, quick to get: the overrides, and the environment's target."""
    return tuple(sorted(_overrides.get().items())), os.environ.get("POLYOPT_TARGET")


def has_overrides() -> bool:
    """Whether the current thread or task is inside `override(...)` or `strict_checks()`."""
    return _overrides.get() is not _NO_OVERRIDES


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that `environment` asks for. An empty value counts as unset."""
    return Settings(
        target=environment.get("POLYOPT_TARGET") or None,
        num_threads=_integer(environment, "POLYOPT_NUM_THREADS", least=1, most=MOST_THREADS),
        cache_dir=_folder(environment, "POLYOPT_CACHE_DIR"),
        cache_bytes=_or(_integer(environment, "POLYOPT_CACHE_BYTES"), DEFAULT_CACHE_BYTES),
        log=topics(environment),
        verify=_or(_integer(environment, "POLYOPT_VERIFY", most=ENUMERATION_LEVEL), PROOF_LEVEL),
        fast_call=_integer(environment, "POLYOPT_FAST_CALL", most=1) != 0,
        kept_bytes=_integer(environment, "POLYOPT_KEPT_BYTES"),
        traceback=_integer(environment, "POLYOPT_TRACEBACK", most=1) == 1,
    )


def topics(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What POLYOPT_LOG names; never raises, since it is asked when the library opens."""
    return tuple(name.strip() for name in environment.get("POLYOPT_LOG", "").split(",") if name.strip())


def wants_whole_traceback(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether POLYOPT_TRACEBACK asks for polyopt's own frames; never raises, since it is asked about an error."""
    return environment.get("POLYOPT_TRACEBACK", "").strip() not in ("", "0")


def child_environment(*, num_threads: int) -> dict[str, str]:
    """The environment for a process of ours: this one's, its thread count, and where it finds what it imports.

    Not the folder of the user's script, nor the one at hand: a file `operator.py` there would stand for Python's own.
    """
    found = map(importlib.util.find_spec, _OF_CHILDREN)
    paths = dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin)
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    return {**os.environ, "POLYOPT_NUM_THREADS": str(num_threads), **own}


@contextmanager
def override(**changes: object) -> Iterator[Settings]:
    """Use other settings inside a `with` block: `with override(num_threads=1): ...`."""
    unknown = sorted(set(changes) - {item.name for item in fields(Settings)})
    if unknown:
        raise ArgumentError(
            f"there is no setting '{unknown[0]}'",
            fix=f"one of {', '.join(item.name for item in fields(Settings))}",
            facts={"setting": unknown[0]},
        )
    token = _overrides.set({**_overrides.get(), **changes})
    try:
        yield current()
    finally:
        _overrides.reset(token)


def strict_checks() -> AbstractContextManager[Settings]:
    """Check each kernel that is called inside the block against an enumeration at the call's own sizes.

    The first call for given shapes and dtypes walks the kernel's loops instance by instance (every instance once, every
    dependence in order, no access outside an array, no race), runs the machine code on the call's inputs, and compares
    its results with the reference. Raises `LegalityError` with the instances or elements at fault.

    That takes some 0.2 ms for each instance, so a matrix product of 32 x 32 x 32 takes 5 s. A kernel with more than a
    million instances is left out, with a warning in the log; call it with smaller arrays. Subscripts that are data are
    checked for the values at hand.
    """
    return override(verify=ENUMERATION_LEVEL)


def _folder(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:
        raise ArgumentError(
            f"the environment variable {name} holds {text!r}",
            why=str(error),
            fix=f"unset {name}, or set it to a folder",
            facts={"variable": name, "value": text},
        ) from None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


_MOST_DIGITS = 18


def _integer(environment: Mapping[str, str], name: str, *, least: int = 0, most: int | None = None) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least or (most is not None and int(text) > most):
        raise ArgumentError(
            f"the environment variable {name} holds {text!r}",
            why=f"it must be a whole number, {f'at least {least}' if most is None else f'from {least} to {most}'}",
            fix=f"unset {name}, or set it to a number",
            facts={"variable": name, "value": text},
        )
    return int(text)


# --- logging --------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_KNOWN = "all, schedule, fusion, codegen, cache, and modules of polyopt such as poly.storage"
_TOPICS: Mapping[str, tuple[str, ...]] = {
    "all": ("polyopt",),
    "codegen": ("polyopt.codegen", "polyopt.codegen_c", "polyopt.codegen_cuda", "polyopt.loops", "polyopt.compilation"),
    "schedule": ("polyopt.schedule", "polyopt.poly", "polyopt.tiling"),
}


def configure_logging(names: Iterable[str]) -> None:
    """Send the logs of topics to the terminal, at DEBUG.

    A topic is "all", "schedule", "codegen" or the name of a module below `polyopt` ("fusion", "cache", ...). Any other
    one logs nothing, and a warning says so.
    """
    for topic in names:
        place = Path(__file__).parent.joinpath(*topic.split("."))
        if topic not in _TOPICS and not _is_module(place):
            _log.warning("POLYOPT_LOG names '%s', which logs nothing: the topics are %s", topic, _KNOWN)
            continue
        for name in _TOPICS.get(topic, (f"polyopt.{topic}",)):
            logger = logging.getLogger(name)
            logger.setLevel(logging.DEBUG)
            if not any(isinstance(handler, _TopicHandler) for handler in logger.handlers):
                logger.addHandler(_TopicHandler())


def _is_module(place: Path) -> bool:
    try:
        return place.is_dir() or place.with_suffix(".py").is_file()
    except (OSError, ValueError):  # a name that is none for a file
        return False


class _TopicHandler(logging.StreamHandler):  # type: ignore[type-arg]  # the stream's type is the base's default
    """The terminal handler that `configure_logging` adds; a type of its own so that it is added once."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
