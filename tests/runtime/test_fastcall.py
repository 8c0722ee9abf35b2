"""The quick way into kernels: right where it fits, None where it does not, and safe while entries come and go."""

from __future__ import annotations

import ctypes
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyopt as po
from polyopt import f32
from polyopt.runtime import fastcall, jit
from polyopt.runtime.fastcall import Entries, Entry, Results
from polyopt.runtime.fastcall_ir import CALL, HEAP_BYTES, STACK_BYTES, TRIAL, fast_call_ir
from polyopt.runtime.objects import LoadedCode
from polyopt.target import preset


@pytest.fixture(scope="module")
def code() -> LoadedCode:
    found = fastcall.load(jit.compile_object(fast_call_ir(), preset("generic")))
    if found is None:
        pytest.skip("this Python or NumPy has another layout")
    return found


RESULT = ((3,), np.dtype(np.int64))
X = np.arange(6, dtype=np.int64).reshape(2, 3)
Y = np.ones(4, np.float32)


def entry(code: LoadedCode, *examples: Any, added: int = 0, workspace: tuple[int, int] = (0, 0)) -> Entry:
    """An entry for two arguments whose result holds the first element of the first argument plus `added`."""
    made = Results(((np.empty, RESULT),))
    return Entry(fastcall._Trial(code.addresses[TRIAL]), examples, [0, 1, -1], made, [added], workspace)


def pickled(value: Any) -> Any:
    """As another process gives it: a dtype is an object of its own, if NumPy knows it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def test_a_call_that_fits_runs_and_others_give_none(code: LoadedCode) -> None:
    entries = Entries(code)
    assert entries.call(X, Y) is None
    entries.add(entry(code, X, Y, added=5))
    result = entries.call(X, Y)
    assert result.shape == (3,) and result[0] == 5
    assert entries.call(X.copy() + 1, Y)[0] == 6


class Subclass(np.ndarray):
    """Its own way of doing things must not be bypassed."""


MISFITS: list[Callable[[], tuple[Any, ...]]] = [
    lambda: (),
    lambda: (X,),
    lambda: (X, Y, Y),
    lambda: (Y, X),
    lambda: (X, None),
    lambda: (X.tolist(), Y),
    lambda: (X.astype(np.int32), Y),
    lambda: (X.astype(">i8"), Y),
    lambda: (X.view(pickled(np.dtype(">i8"))), Y),
    lambda: (X.view(np.uint64), Y),
    lambda: (X.view("m8[ns]"), Y),
    lambda: (X.view([("value", "i8")]), Y),
    lambda: (X[:1], Y),
    lambda: (X[0], Y),
    lambda: (X[None], Y),
    lambda: (X[:, ::-1], Y),
    lambda: (np.asfortranarray(X), Y),
    lambda: (np.broadcast_to(np.int64(1), (2, 3)), Y),
    lambda: (X.view(Subclass), Y),
    lambda: (np.ma.masked_array(X), Y),
    lambda: (np.frombuffer(b"\0" * 49, np.uint8)[1:].view(np.int64).reshape(2, 3), Y),
]


@pytest.mark.parametrize("misfit", MISFITS, ids=range(len(MISFITS)))
def test_an_argument_that_differs_in_one_thing_is_not_taken(code: LoadedCode, misfit: Any) -> None:
    entries = Entries(code)
    entries.add(entry(code, X, Y))
    assert entries.call(*misfit()) is None


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "bfloat16"])
def test_an_array_that_was_pickled_is_taken(code: LoadedCode, dtype: str) -> None:
    array = np.ones(4, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    entries = Entries(code)
    entries.add(entry(code, X, array))
    assert entries.call(X, pickled(array)) is not None
    assert entries.call(pickled(X), array) is not None


def test_entries_are_tried_latest_first_and_the_oldest_are_forgotten(code: LoadedCode) -> None:
    entries = Entries(code)
    examples = [np.zeros(n + 1, np.int64) for n in range(fastcall.KEPT_ENTRIES + 2)]
    for n, example in enumerate(examples):
        entries.add(entry(code, example, Y, added=n))
    found = [entries.call(example, Y) for example in examples]
    assert [None if value is None else int(value[0]) for value in found] == [None, None, *range(2, len(examples))]


def test_large_workspace_is_left_to_the_careful_way(code: LoadedCode) -> None:
    entries = Entries(code)
    entries.add(entry(code, X, Y, workspace=(HEAP_BYTES, 1)))
    assert entries.call(X, Y) is None
    for workspace in ((STACK_BYTES, 0), (STACK_BYTES, 1), (1, HEAP_BYTES - 1)):
        entries = Entries(code)
        entries.add(entry(code, X, Y, workspace=workspace))
        assert all(entries.call(X, Y) is not None for _ in range(100))


def test_no_reference_is_lost_or_kept(code: LoadedCode) -> None:
    entries = Entries(code)
    known = entry(code, X, Y)
    entries.add(known)
    entries.call(X, Y)
    before = [sys.getrefcount(value) for value in (X, Y, known, np.empty, RESULT, RESULT[1], None)]
    for _ in range(1000):
        entries.call(X, Y)
        entries.call(Y, X)
    after = [sys.getrefcount(value) for value in (X, Y, known, np.empty, RESULT, RESULT[1], None)]
    assert all(abs(now - then) < 50 for now, then in zip(after, before))
    assert sys.getrefcount(entries.call(X, Y)) <= 2


def test_entries_may_be_replaced_while_other_threads_call(code: LoadedCode) -> None:
    entries = Entries(code)
    wrong: list[Any] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            result = entries.call(X, Y)
            if result is not None and result[0] not in (1, 2):
                wrong.append(result)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(300):
        entries.add(entry(code, X, Y, added=1 + n % 2))
        gc.collect(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_function_keeps_all_that_it_reads_and_gives_it_back(code: LoadedCode) -> None:
    entries = Entries(code)
    first = entry(code, X, Y, added=1)
    alive = weakref.ref(first)
    entries.add(first)
    former = entries.call
    del first
    for n in range(2 * fastcall.KEPT_ENTRIES):
        entries.add(entry(code, Y, X, added=n))
    gc.collect()
    assert alive() is not None and former(X, Y)[0] == 1
    assert entries.call(X, Y) is None
    del former
    gc.collect()
    assert alive() is None


N, M = po.sizes("N M")


def test_threads_that_learn_calls_at_once_lose_none_and_read_nothing_freed() -> None:
    """Once the table was rewritten in place: machine code read entries that another thread had just freed."""

    @po.op
    def shifted(x: f32[N], y: f32[M]):
        i, j = po.indices("i j")
        z = po.tensor("z")
        z[i] = x[i] + po.sum(y[j], j)
        return z

    threads, start, wrong = 32, threading.Barrier(32), []
    shapes = [(n, m) for n in (1, 2, 3, 5) for m in (1, 2, 4)]
    arrays = {shape: (np.full(shape[0], 2, np.float32), np.ones(shape[1], np.float32)) for shape in shapes}
    for x, y in arrays.values():
        shifted.compile(x, y)

    def learn(number: int) -> None:
        start.wait()
        for turn in range(40):
            shape = shapes[(number * 5 + turn * 7) % len(shapes)]
            result = shifted(*arrays[shape])
            if result.shape != (shape[0],) or not np.all(result == 2 + shape[1]):
                wrong.append((shape, result))

    workers = [threading.Thread(target=learn, args=(number,)) for number in range(threads)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_another_python_goes_through_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastcall, "_is_plain_cpython", lambda: False)
    assert fastcall.load(b"") is None
    monkeypatch.setattr(fastcall, "_is_plain_cpython", lambda: True)
    assert fastcall.load(b"no object") is None


def test_a_trial_that_fails_is_believed(code: LoadedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CALL in code.addresses
    monkeypatch.setattr(fastcall, "_works", lambda code: False)
    assert fastcall.load(jit.compile_object(fast_call_ir(), preset("generic"))) is None


_SMALL_STACK = """
import threading, numpy as np, polyopt as po
from polyopt import f64
M, N = po.sizes("M N")
i, j, k = po.indices("i j k")
@po.op
def op(x: f64[M, N]):
    t, y = po.tensors("t y")
    t[i, j] = po.exp(x[i, j])
    y[i, j] += t[i, k] * t[j, k]
    return y
x = np.random.rand(60, 64)
for _ in range(3):
    op(x)
threading.stack_size(1 << 16)
found = []
thread = threading.Thread(target=lambda: found.extend(op(x) for _ in range(3)))
thread.start()
thread.join()
t = np.exp(x)
assert len(found) == 3 and all(np.allclose(y, t @ t.T) for y in found)
"""


def test_a_thread_with_a_small_stack_may_call() -> None:
    """Some 30 KiB of workspace are not taken from its 64 KiB."""
    subprocess.run([sys.executable, "-c", _SMALL_STACK], check=True, timeout=120)


# writes where its workspace is, after a call of what its parameter is the address of, if that is not 0
TELL = """
define void @tell(ptr %words) {
  %workspace_place = getelementptr i64, ptr %words, i64 1
  %workspace = load i64, ptr %workspace_place
  %out_place = getelementptr i64, ptr %words, i64 5
  %out = load ptr, ptr %out_place
  %inside_place = getelementptr i64, ptr %words, i64 6
  %inside = load ptr, ptr %inside_place
  %calls = icmp ne ptr %inside, null
  br i1 %calls, label %call, label %write
call:
  call void %inside()
  br label %write
write:
  store i64 %workspace, ptr %out
  ret void
}
"""


def test_workspace_is_kept_for_the_next_call(code: LoadedCode) -> None:
    tell = jit.load_object(jit.compile_object(TELL, preset("generic")), ("tell",))
    kernel, made = fastcall._Trial(tell.addresses["tell"]), Results(((np.empty, RESULT),))

    def calls(size: int, inside: int = 0) -> Callable[[], int]:
        entries = Entries(code)
        entries.add(Entry(kernel, [X], [0, -1], made, [inside], (size, 0)))
        return lambda: int(entries.call(X)[0])

    small, large = calls(STACK_BYTES + 1), calls(HEAP_BYTES - 1)
    kept = large()
    assert kept % 64 == 0 and small() == large() == kept, "a larger block serves smaller calls, and is not lost by them"
    found: list[int] = []
    callback = ctypes.CFUNCTYPE(None)
    within, beyond = (callback(lambda call=call: found.append(call())) for call in (small, large))
    outer, inner = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (within, beyond))
    assert calls(HEAP_BYTES - 1, outer)() == kept and found[-1] != kept, "a call inside another has a block of its own"
    assert small() == kept, "of two that were put back the larger is kept"
    assert calls(STACK_BYTES + 1, inner)() == kept and found[-1] != kept
    assert large() in (kept, found[-1])
    middle = callback(calls(HEAP_BYTES // 2, inner))  # has a smaller block than the one that is put back before it
    before = mapped_bytes()
    for _ in range(300):
        calls(HEAP_BYTES - 1, outer)()
        calls(HEAP_BYTES - 1, ctypes.cast(middle, ctypes.c_void_p).value or 0)()
    assert mapped_bytes() - before < 100 << 20, "blocks are lost"


def mapped_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text("ascii").split()[0]) * 4096 if statistics.is_file() else 0
