"""What the tests of this folder run in processes of their own: `python -c "from tests.robustness import work; ..."`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.testing  # else a thread imports it, with parts of importlib, as another one forks

import polyopt as po
from polyopt import f32, i64, room
from polyopt.forks import COMPILING, is_compiling
from polyopt.runtime import jit
from polyopt.target import Target, host

M, N = po.sizes("M N")
i, j = po.indices("i j")
ROOT = Path(__file__).parents[2]
STALLED_S = 200
"""After this long a process says where its threads are."""


def start(call: str, cache: Path | None = None, before: str = "pass", **environment: str) -> subprocess.Popen[str]:
    """A process that runs a function of this module; before: what it does before it imports anything of ours"""
    watch = f"import faulthandler; faulthandler.dump_traceback_later({STALLED_S})"
    code = f"{watch}; {before}; from tests.robustness import work; work.{call}"
    folder = {} if cache is None else {"POLYOPT_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=ROOT,
        env={**untraced(os.environ), "PYTHONPATH": str(ROOT), **folder, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def untraced(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a child count its lines: that would take most of the time that is bounded."""
    return {name: value for name, value in environment.items() if not name.startswith("COVERAGE_")}


def finish(process: subprocess.Popen[str], timeout_s: float = 250) -> None:
    """Wait for a process, which must end well."""
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipe
        said, _ = process.communicate()
        raise AssertionError(f"it hangs after {timeout_s} s: {said[-2000:]}") from None
    assert process.returncode == 0, f"exit code {process.returncode}: {said[-3000:]}"


def kind(number: int) -> po.Op:
    """A small operator; each number has another one."""

    @po.op
    def small(x: i64[M, N]):
        y = po.tensor("y")
        y[i] += x[i, j] * (number + 1) + number
        return y

    return small


def right(number: int, x: np.ndarray) -> np.ndarray:
    return (x * (number + 1) + number).sum(axis=1)


# --- processes --------------------------------------------------------------------------------------------------


def compile_all(count: int, seed: int) -> None:
    """Compiles and checks operators in an order of its own."""
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    x = np.arange(35).reshape(5, 7)
    for number in numbers:
        np.testing.assert_array_equal(kind(number)(x), right(number, x))


def expect_cached(count: int) -> None:
    """All operators are on disk, whole, and give the right results."""
    warnings.simplefilter("error")
    compile_all(count, 0)
    assert "islpy" not in sys.modules, "an operator had to be compiled again"


# --- threads ----------------------------------------------------------------------------------------------------


def _machine() -> Target:
    """This one, which gives everything to the thread pool."""
    return replace(host(), parallel_ns=1)


def threads(count: int, calls: int) -> None:
    """Threads that call and compile at once, serial and parallel kernels, new shapes and known ones."""
    ops = [kind(number) for number in range(6)]
    ops += [po.op(target=_machine())(kind(number).__wrapped__) for number in range(6)]
    wrong: list[str] = []
    barrier = threading.Barrier(count)

    def work(seed: int) -> None:
        draw = random.Random(seed)
        arrays = [np.arange(m * n).reshape(m, n) + seed for m, n in ((1, 1), (3, 4), (7, 5), (16, 9))]
        wanted = [[right(number, x) for x in arrays] for number in range(6)]
        barrier.wait()
        try:
            for _ in range(calls):
                number, which = draw.randrange(len(ops)), draw.randrange(len(arrays))
                found = ops[number](arrays[which])
                if not np.array_equal(found, wanted[number % 6][which]):
                    wrong.append(f"{number} on {arrays[which].shape}: {found}")
        except Exception as error:  # noqa: BLE001 - any is a failure of the test
            wrong.append(repr(error))

    running = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, wrong[:3]


def handler_beside_a_first_call() -> None:
    """A handler of a signal, in the thread that compiles, calls an op whose first call another thread is making."""
    is_read = threading.Event()

    @po.op
    def small(x: i64[M, N]):
        is_read.set()
        y = po.tensor("y")
        y[i] += x[i, j]
        return y

    x = np.arange(35).reshape(5, 7)
    found: list[np.ndarray] = []
    signal.signal(signal.SIGALRM, lambda *_: found.append(small(x)))
    thread = threading.Thread(target=lambda: found.append(small(x)))
    with COMPILING:
        thread.start()
        assert is_read.wait(60), "the equations are not read"
        signal.raise_signal(signal.SIGALRM)
    thread.join()
    assert len(found) == 2
    for each in found:
        np.testing.assert_array_equal(each, x.sum(axis=1))


# --- stacks -----------------------------------------------------------------------------------------------------


def small_stacks(kibibytes: int) -> None:
    """What compiles, looks inside and runs in threads of so little stack, and in a main thread of 256 KiB."""
    threading.stack_size(kibibytes << 10)
    for part in (_nested, _fused, _looked_at, _checked, _refused):
        _in_a_thread(part)
    assert threading.stack_size(0) == kibibytes << 10, "the size that the user gave is gone"


def small_main_stack() -> None:
    """The same in a main thread that may have 256 KiB, as after `ulimit -s 256`."""
    assert not room._HAS_ROOM.here
    for part in (_nested, _fused, _looked_at, _checked, _refused):
        part()


def _in_a_thread(part: Callable[[], None]) -> None:
    ended: list[Callable[[], None]] = []

    def go() -> None:
        part()
        ended.append(part)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    assert ended, part


def _roots(count: int) -> po.Op:
    @po.op
    def nested(x: f32[N], w: f32[N]):
        y, value = po.tensor("y"), x[i]
        for _ in range(count):
            value = po.sqrt(value * w[i] + 1)
        y[i] = value
        return y

    return nested


def _nested() -> None:
    x, roots = np.ones(100, np.float32), _roots(200)
    found = roots(x, x)
    np.testing.assert_allclose(found, np.full(100, 1.618034, np.float32), rtol=1e-5)
    np.testing.assert_allclose(found, roots.reference(x, x), rtol=1e-5)


@po.op
def _blocks(x: f32[M, N], w: f32[N, N]):
    k = po.index("k")
    for step in range(8):
        y = po.tensor(f"y{step}")
        y[i, j] = po.sum(x[i, k] * w[k, j], k)
        x = po.softmax(y, axis=-1)
    return x


def _fused() -> None:
    x, w = np.eye(96, 64, dtype=np.float32), np.eye(64, dtype=np.float32)
    expected = x.astype(np.float64)
    for _ in range(8):
        expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    for _ in range(2):
        np.testing.assert_allclose(_blocks(x, w), expected, rtol=1e-5)
    np.testing.assert_allclose(po.einsum("ij,jk->ik", x, w), x)


def _looked_at() -> None:
    roots = _roots(200)
    for op, lowering in ((_blocks, _blocks.lower(M=33, N=65)), (roots, roots.lower(N=100))):
        assert str(lowering.schedule) and lowering.source("c") and lowering.source("asm") and str(lowering.report())
        assert str(lowering.loops) == str(lowering) and str(lowering.verify()) and str(lowering.domains) and str(op)


def _checked() -> None:
    x, w = np.ones((3, 5), np.float32), np.ones((5, 5), np.float32)
    with po.strict_checks():
        np.testing.assert_allclose(_blocks(x, w), np.full((3, 5), 0.2, np.float32), rtol=1e-5)


def _refused() -> None:
    """What another thread raises is the caller's, with the user's line and none of ours."""
    x = np.ones(10, np.float32)
    try:
        _roots(5000)(x, x)
    except po.DefinitionError as error:
        assert "nested too deeply" in str(error)
        names = [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]
        assert set(names) == {Path(__file__).name}, names
    else:
        raise AssertionError("5000 operations inside each other compile")


# --- forks ------------------------------------------------------------------------------------------------------


def forks(count: int) -> None:
    """Children of a process that has used its threads use their own, and end."""
    op = po.op(target=_machine())(kind(2).__wrapped__)
    x = np.arange(3000).reshape(60, 50)
    po.set_num_threads(4)
    for _ in range(count):
        np.testing.assert_array_equal(op(x), right(2, x))
        _expect_right_in_a_child(op, x)


def threads_fork(count: int) -> None:
    """Children forked while other threads call and compile."""
    done = threading.Event()
    x = np.arange(300).reshape(20, 15)

    def work(seed: int) -> None:
        number = seed
        while not done.is_set():
            np.testing.assert_array_equal(kind(number)(x), right(number, x))
            number += 3

    running = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in running:
        thread.start()
    try:
        op = po.op(target=_machine())(kind(2).__wrapped__)
        for _ in range(count):
            _expect_right_in_a_child(op, x)
    finally:
        done.set()
    for thread in running:
        thread.join()


def fork_beside(use_of_llvm: str) -> None:
    """A child forked at the moment at which another thread is inside LLVM, outside of any kernel's compile."""
    import llvmlite.binding

    is_inside = threading.Event()

    def stay() -> None:
        if threading.current_thread() is not threading.main_thread() and not is_inside.is_set():
            is_inside.set()
            time.sleep(1)

    llvmlite.binding.ffi.register_lock_callback(stay, lambda: None)
    uses: dict[str, Callable[[], object]] = {
        "host": host,
        "pool": lambda: po.set_num_threads(3),
        "version": jit.version,
    }
    thread = threading.Thread(target=uses[use_of_llvm])
    thread.start()
    assert is_inside.wait(60), "LLVM is not used"
    _expect_right_in_a_child(kind(2), np.arange(300).reshape(20, 15))
    thread.join()


def imports_as_it_goes() -> None:
    """Calls of every kind open modules under the lock that a fork waits for, and not beside it."""
    opened: list[str] = []

    class Watch:
        def find_spec(self, name: str, *_: object) -> None:
            if not is_compiling():
                opened.append(name)

    @po.op
    def scaled(x: f32[M, N], a: f32, k: int = 2):
        y = po.tensor("y")
        y[i, j] = a * x[i, j] * k
        return y

    sys.meta_path.insert(0, Watch())
    x = np.ones((5, 7), np.float32)
    scaled(x, 2.0)
    scaled(x, np.float32(3), 5)
    scaled(x[:, ::2], 2)
    scaled(x, 2.0, out=np.zeros((7, 5), np.float32).T)
    scaled.reference(x, 2.0)
    po.einsum("ij,kj->ik", x, x)
    with po.strict_checks():
        scaled(x[1:], 2.0)
    for wrong in (x.astype(">f4"), x[0], "text"):
        try:
            scaled(wrong, 2.0)
        except po.PolyoptError:
            continue
        raise AssertionError(wrong)
    assert set(opened) <= {"islpy", "llvmlite"}, opened  # the cache asks for their versions, and opens neither


def _expect_right_in_a_child(op: po.Op, x: np.ndarray) -> None:
    """A child that is forked now calls the op, of kind 2, and ends."""
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(op(x), right(2, x)) else 1)
    end = time.monotonic() + 60
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            raise AssertionError("a child hangs")
        time.sleep(0.0005)
    assert os.waitstatus_to_exitcode(status[1]) == 0, "a child is wrong"
