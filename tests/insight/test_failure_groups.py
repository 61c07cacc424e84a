"""Failed attempts are judged against the last week: what is new, rises or is retried in vain needs somebody."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskqueue.insight.failure_groups import FailureGroup, Lately, Trend, Usual, judged, usual_failures, usual_long_ago
from taskqueue.insight.failure_states import Decisions, FailureDecision, FailureState
from taskqueue.insight.needs import Need, Subject, of_failures
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.finding import Level
from taskqueue.model.history import Figures, Parts
from taskqueue.model.lifecycle.outcomes import Done, Failed, Outcome, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.query import parse
from taskqueue.model.record import Failure, Options, Record
from taskqueue.model.retry import NO_RETRY, FixedRetry
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Settlement, Store
from tests.nodes import eventually
from tests.store.records import WEB_1, a_record, claim

on_both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)

NOW = datetime(2026, 7, 8, 14, 30, tzinfo=timezone.utc)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
INVOICE, KEY = ("billing", "shop:MakeInvoice"), "x:KeyError: 'vat' (rate = RATES[country])"


def in_minutes(figures: dict[int, Figures]) -> Parts:
    """Return the figures of invoices in the minutes that began so many minutes ago."""
    return {milliseconds(NOW - ago * MINUTE): {INVOICE: found} for ago, found in figures.items()}


def week(figures: Figures) -> Parts:
    """Return a week whose hours have these figures of invoices each; the last of them ended an hour ago."""
    first = NOW.replace(minute=0) - HOUR
    return {milliseconds(first - ago * HOUR): {INVOICE: figures} for ago in range(7 * 24 - 1)}


def of_key(minutes: Parts, hours: Parts) -> FailureGroup:
    """Return the judged group of the KeyError."""
    [group] = [
        group for group in judged(Lately(minutes), usual_failures(hours, NOW), NOW) if group.fingerprint == KEY[2:]
    ]
    return group


def sentences(minutes: Parts, hours: Parts) -> list[str]:
    """Return what is said of the classes that fail."""
    groups = judged(Lately(minutes), usual_failures(hours, NOW), NOW)
    return [need.says for need in of_failures(groups, Lately(minutes), NOW)]


def test_an_error_that_the_week_has_not_seen_is_new_since_its_first_minute() -> None:
    minutes = in_minutes({40: {"done": 90}, 20: {"done": 40, "failed": 10, KEY: 10}, 0: {"done": 30}})

    group = of_key(minutes, week({"done": 100}))

    assert (group.trend, group.number, group.attempts, group.usual) == (Trend.NEW, 10, 170, 0.0)
    assert group.first_at == NOW - 20 * MINUTE
    [says] = sentences(minutes, week({"done": 100}))
    assert says.startswith("shop:MakeInvoice fails with a new error since ")
    assert says.endswith(
        ": KeyError: 'vat' (rate = RATES[country]): 10 of 170 attempts in the last hour (5.9 %, usually 0 %)"
    )


def test_an_error_of_this_hour_was_seen_first_in_its_minute_also_if_nothing_came_before() -> None:
    hours = week({"done": 100}) | {milliseconds(NOW.replace(minute=0)): {INVOICE: {"done": 50, "failed": 10, KEY: 10}}}

    group = of_key(in_minutes({10: {"done": 50, "failed": 10, KEY: 10}}), hours)

    assert (group.trend, group.first_at) == (Trend.NEW, NOW - 10 * MINUTE)


def test_a_new_error_stays_new_for_a_day() -> None:
    minutes, hours = in_minutes({5: {"done": 80, "failed": 20, KEY: 20}}), week({"done": 100})
    for ago in range(20):
        hours[milliseconds(NOW.replace(minute=0) - (1 + ago) * HOUR)] = {INVOICE: {"done": 80, "failed": 20, KEY: 20}}

    group = of_key(minutes, hours)

    assert (group.trend, group.first_at) == (Trend.NEW, NOW.replace(minute=0) - 20 * HOUR)


@pytest.mark.parametrize(
    ("figures", "usually", "trend"),
    [
        ({"done": 98, "failed": 2, KEY: 2}, {"done": 100}, Trend.USUAL),  # too few
        ({"done": 990, "failed": 10, KEY: 10}, {"done": 100}, Trend.USUAL),  # too small a share
        ({"done": 90, "failed": 10, KEY: 10}, {"done": 90, "failed": 10, KEY: 10}, Trend.USUAL),
        ({"done": 70, "failed": 30, KEY: 30}, {"done": 97, "failed": 3, KEY: 3}, Trend.RISING),
        ({"done": 5, "failed": 4, KEY: 4}, {"done": 97, "failed": 3, KEY: 3}, Trend.USUAL),
        ({"done": 900, KEY: 100}, {"done": 970, KEY: 30}, Trend.RISING),  # attempts that are retried
    ],
)
def test_a_share_is_judged_by_the_usual_one(figures: Figures, usually: Figures, trend: Trend) -> None:
    assert of_key(in_minutes({3: figures}), week(usually)).trend is trend


def test_what_often_fails_for_an_hour_does_not_rise() -> None:
    minutes = in_minutes({3: {"done": 88, "failed": 12, KEY: 12}})
    this, calm, bad = milliseconds(NOW.replace(minute=0)), {"done": 99, KEY: 1}, {"done": 88, "failed": 12, KEY: 12}

    def with_bad(number: int) -> Parts:
        """Return a week of which so many hours were as bad, at another time of the day."""
        bad_hours = {this - (8 + 24 * (ago % 6) + ago // 6) * 3_600_000: {INVOICE: bad} for ago in range(number)}
        return week(calm) | bad_hours

    assert of_key(minutes, with_bad(2)).trend is Trend.RISING  # which one bad evening may have been
    assert of_key(minutes, with_bad(12)).trend is Trend.USUAL


def test_a_rise_that_lasts_for_hours_does_not_become_usual() -> None:
    bad = {"done": 88, "failed": 12, KEY: 12}
    this = milliseconds(NOW.replace(minute=0))
    today = {this - ago * 3_600_000: {INVOICE: bad} for ago in range(2, 14)}

    assert of_key(in_minutes({3: bad}), week({"done": 99, KEY: 1}) | today).trend is Trend.RISING


def test_what_is_usual_is_the_same_if_the_hours_of_long_ago_are_not_read_again() -> None:
    hours = week({"done": 90, "failed": 10, KEY: 10})
    long_ago = usual_long_ago(hours, NOW)
    hours[milliseconds(NOW.replace(minute=0))] = {INVOICE: {"done": 5, "x:new": 1}}

    assert usual_failures(hours, NOW, long_ago) == usual_failures(hours, NOW)
    assert (INVOICE[1], "new") in usual_failures(hours, NOW, long_ago).first


def test_what_rises_suddenly_shows_in_minutes() -> None:
    hour = {ago: {"done": 98, "failed": 2, KEY: 2} for ago in range(1, 59)}

    group = of_key(in_minutes({**hour, 0: {"done": 0, "failed": 100, KEY: 100}}), week({"done": 98, KEY: 2}))

    assert (group.trend, group.over) == (Trend.RISING, 5 * MINUTE)


def test_what_rises_in_two_minutes_shows_before_it_shows_in_five() -> None:
    hour: dict[int, Figures] = {ago: {"done": 89, KEY: 1} for ago in range(2, 59)}
    minutes = in_minutes({**hour, 1: {"done": 85, "failed": 5, KEY: 5}, 0: {"done": 30, "failed": 15, KEY: 15}})

    group = of_key(minutes, week({"done": 89, KEY: 1}))

    assert (group.trend, group.over, group.lately) == (Trend.RISING, 2 * MINUTE, "last 2 min")
    [says] = sentences(minutes, week({"done": 89, KEY: 1}))
    assert says.endswith(": 21 of 225 attempts in the last 2 min (9.3 %, usually 1.1 %)")


def test_an_error_is_over_once_attempts_succeed_that_would_have_failed() -> None:
    failing = {30: {"done": 50, "failed": 50, KEY: 50}}

    assert of_key(in_minutes({**failing, 20: {"done": 4}}), week({"done": 100})).trend is Trend.NEW
    assert of_key(in_minutes({**failing, 20: {"done": 9}}), week({"done": 100})).trend is Trend.OVER


def test_the_errors_of_a_class_that_is_new_itself_are_not() -> None:
    minutes = in_minutes({1: {"done": 180, "failed": 6, KEY: 6}})

    group = of_key(minutes, {})

    assert (group.trend, group.usual, group.word) == (Trend.USUAL, None, "few")


def test_the_same_hours_of_other_days_are_what_is_usual() -> None:
    hours = week({"done": 1000})
    for days in range(1, 7):
        for ago in (0, 1):
            at = milliseconds(NOW.replace(minute=0) - days * DAY - ago * HOUR)
            hours[at] = {INVOICE: {"done": 60, "failed": 40, KEY: 40}}

    group = of_key(in_minutes({1: {"done": 60, "failed": 40, KEY: 40}}), hours)

    assert (group.trend, group.usual, group.word) == (Trend.USUAL, 0.4, "usual")


def test_a_normal_week_raises_no_finding() -> None:
    for seed in range(20):
        dice = random.Random(seed)

        def an_hour(dice: random.Random = dice) -> Figures:
            failed = sum(dice.random() < 0.02 for _ in range(200))
            return {"done": 200 - failed, "failed": failed, KEY: failed} if failed else {"done": 200}

        hours = {at: {INVOICE: an_hour()} for at in week({})}
        parts: Parts = in_minutes({})
        for ago in range(60):
            failed = sum(dice.random() < 0.02 for _ in range(3))
            found: Figures = {"done": 3 - failed, "failed": failed, KEY: failed} if failed else {"done": 3}
            parts |= in_minutes({ago: found})
        assert sentences(parts, hours) == []


def run_all(store: Store, jobs: list[Record], outcome: Outcome, at: datetime) -> None:
    """Add jobs at this time, and let an attempt of each end so."""
    store.add(jobs)
    began = Run(node="web-1", started_at=at)
    claimed = claim(store, len(jobs), now=at).records
    settled = [Settlement(claims=one.claims, holder=WEB_1, after=ended(one, outcome, began, at)) for one in claimed]
    assert len(store.settle(settled, at)) == len(jobs)


def invoices(number: int, at: datetime, retry: bool = False) -> list[Record]:
    """Return invoices that are added at this time."""
    options = Options(retry=FixedRetry(times=9, interval=3600) if retry else NO_RETRY)
    return [a_record(job="shop:MakeInvoice", created_at=at, ready_at=at, options=options) for _ in range(number)]


def of_class(store: Store) -> list[Need]:
    """Return what an overview says of classes."""
    return [need for need in OverviewReader(store).read().needs if need.subject in (Subject.CLASS, Subject.RETRIED)]


@on_both
def test_many_failures_by_an_error_never_seen_before_need_somebody(store: Store) -> None:
    now = store.now()
    run_all(store, invoices(100, now - DAY), Done(), now - DAY)
    run_all(store, invoices(40, now), Done(), now)
    error = Failed(failure=Failure(type="KeyError", message="'vat'"))

    run_all(store, invoices(10, now), error, now)

    [need] = eventually(lambda: of_class(store))
    assert (need.name, need.level) == ("shop:MakeInvoice", Level.ERROR)
    assert "fails with a new error since" in need.says
    assert "KeyError: 'vat': 10 of 50 attempts in the last hour (20 %, usually 0 %)" in need.says


def test_the_minute_of_a_new_error_is_looked_up_when_it_is_hours_ago(store: Store) -> None:
    now = store.now()
    began = (now - 5 * HOUR).replace(minute=17, second=0, microsecond=0)
    error = Failed(failure=Failure(type="KeyError", message="'vat'"))
    run_all(store, invoices(100, now - 2 * DAY), Done(), now - 2 * DAY)
    for at in (began, now):
        run_all(store, invoices(10, at), error, at)
        run_all(store, invoices(40, at), Done(), at)

    [group] = OverviewReader(store).read().groups

    assert (group.trend, group.first_at, group.number, group.attempts) == (Trend.NEW, began, 10, 50)


@on_both
def test_jobs_that_are_retried_in_vain_need_somebody(store: Store) -> None:
    now = store.now()
    error = Failed(failure=Failure(type="TimeoutError", message="no answer in 3.2 s"))

    run_all(store, invoices(60, now, retry=True), error, now)

    [need] = eventually(lambda: of_class(store))
    assert (need.name, need.level) == ("shop:MakeInvoice", Level.ERROR)
    assert need.says == (
        "shop:MakeInvoice is tried again and again: 60 attempts failed in the last hour, and 0 jobs ended, "
        "most often with TimeoutError: no answer in … s"
    )
    assert "`taskqueue list --status postponed --job shop:MakeInvoice`" in need.do


@pytest.mark.parametrize(("failed", "listed"), [(10, "--since 1h --status failed"), (0, "--status retrying")])
def test_the_way_out_lists_the_jobs_that_there_are(failed: int, listed: str) -> None:
    minutes = in_minutes({40: {"done": 90}, 20: {"done": 40, "failed": failed, KEY: 10}, 0: {"done": 30}})

    [need] = of_failures(judged(Lately(minutes), usual_failures(week({"done": 100}), NOW), NOW), Lately(minutes), NOW)

    assert f"`taskqueue list {listed} --job shop:MakeInvoice`" in need.do


class Unread(dict[tuple[str, str], Figures]):
    """A minute that must not be read again."""

    is_read = False

    def items(self) -> Any:
        """Return what it has, once."""
        assert not self.is_read, "a settled minute was read twice"
        self.is_read = True
        return super().items()


def test_a_settled_minute_is_read_once() -> None:
    settled: Parts = {milliseconds(NOW - ago * MINUTE): Unread({INVOICE: {"done": 9, KEY: 1}}) for ago in range(2, 60)}
    lately = Lately(settled)

    lately.change_to({**settled, milliseconds(NOW): {INVOICE: {"done": 5, KEY: 5}}})

    assert lately.all_of(INVOICE[1]).failed == len(settled) + 5


def test_minutes_that_change_or_are_forgotten_count_as_if_they_had_never_been_others() -> None:
    chance = random.Random(7)
    classes = [(queue, f"shop:{name}") for queue in ("mail", "billing") for name in "ABC"]
    minutes: Parts = {}
    lately = Lately(minutes)
    for now in range(200):
        for at in (now, now - chance.randrange(1, 6)):
            some = chance.sample(classes, chance.randrange(len(classes)))
            minutes[at] = {key: {"done": 9, "failed": 1, f"x:{chance.choice('YZ')}": 2} for key in some}
        minutes = {at: part for at, part in minutes.items() if at > now - 10}

        lately.change_to(minutes)

        again = Lately(minutes)
        assert (lately.attempts, lately.failures) == (again.attempts, again.failures)


def test_the_query_of_a_group_finds_its_jobs_and_no_others(store: Store) -> None:
    now = store.now()
    messages = ("order 17 has no price (net)", "order 18 has no price (net)", "order 19 has no customer", "'vat'")
    added = invoices(len(messages), now, retry=True)
    for record, message in zip(added, messages, strict=True):
        run_all(store, [record], Failed(failure=Failure(type="KeyError", message=message)), now)

    found = {
        group.fingerprint: [record.id for record in store.find(parse(group.query))]
        for group in OverviewReader(store).read().groups
        if group.query is not None
    }

    assert {fingerprint: set(ids) for fingerprint, ids in found.items()} == {
        "KeyError: order … has no price (net)": {added[0].id, added[1].id},
        "KeyError: order … has no customer": {added[2].id},
        "KeyError: 'vat'": {added[3].id},
    }


def test_errors_that_are_counted_together_have_no_query() -> None:
    assert of_key(in_minutes({0: {"failed": 1, KEY: 1}}), {}).query == {
        "job": "shop:MakeInvoice",
        "error.type": "KeyError",
        "error.message": {"$contains": "'vat'"},
    }
    [group] = judged(Lately(in_minutes({0: {"failed": 1, "x:other": 1}})), Usual(), NOW)
    assert group.query is None
    [group] = judged(Lately(in_minutes({0: {"failed": 1, "x:": 1}})), Usual(), NOW)
    assert group.query == {"job": "shop:MakeInvoice", "error.type": None}


def test_without_failures_nothing_is_judged() -> None:
    assert judged(Lately({}), Usual(), NOW) == []


def decided(state: FailureState, ago: timedelta, until: datetime | None = None) -> Decisions:
    """Return the decision of so long ago about the KeyError of invoices."""
    decision = FailureDecision(job=INVOICE[1], fingerprint=KEY[2:], state=state, since=NOW - ago, by="ann", until=until)
    return {(INVOICE[1], KEY[2:]): decision}


def judged_with(decisions: Decisions, minutes: Parts, hours: Parts) -> tuple[FailureState, list[str]]:
    """Return the state of the KeyError, and what is said of the classes."""
    lately = Lately(minutes)
    groups = judged(lately, usual_failures(hours, NOW), NOW, decisions)
    [group] = [group for group in groups if group.fingerprint == KEY[2:]]
    return group.state, [need.says for need in of_failures(groups, lately, NOW)]


NEW_ERROR = {40: {"done": 90}, 20: {"done": 40, "failed": 10, KEY: 10}, 2: {"done": 30, "failed": 3, KEY: 3}}


def with_hours(*ago: int) -> Parts:
    """Return a week in which the error also failed in the hours that began so many hours before this one."""
    this = NOW.replace(minute=0)
    return week({"done": 100}) | {
        milliseconds(this - hours * HOUR): {INVOICE: {"done": 50, "failed": 2, KEY: 2}} for hours in ago
    }


def test_a_muted_error_is_no_finding_until_its_time() -> None:
    minutes, hours = in_minutes(NEW_ERROR), with_hours(0)

    muted = judged_with(decided(FailureState.MUTED, HOUR, NOW + MINUTE), minutes, hours)
    ended = judged_with(decided(FailureState.MUTED, HOUR, NOW), minutes, hours)

    assert muted == (FailureState.MUTED, [])
    assert ended[0] is FailureState.OPEN
    assert len(ended[1]) == 1


@pytest.mark.parametrize(
    ("muted", "failed_in", "state"),
    [
        (3 * HOUR, (0, 1, 2, 3), FailureState.MUTED),  # it has never stopped
        (3 * HOUR, (0, 2, 3), FailureState.OPEN),  # it stopped for an hour
        (10 * MINUTE, (0, 2, 3), FailureState.MUTED),  # it happened again before
        (8 * DAY, (0, *range(1, 7 * 24)), FailureState.OPEN),  # for a week at most
    ],
)
def test_an_error_that_is_muted_is_reported_when_it_happens_again(
    muted: timedelta, failed_in: tuple[int, ...], state: FailureState
) -> None:
    assert judged_with(decided(FailureState.MUTED, muted), in_minutes(NEW_ERROR), with_hours(*failed_in))[0] is state


def test_muted_failures_do_not_make_a_class_fail_and_others_still_do() -> None:
    figures = {5: {"done": 16, "failed": 34, "x:TimeoutError": 4, KEY: 30}}
    muted = decided(FailureState.MUTED, HOUR, NOW + HOUR)

    assert judged_with({}, in_minutes(figures), {})[1][0].startswith("shop:MakeInvoice fails: 34 of 50 attempts")
    assert judged_with(muted, in_minutes(figures), {})[1] == []
    figures = {5: {"done": 16, "failed": 64, "x:TimeoutError": 44, KEY: 20}}
    [says] = judged_with(muted, in_minutes(figures), {})[1]
    assert says.endswith("most often with TimeoutError")


def test_attempts_that_are_retried_in_vain_by_a_muted_error_are_no_finding() -> None:
    figures = {5: {KEY: 300}}

    assert "again and again: 300 attempts" in judged_with({}, in_minutes(figures), {})[1][0]
    assert judged_with(decided(FailureState.MUTED, HOUR, NOW + HOUR), in_minutes(figures), {})[1] == []


def test_a_resolved_error_that_fails_again_is_a_finding_of_its_own_however_seldom() -> None:
    minutes = in_minutes({9: {"done": 400, KEY: 1}, 2: {"done": 400, KEY: 1}})
    hours = week({"done": 90, "failed": 10, KEY: 10})

    resolved = judged_with(decided(FailureState.RESOLVED, MINUTE), minutes, hours)
    of_same_minute = judged_with(decided(FailureState.RESOLVED, 2 * MINUTE - timedelta(seconds=9)), minutes, hours)
    regressed, says = judged_with(decided(FailureState.RESOLVED, 5 * MINUTE), minutes, hours)

    assert resolved == of_same_minute == (FailureState.RESOLVED, [])
    assert regressed is FailureState.REGRESSED
    assert len(says) == 1
    assert says[0].startswith("shop:MakeInvoice fails again with an error that was resolved ")
    assert "by ann: KeyError: 'vat' (rate = RATES[country]): 2 of 802 attempts in the last hour" in says[0]


@pytest.mark.parametrize(
    ("figures", "state"),
    [
        ({20: {"done": 90, KEY: 10}, 2: {"done": 90, KEY: 10}}, FailureState.MUTED),
        ({20: {"done": 90, KEY: 10}, 2: {"done": 60, KEY: 60}}, FailureState.OPEN),  # half of all attempts
        ({20: {"done": 2000, KEY: 200}, 2: {"done": 60, KEY: 40}}, FailureState.OPEN),  # of the last five minutes
        ({20: {"done": 90, KEY: 10}, 2: {"done": 2, KEY: 3}}, FailureState.MUTED),  # few are chance
    ],
)
def test_a_muted_error_is_reported_when_it_grows(figures: dict[int, Figures], state: FailureState) -> None:
    [(key, muted)] = decided(FailureState.MUTED, HOUR).items()
    hours = with_hours(0, 1)

    grown = judged_with({key: replace(muted, share=0.1)}, in_minutes(figures), hours)

    assert grown[0] is state
    assert len(grown[1]) == (state is FailureState.OPEN)
    until = {key: replace(muted, until=NOW + HOUR)}
    assert judged_with(until, in_minutes(figures), hours) == (FailureState.MUTED, [])
