"""The schedules that an application declares: exactly these, once per deployment, and nobody else's."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from taskqueue import ScheduleChanges, ScheduleEntry, Scheduler
from taskqueue.errors import InvalidOption, StoreContended
from taskqueue.model.record import Holder
from taskqueue.model.schedules import Cron, Every
from taskqueue.model.schedules.schedule import next_version
from taskqueue.scheduler.declared_schedules import TURN
from taskqueue.store import Lease, Store
from taskqueue.store.tries import MOST_TRIES
from tests.keeper import CHECKOUT
from tests.nodes import LIMIT
from tests.scheduler.jobs import Echo, Mail

BOTH = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
NIGHTLY: ScheduleEntry = {"job": Mail, "data": {"to": "a"}, "cron": "15 3 * * *", "tz": "Europe/Berlin", "retry": 3}
OFTEN: ScheduleEntry = {"job": Echo, "every": "10m"}


def names(store: Store) -> list[str]:
    return [schedule.name for schedule in store.schedules()]


@BOTH
def test_a_set_is_exactly_the_schedules_of_its_application(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.schedules({"nightly": NIGHTLY, "often": OFTEN}, application="shop")
    second = scheduler.schedules({"often": {**OFTEN, "every": "5m"}, "new": OFTEN}, application="shop")
    [new, often] = store.schedules()

    assert first == ScheduleChanges(added=("nightly", "often"), changed={})
    assert second == ScheduleChanges(added=("new",), changed={"often": ("trigger",)}, removed=("nightly",))
    assert (new.name, often.trigger, often.application) == ("new", Every(300), "shop")


@BOTH
def test_a_set_without_schedules_removes_them_all(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules({"nightly": NIGHTLY}, application="shop")

    assert scheduler.schedules({}, application="shop").removed == ("nightly",)
    assert names(store) == []


def test_a_declared_schedule_is_as_one_that_is_defined_by_a_call(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules({"nightly": {**NIGHTLY, "overlap": "allow", "max_runs": 9}}, application="shop")
    scheduler.schedule(
        "called", Mail, {"to": "a"}, cron="15 3 * * *", tz="Europe/Berlin", retry=3, overlap="allow", max_runs=9
    )
    [called, declared] = store.schedules()

    assert declared.trigger == called.trigger == Cron("15 3 * * *", "Europe/Berlin")
    assert declared.template.options == called.template.options
    assert (declared.overlap, declared.max_runs, declared.next_run_at) == (called.overlap, 9, called.next_run_at)
    assert (called.application, declared.application) == (None, "shop")


@BOTH
def test_schedules_of_operators_and_of_other_applications_stay(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedule("by-hand", Echo, every=60)
    scheduler.schedules({"of-blog": OFTEN}, application="blog")
    scheduler.schedules({"of-shop": OFTEN}, application="shop")
    scheduler.schedules({}, application="shop")

    assert names(store) == ["by-hand", "of-blog"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [("by-hand", "a call or a command has defined it"), ("of-blog", "application blog has it")],
)
def test_a_name_of_somebody_else_is_refused_and_nothing_changes(
    scheduler: Scheduler, store: Store, name: str, owner: str
) -> None:
    scheduler.schedule("by-hand", Echo, every=60)
    scheduler.schedules({"of-blog": OFTEN}, application="blog")
    before = store.schedules()

    with pytest.raises(InvalidOption, match=f"{name} cannot be declared by application shop, {owner}: rename yours"):
        scheduler.schedules({"a": OFTEN, name: {**OFTEN, "every": "1h"}}, application="shop")
    assert store.schedules() == before


def test_a_schedule_that_start_up_code_has_defined_is_adopted_if_it_is_the_same(
    scheduler: Scheduler, store: Store
) -> None:
    scheduler.schedule("often", Echo, every="10m").trigger()

    assert scheduler.schedules({"often": OFTEN}, application="shop").changed == {"often": ("application",)}
    [often] = store.schedules()
    assert (often.application, len(often.recent)) == ("shop", 1)


@BOTH
def test_a_set_applies_once_so_a_restart_undoes_nothing(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules({"nightly": NIGHTLY, "often": OFTEN}, application="shop")
    scheduler.get_schedule("often").remove()
    scheduler.get_schedule("nightly").pause("holidays")

    assert scheduler.schedules({"often": OFTEN, "nightly": NIGHTLY}, application="shop") == ScheduleChanges(changed={})
    assert [(one.name, one.reason) for one in store.schedules()] == [("nightly", "holidays")]


@BOTH
def test_an_older_deployment_that_restarts_changes_nothing_and_says_so(
    scheduler: Scheduler, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.schedules({"nightly": NIGHTLY}, application="shop")
    scheduler.schedules({"often": OFTEN}, application="shop")

    with caplog.at_level(logging.WARNING):
        changes = scheduler.schedules({"nightly": NIGHTLY}, application="shop")
    assert changes == ScheduleChanges(changed={}, is_outdated=True)
    assert "another deployment has replaced this one's" in caplog.text
    assert names(store) == ["often"]


def test_force_returns_to_an_older_set_which_is_then_the_newest(scheduler: Scheduler, store: Store) -> None:
    for entries in ({"nightly": NIGHTLY}, {"often": OFTEN}):
        scheduler.schedules(entries, application="shop")

    assert scheduler.schedules({"nightly": NIGHTLY}, application="shop", force=True).added == ("nightly",)
    assert scheduler.schedules({"nightly": NIGHTLY}, application="shop") == ScheduleChanges(changed={})
    assert scheduler.schedules({"often": OFTEN}, application="shop").is_outdated
    assert names(store) == ["nightly"]


def test_a_dry_run_changes_nothing(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules({"nightly": NIGHTLY, "often": OFTEN}, application="shop")
    before, leases = store.schedules(), store.leases()

    preview = scheduler.schedules({"often": {**OFTEN, "retry": 2}, "new": OFTEN}, application="shop", dry_run=True)

    assert (preview.added, preview.removed) == (("new",), ("nightly",))
    assert preview.changed == {"often": ("retry",)}
    assert (store.schedules(), store.leases()) == (before, leases)


def test_a_dry_run_makes_no_store(tmp_path: Path) -> None:
    with Scheduler(tmp_path / "missing.db") as scheduler:
        preview = scheduler.schedules({"nightly": NIGHTLY}, application="shop", dry_run=True)

    assert (preview.added, list(tmp_path.iterdir())) == (("nightly",), [])


def test_a_deployment_keeps_pauses_and_counters_and_restores_what_was_redefined_by_hand(
    scheduler: Scheduler, store: Store
) -> None:
    scheduler.schedules({"often": OFTEN}, application="shop")
    scheduler.schedule("often", Echo, every="1h").trigger()
    scheduler.get_schedule("often").pause("holidays")

    changes = scheduler.schedules({"often": OFTEN, "new": OFTEN}, application="shop")
    [_, often] = store.schedules()

    assert changes.changed == {"often": ("trigger",)}
    assert (often.trigger, often.stage.value, len(often.recent)) == (Every(600), "paused", 1)


def test_a_damaged_schedule_is_defined_again(scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules({"often": OFTEN}, application="shop")
    [often] = store.schedules()
    store.replace_schedule(often, next_version(often, misfire="sometimes"), [], store.now())
    [damaged] = store.schedules()
    assert damaged.damage

    assert scheduler.schedules({"often": OFTEN}, application="shop", force=True).changed == {
        "often": ("unreadable parts",)
    }
    assert [one.damage for one in store.schedules()] == [""]


@BOTH
def test_of_deployments_at_once_one_wins_as_a_whole(url: str, store: Store) -> None:
    sets: list[dict[str, ScheduleEntry]] = [{f"of-{number}-{part}": OFTEN for part in range(4)} for number in range(4)]
    barrier = Barrier(8)

    def deploy(number: int) -> None:
        with Scheduler(url) as scheduler:
            store.schedules()
            barrier.wait(60)
            scheduler.schedules(sets[number % 4], application="shop")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deploy, range(8)))

    assert names(store) in [sorted(entries) for entries in sets]


@BOTH
def test_a_deployment_waits_until_the_turn_of_a_killed_one_has_ended(scheduler: Scheduler, store: Store) -> None:
    now = store.now()
    dead = Holder(seat="process 1 of web-1", incarnation="dead")
    store.acquire(Lease(name=f"{TURN}shop", holder=dead, since=now, until=(end := now + timedelta(seconds=1.5))), now)

    scheduler.schedules({"often": OFTEN}, application="shop")

    assert store.now() >= end
    assert names(store) == ["often"]
    assert [lease.name for lease in store.leases()] == ["schedules of shop"]


def test_leases_that_others_take_do_not_shorten_the_wait_for_a_turn(blocking: Scheduler, store: Store) -> None:
    now, other = store.now(), Holder(seat="process 7 of web-1", incarnation="other")
    store.acquire(Lease(name=f"{TURN}shop", holder=other, since=now, until=now + timedelta(hours=1)), now)

    with ThreadPoolExecutor(1) as thread:
        applying = thread.submit(blocking.schedules, {"often": OFTEN}, application="shop")
        for number in range(2 * MOST_TRIES):
            taker = Holder(seat="web-1", incarnation=str(number))
            store.acquire(Lease(name="other", holder=taker, since=now, until=now), now)
            time.sleep(0.005)  # so that each ring is heard by itself
        store.resign(f"{TURN}shop", other)

        assert applying.result(LIMIT).added == ("often",)


def test_a_deployment_that_stood_still_and_lost_its_turn_stops(blocking: Scheduler, store: Store) -> None:
    from taskqueue.scheduler.declared_schedules import _Turn

    turn = _Turn(store, "shop")
    turn.wait()
    now = store.now()
    name = f"{TURN}shop"
    [lease] = [lease for lease in store.leases() if lease.name == name]
    store.resign(name, lease.holder)
    other = Holder(seat="process 2 of web-2", incarnation="other")
    store.acquire(Lease(name=name, holder=other, since=now, until=now + timedelta(seconds=60)), now)

    with pytest.raises(StoreContended, match="the set of schedules of application shop"):
        turn.extend()


def test_memory_of_applied_sets_is_bounded(blocking: Scheduler, store: Store) -> None:
    for minutes in range(1, 104):
        blocking.schedules({"often": {**OFTEN, "every": minutes * 60}}, application="shop")
    [lease] = store.leases()
    sets = lease.about["sets"]

    assert isinstance(sets, list)
    assert len(sets) == 100


def test_a_set_is_the_same_in_every_process(url: str, blocking: Scheduler, tmp_path: Path) -> None:
    program = tmp_path / "deploy.py"
    program.write_text(
        "import sys\n"
        "from taskqueue import Limit, Scheduler\n"
        "entry = {'job': 'shop:Mail', 'cron': '@daily', 'tags': {'a', 'b'}, 'retry_on': {'OSError', 'ValueError'},\n"
        "         'limits': [Limit(3)], 'meta': {'x': 'y'}, 'retry': 3, 'expires': '+1 hour'}\n"
        "with Scheduler(sys.argv[1]) as scheduler:\n"
        "    print(len(scheduler.schedules({'nightly': entry}, application='shop').added))\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, str(program), url],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    ]

    assert answers == ["1", "0", "0"]


@pytest.mark.parametrize(
    ("entries", "application", "words"),
    [
        ({"a": OFTEN}, "my shop", "application='my shop': pass the name of your application"),
        ({"a": OFTEN}, None, "application=None: pass the name"),
        ([OFTEN], "shop", "pass a mapping of names to schedules"),
        ({"a": Echo}, "shop", "schedule a: .* is not a schedule: pass a mapping such as"),
        ({"a": {"cron": "@daily"}}, "shop", "is not a schedule: pass a mapping such as"),
        ({"a": {"job": Echo}}, "shop", "a schedule has one trigger"),
        ({"a b": OFTEN}, "shop", "a schedule's name is 'a b'"),
        ({"a": {**OFTEN, "minute": 5}}, "shop", "there is no option 'minute'"),
        ({"a": {**OFTEN, "until": "+3 days"}}, "shop", r"until=\+3 days is a different time at each start"),
        ({"a": {**OFTEN, "until": timedelta(days=3)}}, "shop", "is a different time at each start"),
        ({"b": OFTEN, "a": {**OFTEN, "until": "2001-01-01 UTC"}}, "shop", "before its first time"),
    ],
)
def test_what_is_no_set_is_refused_and_nothing_is_kept(
    scheduler: Scheduler, store: Store, entries: Any, application: Any, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        scheduler.schedules(entries, application=application)
    assert names(store) == []
    assert [lease.name for lease in store.leases()] == []
