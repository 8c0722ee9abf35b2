"""Cases of operators checked in a child process, which a kernel that leaves its arrays may end."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection

import numpy as np
import pytest

import polyopt as po
from polyopt.dtypes import from_name
from polyopt.testing.check import Checker
from tests.operators.operator import Case


def check(checker: Checker, case: Case) -> None:
    arguments = case.arguments
    expected = case.operator.expected(from_name(case.dtype), arguments)
    checker(case.operator.op, *arguments, expected=expected, rtol=case.operator.rtol.get(case.dtype))


def failed(found: Sequence[Case], checker: Checker) -> Iterator[str]:
    """What is wrong with the cases that fail. One child process checks them all: a fork for each takes longer than its
    check. A crash is a failure of the case at hand, and another child goes on behind it. On systems without fork this
    process checks them."""
    if not hasattr(os, "fork"):
        yield from filter(None, (_failure(case, checker) for case in found))
        return
    _load_compiler()
    context = multiprocessing.get_context("fork")
    while found:
        results, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_check_all, args=(found, replace(checker, forks=False), theirs))
        child.start()
        theirs.close()
        done = 0
        with suppress(EOFError):
            while True:
                failure = results.recv()
                done += 1
                if failure:
                    yield failure
        child.join()
        if done < len(found):
            yield f"{found[done]}: the process that checks it ended with {child.exitcode}"
            done += 1
        found = found[done:]


@cache
def _load_compiler() -> None:
    """Once here, and not by every child."""
    po.einsum("i,i", np.ones(1), np.ones(1))


def _check_all(found: Sequence[Case], checker: Checker, results: Connection) -> None:
    """Sends what is wrong with each case; nothing for one that is right."""
    faulthandler.disable()  # a crash is told as a failure of its case
    for case in found:
        results.send(_failure(case, checker))


def _failure(case: Case, checker: Checker) -> str:
    """What is wrong with a case; nothing where it is right."""
    try:
        check(checker, case)
    except (pytest.fail.Exception, po.PolyoptError) as failure:
        return f"{case}: {failure}"
    return ""
