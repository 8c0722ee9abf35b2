"""Which device runs CUDA kernels: a GPU through pycuda, or one that a test puts in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

from polyopt.classes import dataclass
from polyopt.errors import BackendUnavailable
from polyopt.runtime.cuda.driver import Driver


@dataclass(frozen=True, slots=True)
class Missing:
    """What a machine lacks for CUDA, and how to get it."""

    what: str
    fix: str


class _Override(threading.local):
    driver: Driver | None = None


_override = _Override()


@contextmanager
def use(driver: Driver) -> Iterator[None]:
    """Let this thread's calls run on `driver`, such as the emulator, in place of a GPU."""
    before = _override.driver
    _override.driver = driver
    try:
        yield
    finally:
        _override.driver = before


def other() -> Driver | None:
    """What this thread uses in place of a GPU."""
    return _override.driver


def driver(ordinal: int = 0) -> Driver:
    """The device of this number. Raises `BackendUnavailable` that says what is missing."""
    if _override.driver is not None:
        return _override.driver
    lack = missing()
    if lack is not None:
        raise BackendUnavailable(
            "the target 'cuda' cannot be used here",
            why=lack.what,
            fix=lack.fix,
            facts={"target": "cuda", "missing": lack.what},
        )
    return _gpu(ordinal)


@cache
def _gpu(ordinal: int) -> Driver:
    from polyopt.runtime.cuda.gpu import PycudaDriver  # opens pycuda

    return PycudaDriver(ordinal)


@cache
def missing() -> Missing | None:
    """What this machine lacks to run CUDA kernels; None where it has a GPU that pycuda reaches."""
    if find_spec("pycuda") is None:
        return Missing(
            "the package pycuda is not installed",
            "pip install 'polyopt[cuda]' on a machine with an NVIDIA driver, or use op.on('cpu') with host arrays",
        )
    try:
        import pycuda.driver as cuda

        cuda.init()
        count = cuda.Device.count()
    except ImportError as error:
        return Missing(f"pycuda cannot be imported: {error}", "install the NVIDIA driver, which brings libcuda.so.1")
    except Exception as error:  # noqa: BLE001  # pycuda's errors have no class of their own before it is initialised
        return Missing(f"the NVIDIA driver does not start: {error}", "look at what nvidia-smi says")
    if not count:
        return Missing("there is no NVIDIA GPU", "use op.on('cpu'), or a machine with a GPU")
    return None
