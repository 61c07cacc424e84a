"""What a watch sends, and to whom, whatever happens between two looks at a real store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.daemon.protocol.messages import WATCH, Progressed, RunHook
from taskqueue.insight.notifications import GONE_FOR, STATE, attempted, flaws, state_of
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.ids import JobId
from taskqueue.model.record import Holder
from taskqueue.notifications import id_of, receiver_of
from taskqueue.notifications.watch import Sender
from taskqueue.store import Store
from tests.daemon.fake_node import FakeNode
from tests.notifications.mail_server import mail_server
from tests.notifications.receivers import KEY, command, hook

on_both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the key of webhooks, and let a broken proxy of this host not matter."""
    monkeypatch.setenv("TASKQUEUE_NOTIFY_KEY", KEY)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def sender(store: Store, *texts: str, node: str = "web-1") -> Sender:
    """Return the sender of a node to these receivers."""
    receivers = {id_of(text): receiver_of(text) for text in texts}
    return Sender(store, receivers, Holder(seat=node, incarnation="a1"))


def seen(store: Store, later: timedelta = timedelta(0)) -> Overview:
    """Return a look at the store, as if it was later."""
    overview = OverviewReader(store).read()
    return replace(overview, at=overview.at + later, needs=[need for need in overview.needs if need.name == "mail"])


def look(sends: Sender, overview: Overview) -> list[bool]:
    """Let it send what a look has found, and return whether each delivery has failed."""
    return [failed for failed in sends.deliveries(overview) if failed is not None]


@on_both
def test_a_finding_and_its_end_reach_every_kind_of_receiver(store: Store, scheduler: Scheduler, tmp_path: Path) -> None:
    with hook() as got, mail_server() as server:
        texts = (got.url, f"mailto:ops@example.org?smtp=smtp://localhost:{server.port}", command(tmp_path))
        sends = sender(store, *texts)
        scheduler.pause("mail", "a test")
        assert look(sends, seen(store)) == [False, False, False]
        assert look(sends, seen(store)) == []
        scheduler.resume("mail")
        assert look(sends, seen(store)) == []
        assert look(sender(store, *texts, node="web-2"), seen(store, GONE_FOR)) == []  # it is not its turn
        assert look(sends, seen(store, GONE_FOR)) == [False, False, False]

    [began], [over] = got.said("began"), got.said("over")
    assert began == over
    assert began.startswith("queue mail is paused since")
    assert [" ".join(mail["Subject"].split())[:20] for mail in server.mails] == [
        "[taskqueue] 1 new: q",
        "[taskqueue] 1 ended:",
    ]
    assert len(list(tmp_path.glob("msg_*.json"))) == 2
    assert sends.waiting == 0


@pytest.mark.parametrize(("has_metrics", "limits"), [(True, {"limit:name=stripe": [0, 5, 1]}), (False, {})])
def test_limits_are_looked_at_for_metrics_only(
    url: str, scheduler: Scheduler, has_metrics: bool, limits: Mapping[str, Any]
) -> None:
    scheduler.add_job("shop:pay", limits="5 name=stripe")
    data = {"receivers": [], "node": "web-1", "incarnation": "a1", "metrics": has_metrics}
    with FakeNode(url=url, max_children=1) as fake_node:
        fake_node.tell(RunHook(id=str(JobId()), name=WATCH, data=json.dumps(data)))

        report = fake_node.expect(Progressed)
        while report.state is None:
            fake_node.heard.remove(report)
            report = fake_node.expect(Progressed)
        assert json.loads(report.state)["limits"] == limits


def test_a_receiver_that_refuses_gets_the_same_message_again(store: Store, scheduler: Scheduler) -> None:
    scheduler.pause("mail", "a test")
    with hook([500, 503]) as got:
        sends = sender(store, got.url)
        assert look(sends, seen(store)) == [True]
        assert sends.waiting == 1
        assert look(sends, seen(store)) == []  # it is too early
        assert look(sends, seen(store, timedelta(hours=1))) == [True]
        assert look(sends, seen(store, timedelta(hours=2))) == [False]

    assert len(got.requests) == 3
    assert len({headers["webhook-id"] for headers, _ in got.requests}) == 1
    assert len({body for _, body in got.requests}) == 1
    assert sends.waiting == 0


def test_a_secret_that_is_gone_is_an_error_of_the_delivery(
    store: Store, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.pause("mail", "a test")
    monkeypatch.delenv("TASKQUEUE_NOTIFY_KEY")
    monkeypatch.setenv("TASKQUEUE_NOTIFY_KEY_FILE", "/gone/\udcff")
    with hook() as got:
        assert look(sender(store, got.url), seen(store)) == [True]

    [delivery] = state_of(store.leases()).receivers.values()
    assert delivery.error.startswith("TASKQUEUE_NOTIFY_KEY_FILE=/gone/\\udcff cannot be read (No such file")
    assert got.requests == []


def test_the_next_sender_goes_on_where_one_that_died_in_a_delivery_has_stopped(
    store: Store, scheduler: Scheduler
) -> None:
    scheduler.pause("mail", "a test")
    with hook() as got:
        first = sender(store, got.url)
        with first.turns():
            deliveries = first.deliveries(seen(store))
            assert next(deliveries) is None
            state = state_of(store.leases())
            assert next(deliveries) is False
            first._save(state)
        assert look(sender(store, got.url, node="web-2"), seen(store)) == [False]

    assert len({headers["webhook-id"] for headers, _ in got.requests}) == 1
    assert len(got.requests) == 2


@on_both
@pytest.mark.parametrize("ends_first", [True, False])
def test_a_sender_that_stood_still_sends_nothing_after_another_had_the_turn(
    store: Store, scheduler: Scheduler, ends_first: bool
) -> None:
    scheduler.pause("mail", "a test")
    with hook() as one, hook() as two:
        slow, other = sender(store, one.url, two.url), sender(store, one.url, two.url, node="web-2")
        deliveries = slow.deliveries(seen(store))
        assert [next(deliveries), next(deliveries)] == [None, False]
        slow._take_turn(timedelta(0))
        assert look(other, seen(store)) == [False]
        if ends_first:
            other._take_turn(timedelta(0))
        state = state_of(store.leases())

        assert list(deliveries) == []

    assert (len(one.requests), len(two.requests)) == (1, 1)
    assert state_of(store.leases()) == state


@on_both
def test_the_store_has_no_secret_of_a_receiver(store: Store, scheduler: Scheduler) -> None:
    scheduler.pause("mail", "a test")
    with hook([500]) as got:
        look(sender(store, got.url), seen(store))

    kept = repr(store.leases())
    assert "127.0.0.1" in kept
    assert "secret-path" not in kept
    assert KEY not in kept
    assert list(flaws(store.leases(), store.now())) == []


def test_a_clock_that_is_set_back_keeps_no_message_and_no_end_back(store: Store, scheduler: Scheduler) -> None:
    scheduler.pause("mail", "a test")
    ahead = timedelta(days=365)
    with hook([500]) as got:
        sends = sender(store, got.url)
        assert look(sends, seen(store)) == [True]
        state = state_of(store.leases())
        [id] = state.receivers
        sends._save(attempted(state, id, store.now() + ahead))
        assert look(sends, seen(store)) == [False]
        scheduler.resume("mail")
        assert look(sends, seen(store, ahead)) == []
        assert look(sends, seen(store)) == []
        assert look(sends, seen(store, GONE_FOR)) == [False]

    assert len(got.said("over")) == 1


@pytest.mark.parametrize(
    "damage",
    [{"tries": "x"}, {"try_at": None}, {"try_at": 10**18}, {"name": 5}, {"known": 7}, {"message": []}, {"more": 1}],
)
def test_a_state_that_was_damaged_tells_everything_again(
    store: Store, scheduler: Scheduler, damage: dict[str, object]
) -> None:
    scheduler.pause("mail", "a test")
    with hook() as got:
        sends = sender(store, got.url)
        assert look(sends, seen(store)) == [False]
        [kept] = [lease for lease in store.leases() if lease.name == STATE]
        about: dict[str, Any] = json.loads(json.dumps(kept.about))
        about["receivers"] = {id: {**fields, **damage} for id, fields in about["receivers"].items()}
        store.acquire(replace(kept, about=about), store.now())
        assert look(sends, seen(store)) == [False]

    assert len(got.requests) == 2


def test_a_delivery_that_is_cut_off_each_time_is_a_finding(store: Store, scheduler: Scheduler) -> None:
    scheduler.pause("mail", "a test")
    with hook([500]) as got:
        sends = sender(store, got.url)
        look(sends, seen(store))
    state = state_of(store.leases())
    [(id, delivery)] = state.receivers.items()
    state = replace(state, receivers={id: replace(delivery, error="", fails_since=None)})
    for _ in range(2):
        state = attempted(state, id, store.now())
    sends._save(state)

    [flaw] = flaws(store.leases(), store.now())
    assert "each delivery was cut off, see the log of the leader" in flaw.says
