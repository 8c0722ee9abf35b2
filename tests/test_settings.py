"""Settings: read from the environment when needed, overridden in a scope."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polyopt import settings
from polyopt.errors import ArgumentError
from polyopt.settings import Settings, from_environment, override, strict_checks


def test_an_empty_environment_gives_the_defaults() -> None:
    assert from_environment({}) == Settings()
    assert from_environment({"POLYOPT_NUM_THREADS": "", "POLYOPT_TARGET": ""}) == Settings()


def test_every_variable_is_read() -> None:
    found = from_environment(
        {
            "POLYOPT_TARGET": "avx2",
            "POLYOPT_NUM_THREADS": "3",
            "POLYOPT_CACHE_DIR": "/somewhere",
            "POLYOPT_CACHE_BYTES": "0",
            "POLYOPT_LOG": "schedule, cache",
            "POLYOPT_VERIFY": "2",
            "POLYOPT_FAST_CALL": "0",
            "POLYOPT_KEPT_BYTES": "5",
            "POLYOPT_TRACEBACK": "1",
        }
    )
    assert found == Settings("avx2", 3, Path("/somewhere"), 0, ("schedule", "cache"), 2, False, 5, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POLYOPT_NUM_THREADS", "0"),
        ("POLYOPT_NUM_THREADS", "1025"),
        ("POLYOPT_NUM_THREADS", "many"),
        ("POLYOPT_VERIFY", "-1"),
        ("POLYOPT_VERIFY", "2.5"),
        ("POLYOPT_VERIFY", "3"),
        ("POLYOPT_FAST_CALL", "2"),
        ("POLYOPT_TRACEBACK", "yes"),
    ],
)
def test_an_unreadable_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ArgumentError, match=name) as caught:
        from_environment({name: value})
    assert caught.value.facts == {"variable": name, "value": value}


def test_an_override_holds_inside_its_block_and_thread() -> None:
    seen: list[int] = []
    before = settings.current().verify
    with override(verify=7) as inside:
        assert inside.verify == settings.current().verify == 7
        assert settings.has_overrides()
        with override(num_threads=2):
            assert (settings.current().verify, settings.current().num_threads) == (7, 2)
        thread = threading.Thread(target=lambda: seen.append(settings.current().verify))
        thread.start()
        thread.join()
    assert seen == [before]
    assert settings.current().verify == before
    assert not settings.has_overrides()


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no setting 'colour'"), override(colour=1):
        pass


def test_strict_checks_ask_for_the_enumeration() -> None:
    with strict_checks():
        assert settings.current().verify == settings.ENUMERATION_LEVEL


def test_the_environment_is_read_again_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYOPT_VERIFY", "0")
    assert settings.current().verify == 0
    monkeypatch.delenv("POLYOPT_VERIFY")
    assert settings.current().verify == settings.PROOF_LEVEL


def test_the_topics_of_the_log_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("polyopt.poly", "polyopt.cache", "polyopt.schedule", "polyopt.tiling")
    for name in names:
        logging.getLogger(name).handlers.clear()
    try:
        settings.configure_logging(("schedule", "cache"))
        settings.configure_logging(("schedule",))
        assert [len(logging.getLogger(name).handlers) for name in names] == [1, 1, 1, 1]
        assert logging.getLogger("polyopt.poly.schedule").getEffectiveLevel() == logging.DEBUG
    finally:
        for name in names:
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize("topic", ["fusoin", "poly.nothing", "../errors"])
def test_a_topic_that_logs_nothing_is_named(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    settings.configure_logging((topic,))
    (record,) = caplog.records
    assert f"'{topic}', which logs nothing" in record.getMessage()
    assert not logging.getLogger(f"polyopt.{topic}").handlers


def test_a_topic_that_logs_nothing_is_said_on_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import polyopt; polyopt.op"],
        capture_output=True,
        text=True,
        env={**os.environ, "POLYOPT_LOG": "foo"},
        check=True,
    )
    assert "POLYOPT_LOG names 'foo', which logs nothing" in done.stderr


def test_the_topic_of_a_module_is_known(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("polyopt.poly.storage")
    try:
        settings.configure_logging(("poly.storage",))
        assert not caplog.records and len(logger.handlers) == 1
    finally:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
