"""A run of the leader starts again soon after it was interrupted, and later and later after failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.leader_run import FIRST_PAUSE, FindingsWatch, outbox_relay
from taskqueue.daemon.protocol.messages import NO_CLAIM, Ended, RunHook, Stop
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.store import Store
from tests.daemon.node.conftest import context_of


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a loop."""
    with closing(Loop()) as loop:
        yield loop


@pytest.mark.parametrize(("metrics", "has_metrics"), [(None, False), ("0", True)])
def test_the_watch_is_told_whether_there_are_metrics(
    store: Store, loop: Loop, metrics: str | None, has_metrics: bool
) -> None:
    settings = Settings(name="web-1", metrics=metrics)
    watch = FindingsWatch(context_of(store, CircuitBreaker(lambda: None), loop=loop, settings=settings), lambda _: None)

    assert json.loads(watch._hook.data)["metrics"] is has_metrics


def test_a_relay_that_is_interrupted_has_not_failed(store: Store, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[RunHook | Stop] = []
    relay = outbox_relay("shop:outbox", context_of(store, CircuitBreaker(lambda: None), loop=loop), sent.append)
    relay.leadership_changed(True)
    for outcome, pauses in [("Interrupted", 0), ("Interrupted", 0), ("Failed", FIRST_PAUSE), ("Interrupted", 1)]:
        [run] = sent
        assert isinstance(run, RunHook)
        relay.on_report(Ended(id=run.id, claims=NO_CLAIM, outcome=outcome, fields={}, pid=None, started_at=None))
        assert relay._pause == pauses
        assert not relay.is_running
        sent.clear()
        relay._start()

    assert [record.getMessage() for record in caplog.records] == [
        "the outbox shop:outbox is not relayed: Failed:  (trying again in 1 s)"
    ]
