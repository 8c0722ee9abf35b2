"""How evenly threads share the blocks that an axis is cut into.

A plan must not depend on the number of threads, since results do not. So blocks are judged by two threads: what leaves
one of these waiting leaves some of any even number waiting.
"""

from __future__ import annotations

THREADS = 2


def evenness(length: int, block: int, step: int) -> float:
    """The share of their time for which two threads are busy with blocks of an axis, rounded to a hundredth.

    step: points that take as long as one, the lanes of a vector: the last block is paid for in whole steps
    """
    whole, rest = divmod(length, block)
    each = -(-block // step)
    rounds = max(whole - 2 * THREADS, 0) // THREADS  # in which every thread takes a whole block: not written out
    times = [each] * (whole - rounds * THREADS) + [-(-rest // step)] * (rest > 0)
    busy = [rounds * each] * THREADS
    for time in _claimed(times):
        busy[busy.index(min(busy))] += time
    return round(-(-length // step) / THREADS / max(busy), 2)


def _claimed(times: list[int]) -> list[int]:
    """The blocks in the order in which threads claim them: the first of each thread's stretch, then the second ones."""
    stretch = -(-len(times) // THREADS)
    stretches = [times[start : start + stretch] for start in range(0, len(times), stretch)]
    return [of[number] for number in range(stretch) for of in stretches if number < len(of)]
