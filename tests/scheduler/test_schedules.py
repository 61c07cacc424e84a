"""Named schedules as an application defines them (X-12 to X-19, REC-29, REC-30)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, cast
from zoneinfo import ZoneInfo

import pytest

from taskqueue import Again, Cron, Custom, Every, Fail, Job, Process, Schedule, Scheduler, Status
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.schedules import RETRY_AFTER, ScheduleRunner
from taskqueue.errors import InvalidJob, InvalidOption, ScheduleNotFound, StoreContended, StoreUnavailable
from taskqueue.model.record import Holder
from taskqueue.model.schedules.fire import QUESTION
from taskqueue.model.schedules.schedule import NamedSchedule, Stage, next_version
from taskqueue.model.serializer import LONGEST_TEXT
from taskqueue.scheduler.schedules import pause
from taskqueue.store import ClaimRequest, Store
from tests.scheduler.jobs import Broken, Echo, Mail

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
START = datetime(2000, 1, 1, tzinfo=timezone.utc)


class Fridays:
    """A schedule of the user's own: noon of each Friday, up to a year if one is given."""

    def __init__(self, until: int = 9999) -> None:
        self._until = until

    def next(self, after: datetime) -> datetime | None:
        noon = after.replace(hour=12, minute=0, second=0, microsecond=0)
        while noon <= after or noon.isoweekday() != 5:
            noon += DAY
        return noon if noon.year < self._until else None


class Keyed(Echo):
    """Declares what only one job can have."""

    options: ClassVar[Any] = {"unique": "k"}


class Vague:
    """A schedule that answers with no time."""

    def next(self, after: datetime) -> str:
        return "soon"


class Past:
    """A schedule that cannot be."""

    def next(self, after: datetime) -> datetime:
        return after


def agenda(store: Store) -> ScheduleRunner:
    return ScheduleRunner(store, CircuitBreaker(lambda: None))


def begin_again(store: Store, schedule: Schedule) -> None:
    """Let the schedule believe that it is in the year 2000."""
    plan = schedule.snapshot
    assert store.replace_schedule(plan, next_version(plan, next_run_at=START), [], store.now())


def hourly(store: Store) -> Every:
    """Return the times of each hour since the year 2000, none of which comes within half an hour."""
    return Every(HOUR, START + (store.now() - START) % HOUR + HOUR / 2)


def minutely(scheduler: Scheduler, **options: Any) -> Schedule:
    """Define a schedule for each minute since the year 2000."""
    return scheduler.schedule("clean", Echo, 7, **{"every": Every("1m", START), **options})


def test_a_schedule_that_is_due_later_than_its_interval_as_the_clock_was_set_back_is_due_sooner(
    scheduler: Scheduler, store: Store
) -> None:
    schedule = scheduler.schedule("often", Echo, 7, every=60)
    plan = schedule.snapshot
    far = store.now() + timedelta(days=365)
    assert store.replace_schedule(plan, next_version(plan, next_run_at=far), [], store.now())

    agenda(store).reconcile()

    sooner = scheduler.get_schedule("often").next_run_at
    assert sooner is not None
    assert sooner <= store.now() + timedelta(seconds=60)


def test_a_schedule_is_defined_and_found(scheduler: Scheduler) -> None:
    now = datetime.now(timezone.utc)
    schedule = scheduler.schedule("nightly", Mail, {"to": "a"}, cron="15 3 * * *", tz="Europe/Berlin", retry=2)

    assert (schedule.name, schedule.stage, schedule.fired, schedule.missed) == ("nightly", "active", 0, 0)
    assert schedule.next_run_at is not None
    assert now < schedule.next_run_at < now + 2 * DAY
    assert "cron 15 3 * * * in Europe/Berlin, active" in repr(schedule)
    assert scheduler.get_schedule("nightly").snapshot == schedule.snapshot
    assert [one.name for one in scheduler.get_schedules()] == ["nightly"]
    assert list(scheduler.get_jobs()) == []


def test_what_is_due_is_fired_once(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("mail", Mail, {"to": "a"}, every=hourly(store), grace=0)
    begin_again(store, schedule)
    leader, another = agenda(store), agenda(store)

    assert leader.fire_due() == another.fire_due() == schedule.refresh().next_run_at
    [job] = scheduler.get_jobs()
    assert (job.snapshot.queue, job.snapshot.options.timeout, job.snapshot.data) == ("mail", 60, '{"to":"a"}')
    assert schedule.job_ids == (job.id,)
    assert (schedule.fired, schedule.missed > 0, bool(schedule.misses)) == (1, True, True)
    assert "Schedule mail started it for" in scheduler.why(job.id)


class Contended:
    """A store on which others always change one schedule before this process does, and of which it gets two at once."""

    def __init__(self, real: Store, name: str) -> None:
        self._real = real
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def due(self, now: datetime, limit: int) -> tuple[list[NamedSchedule], datetime | None]:
        """Return two at most."""
        return self._real.due(now, min(limit, 2))

    def replace_schedule(self, before: NamedSchedule, *rest: Any) -> bool:
        """Refuse a change of that schedule."""
        if before.name == self._name:
            raise StoreContended(self.url, f"schedule {before.name}", 200)
        return self._real.replace_schedule(before, *rest)


def test_a_schedule_that_others_always_change_first_does_not_hold_up_the_others(
    scheduler: Scheduler, store: Store
) -> None:
    first, second, third = [scheduler.schedule(name, Mail, {}, every=hourly(store)) for name in ("a", "b", "c")]
    for schedule in (first, second, third):
        begin_again(store, schedule)
    leader = agenda(cast("Store", Contended(store, "a")))

    again_at = leader.fire_due()

    assert (first.refresh().fired, second.refresh().fired, third.refresh().fired) == (0, 1, 0)
    assert again_at is not None
    assert again_at < store.now()  # more are due than a turn fires
    again_at = leader.fire_due()
    assert (first.refresh().fired, third.refresh().fired) == (0, 1)
    assert again_at is not None
    assert store.now() - MINUTE < again_at <= store.now() + RETRY_AFTER


def test_a_schedule_that_others_always_change_first_does_not_keep_others_from_being_repaired(
    scheduler: Scheduler, store: Store
) -> None:
    far = store.now() + timedelta(days=365)
    late = [scheduler.schedule(name, Echo, 7, every=60) for name in ("a", "b")]
    for schedule in late:
        plan = schedule.snapshot
        assert store.replace_schedule(plan, next_version(plan, next_run_at=far), [], store.now())
    repeats: list[bool] = []
    breaker = CircuitBreaker(lambda: None, on_contended=lambda: repeats.append(True))

    ScheduleRunner(cast("Store", Contended(store, "a")), breaker).reconcile()

    times = [schedule.refresh().next_run_at for schedule in late]
    assert times[0] == far
    assert times[1] is not None
    assert times[1] <= store.now() + MINUTE
    assert (repeats, breaker.is_degraded) == ([True], False)


class Slotted(Job):
    """Returns the time for which it was started."""

    def start(self) -> datetime | None:
        if self.data == "fail":
            raise Fail
        return self.scheduled_time


def test_a_job_knows_the_time_for_which_it_was_started(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("slotted", Slotted, "fail", every=hourly(store), misfire="all(2)", overlap="allow")
    begin_again(store, schedule)
    assert agenda(store).fire_due() is not None

    missed = scheduler.run_pending()
    times = [process.scheduled_time for process in missed]
    assert [time - times[0] for time in times if time and times[0]] == [timedelta(0), timedelta(hours=1)]

    copies = [scheduler.recover_job(process.id, data="again") for process in missed]
    copies.append(scheduler.recover_job(scheduler.run_pending()[0].id))
    scheduler.run_pending()
    assert [copy.scheduled_time for copy in copies] == [*times, times[0]]
    assert [copy.refresh().result for copy in copies] == [*times, times[0]]
    assert scheduler.run_job(Slotted).result is None


def test_redefining_keeps_counters_and_the_next_time(scheduler: Scheduler, store: Store) -> None:
    trigger = hourly(store)
    schedule = minutely(scheduler, every=trigger)
    begin_again(store, schedule)
    agenda(store).fire_due()
    before = schedule.refresh().snapshot
    same = minutely(scheduler, every=trigger)
    changed = minutely(scheduler, every=trigger, overlap="allow", retry=3)
    moved = minutely(scheduler, every="2h")

    assert same.snapshot == before
    assert (changed.fired, changed.next_run_at, changed.snapshot.version) == (1, before.next_run_at, before.version + 1)
    assert changed.snapshot.template.options.retry != before.template.options.retry
    assert moved.next_run_at is not None
    assert before.next_run_at is not None
    assert moved.next_run_at > before.next_run_at
    assert (moved.fired, moved.snapshot.created_at) == (1, before.created_at)  # REC-29
    assert len(before.recent) == 1
    assert before.misses
    for again in (changed, moved):
        kept = again.snapshot
        assert (kept.recent, kept.missed, kept.misses) == (before.recent, before.missed, before.misses)


def test_defining_an_interval_again_does_not_put_it_off(scheduler: Scheduler) -> None:
    first = scheduler.schedule("a", Echo, every="1h").snapshot

    assert scheduler.schedule("a", Echo, every=3600).snapshot == first
    assert scheduler.schedule("a", Echo, every=Every("1h", "start")).snapshot.version == 2


def test_a_paused_schedule_starts_nothing_until_it_is_resumed(scheduler: Scheduler, store: Store) -> None:
    schedule = minutely(scheduler)
    begin_again(store, schedule)
    schedule.pause("holidays")

    assert agenda(store).fire_due() is None
    assert (schedule.stage, schedule.reason, schedule.next_run_at) == ("paused", "holidays", None)
    assert minutely(scheduler, grace=5).stage == "paused"
    before = store.now()
    schedule.resume()
    assert (schedule.stage, schedule.reason, schedule.missed) == ("active", "", 0)
    assert schedule.next_run_at is not None
    assert schedule.next_run_at > before
    assert schedule.resume().stage == "active"


def test_a_removed_schedule_is_gone(scheduler: Scheduler) -> None:
    schedule = minutely(scheduler)
    schedule.remove()

    assert scheduler.get_schedules() == []
    for gone in (schedule.refresh, schedule.pause, schedule.remove, lambda: scheduler.get_schedule("clean")):
        with pytest.raises(ScheduleNotFound, match="no schedule clean"):
            gone()


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 10_000, ""])
def test_a_name_that_no_schedule_can_have_is_not_found(scheduler: Scheduler, name: str) -> None:
    with pytest.raises(ScheduleNotFound, match="no schedule '") as caught:
        scheduler.get_schedule(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("reason", ["file \ud800", "a\0b", "x" * 10_000])
def test_the_reason_of_a_pause_is_kept_as_it_is_returned(scheduler: Scheduler, reason: str) -> None:
    paused = minutely(scheduler).pause(reason)

    assert len(paused.reason) <= LONGEST_TEXT
    assert paused.reason == scheduler.get_schedule("clean").reason


def test_a_job_can_be_started_now(scheduler: Scheduler) -> None:
    schedule = minutely(scheduler).pause()
    process = schedule.trigger()

    assert process.snapshot.status is Status.WAITING
    assert (schedule.job_ids, schedule.fired, schedule.stage) == ((process.id,), 0, "paused")
    assert scheduler.run_pending() == [process]


def test_the_next_times_can_be_seen(scheduler: Scheduler) -> None:
    schedule = minutely(scheduler, max_runs=3)
    first = schedule.next_run_at
    assert first is not None

    assert schedule.preview(5) == [first, first + MINUTE, first + 2 * MINUTE]
    assert len(scheduler.schedule("again", Echo, every=-1).preview(5)) == 1
    fridays = scheduler.schedule("fridays", Echo, at=Fridays)
    assert [at.isoweekday() for at in fridays.preview(3)] == [5, 5, 5]
    daily = scheduler.schedule("daily", Echo, cron="@daily").next_run_at
    assert daily is not None
    until = daily + DAY + HOUR
    assert scheduler.schedule("until", Echo, cron="@daily", until=until).preview(5)[-1] == daily + DAY
    with pytest.raises(InvalidOption, match="preview"):
        schedule.preview(0)


def test_a_cron_expression_means_the_clock_of_its_zone_also_on_days_of_change(scheduler: Scheduler) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    schedule = scheduler.schedule("nightly", Echo, cron="30 2 * * *", tz=berlin.key)
    found = [at.astimezone(berlin) for at in schedule.preview(400)]

    assert [at.date() for at in found] == [found[0].date() + number * DAY for number in range(400)]
    skipped = [at for at in found if f"{at:%H:%M}" != "02:30"]
    assert {(at.month, at.isoweekday(), at.day >= 25, f"{at:%H:%M}") for at in skipped} == {(3, 7, True, "03:00")}
    assert not [at for at in found if at.fold]


def test_a_schedule_that_awaits_the_end_of_a_job_goes_on_after_it(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("again", Echo, every=Again())
    agenda(store).fire_due()
    assert schedule.refresh().next_run_at is None
    [job] = scheduler.run_pending()
    ended_at = job.refresh().snapshot.ended_at

    assert schedule.refresh().next_run_at == ended_at
    agenda(store).fire_due()
    assert schedule.refresh().fired == 2


def test_a_job_that_was_removed_does_not_hold_up_its_schedule(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("again", Echo, every="0.001 s")
    while schedule.refresh().fired == 0:
        agenda(store).fire_due()
    store.flush()
    agenda(store).reconcile()

    assert schedule.refresh().next_run_at is not None


def test_a_class_of_ones_own_is_asked_by_a_job(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("fridays", Echo, at=Fridays)
    [question] = scheduler.get_jobs()
    assert question.snapshot.job == QUESTION
    assert agenda(store).fire_due() is None
    scheduler.run_pending()

    found = schedule.refresh().next_run_at
    assert found is not None
    assert found.isoweekday() == 5
    assert question.refresh().result == found.isoformat()


def test_a_class_that_has_no_further_time_ends_its_schedule(scheduler: Scheduler) -> None:
    schedule = scheduler.schedule("over", Echo, at=Custom("tests.scheduler.test_schedules:Fridays", {"until": 2000}))
    scheduler.run_pending()

    assert (schedule.refresh().stage, schedule.reason) == ("ended", "its trigger has no further time")
    assert schedule.preview() == []


def test_a_class_that_answers_nonsense_pauses_its_schedule(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("past", Echo, at="tests.scheduler.test_schedules:Past")
    [question] = scheduler.run_pending()
    agenda(store).reconcile()

    assert question.refresh().status is Status.FAILED
    assert "which is not after" in str(question.error)
    assert schedule.refresh().stage == "paused"
    assert f"job {question.id} ended as FAILED" in schedule.reason


def test_a_schedule_whose_class_is_unknown_is_paused_and_no_other(scheduler: Scheduler, store: Store) -> None:  # RW-10
    gone = scheduler.schedule("gone", Echo, at="tests.nowhere:Gone")
    begin_again(store, minutely(scheduler, every=hourly(store)))

    [question] = scheduler.run_pending()
    leader = agenda(store)
    leader.reconcile()
    leader.fire_due()

    assert question.refresh().status is Status.FAILED
    assert "tests.nowhere" in str(question.error)
    assert (gone.refresh().stage, gone.fired) == ("paused", 0)
    assert (scheduler.get_schedule("clean").stage, scheduler.get_schedule("clean").fired) == ("active", 1)


def test_an_answer_that_is_no_time_is_an_error_of_the_job(scheduler: Scheduler) -> None:
    scheduler.schedule("vague", Echo, at=Vague)
    [question] = scheduler.run_pending()

    assert "is not a time" in str(question.error)


def test_values_say_the_same_as_words(scheduler: Scheduler) -> None:
    by_word = scheduler.schedule("a", Echo, cron="@daily", tz="Europe/Berlin")
    by_value = scheduler.schedule("a", Echo, cron=Cron("@daily", "Europe/Berlin"))

    assert by_value.snapshot == by_word.snapshot


def test_a_key_that_a_class_declares_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="overlap"):
        scheduler.schedule("a", Keyed, every=60)


@pytest.mark.parametrize("scheduler", ["blocking"], indirect=True)
def test_an_answer_that_nobody_waits_for_changes_nothing(scheduler: Scheduler) -> None:
    schedule = scheduler.schedule("fridays", Echo, at=Fridays)
    redefined = minutely(scheduler)
    scheduler.schedule("fridays", Echo, every="1h")
    [question] = scheduler.run_pending()

    assert question.refresh().result == "the schedule no longer awaits it"
    assert not redefined.learn(question.id, START)
    assert schedule.refresh().snapshot.trigger == Every("1h")


def test_failures_stop_a_schedule(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("broken", Broken, every="0.001 s", stop_after_failures=2)
    for _ in range(200):
        agenda(store).fire_due()
        scheduler.run_pending()
        if schedule.refresh().stage == "ended":
            break

    assert (schedule.stage, schedule.fired) == ("ended", 2)
    assert schedule.reason == "stop_after_failures=2 is reached"
    again = scheduler.schedule("broken", Echo, 1, every="1h")
    assert (again.stage, again.reason, again.fired) == ("active", "", 2)


@pytest.mark.parametrize("bound", ["max_runs", "stop_after_failures", "until"])
def test_each_bound_ends_a_schedule(scheduler: Scheduler, store: Store, bound: str) -> None:
    value: Any = store.now() + timedelta(hours=1) if bound == "until" else 2
    schedule = scheduler.schedule("broken", Broken, every="0.001 s", **{bound: value})
    fired_once(scheduler, store, schedule)
    assert schedule.refresh().stage == "active"
    if bound == "until":
        plan = schedule.snapshot
        assert store.replace_schedule(plan, next_version(plan, until=store.now()), [], store.now())
    for _ in range(200):
        agenda(store).fire_due()
        scheduler.run_pending()
        if schedule.refresh().stage == "ended":
            break

    assert (schedule.stage, schedule.next_run_at) == ("ended", None)
    assert schedule.reason.startswith(f"{bound}=")
    assert schedule.fired == 2 or bound == "until"


def test_failures_count_also_when_their_jobs_are_gone(scheduler: Scheduler, store: Store) -> None:
    schedule = scheduler.schedule("broken", Broken, every="0.001 s", stop_after_failures=2)
    for _ in range(200):
        agenda(store).fire_due()
        scheduler.run_pending()
        store.prune(dict.fromkeys(Status, store.now() + timedelta(hours=1)), store.now(), 1000)
        if schedule.refresh().stage == "ended":
            break

    assert (schedule.stage, schedule.fired) == ("ended", 2)


@pytest.mark.parametrize("again", ["define", "resume"])
def test_a_schedule_that_failures_ended_goes_on_when_it_is_defined_again(
    scheduler: Scheduler, store: Store, again: str
) -> None:
    def define() -> Schedule:
        return scheduler.schedule("broken", Broken, every="0.001 s", stop_after_failures=1)

    schedule = define()
    fired_once(scheduler, store, schedule)
    fired_once(scheduler, store, schedule)
    assert (schedule.refresh().stage, schedule.fired) == ("ended", 1)

    schedule = define() if again == "define" else schedule.resume()
    fired_once(scheduler, store, schedule)

    assert (schedule.refresh().stage, schedule.fired) == ("active", 2)


def fired_once(scheduler: Scheduler, store: Store, schedule: Schedule) -> None:
    """Fire the schedule, or let it end, and run what that started."""
    fired = schedule.refresh().fired
    while schedule.refresh().fired == fired and schedule.stage == "active":
        agenda(store).fire_due()
    scheduler.run_pending()


def test_the_previous_job_gives_way(scheduler: Scheduler, store: Store) -> None:
    schedule = minutely(scheduler, every=hourly(store), overlap="cancel_previous")
    previous = schedule.trigger()
    begin_again(store, schedule)
    agenda(store).fire_due()

    assert previous.refresh().status is Status.CANCELED
    assert [job.status for job in scheduler.get_jobs()] == [Status.WAITING]


class PausedMeanwhile(Contended):
    """A store on which somebody pauses the schedule just before it is fired."""

    def replace_schedule(self, before: NamedSchedule, *rest: Any) -> bool:
        """Pause it first."""
        pause(self._real, before.name, "not today")
        return self._real.replace_schedule(before, *rest)


def test_no_job_gives_way_to_one_that_a_paused_schedule_does_not_start(scheduler: Scheduler, store: Store) -> None:
    schedule = minutely(scheduler, every=hourly(store), overlap="cancel_previous")
    previous = schedule.trigger()
    begin_again(store, schedule)

    agenda(cast("Store", PausedMeanwhile(store, "clean"))).fire_due()

    assert schedule.refresh().stage == "paused"
    assert [job.id for job in scheduler.get_jobs()] == [previous.id]
    assert previous.refresh().status is Status.WAITING


class CutOff(Contended):
    """A store that is lost before a job is canceled."""

    def replace_schedule(self, *rest: Any) -> bool:
        """Replace it."""
        return self._real.replace_schedule(*rest)

    def cancel(self, *_: Any) -> None:
        """Fail."""
        raise StoreUnavailable(self.url, "it is gone", "wait")


def fired_and_cut_off(scheduler: Scheduler, store: Store) -> Process:
    """Return the job that a schedule has started before, which the node that fires it then could not cancel."""
    schedule = minutely(scheduler, every=hourly(store), overlap="cancel_previous")
    previous = schedule.trigger()
    begin_again(store, schedule)
    agenda(cast("Store", CutOff(store, "clean"))).fire_due()
    assert schedule.refresh().fired == 1
    return previous


def test_the_previous_job_gives_way_even_if_the_node_dies_just_then(scheduler: Scheduler, store: Store) -> None:
    previous = fired_and_cut_off(scheduler, store)

    agenda(store).reconcile()

    assert previous.refresh().status is Status.CANCELED
    assert [job.status for job in scheduler.get_jobs()] == [Status.WAITING]


def test_the_previous_job_gives_way_to_the_last_one_of_a_schedule(scheduler: Scheduler, store: Store) -> None:
    previous = fired_and_cut_off(scheduler, store)
    pause(store, "clean", "not today")

    agenda(store).reconcile()

    assert previous.refresh().status is Status.CANCELED


class Asking(Contended):
    """A store that counts the requests to cancel a job."""

    asked = 0

    def cancel(self, *request: Any) -> object:
        """Count it."""
        self.asked += 1
        return self._real.cancel(*request)


def test_a_running_job_is_asked_once_to_give_way(scheduler: Scheduler, store: Store) -> None:
    schedule = minutely(scheduler, every=hourly(store), overlap="cancel_previous")
    schedule.trigger()
    now = store.now()
    store.claim(Holder(seat="web-1", incarnation="a1"), ClaimRequest(pooled=1), now, now + MINUTE)
    begin_again(store, schedule)
    agenda(cast("Store", CutOff(store, "clean"))).fire_due()
    asking = Asking(store, "")

    for _ in range(3):
        agenda(cast("Store", asking)).reconcile()

    assert asking.asked == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 60, "cron": "@daily"},
        {"every": 60, "tz": "Europe/Berlin"},
        {"cron": Cron("@daily"), "tz": "Europe/Berlin"},
        {"cron": "soon"},
        {"every": 0},
        {"every": 60, "overlap": "never"},
        {"every": 60, "misfire": "never"},
        {"every": 60, "max_runs": 0},
        {"every": 60, "grace": -1},
        {"every": 60, "until": "soon"},
        {"every": 60, "unique": "a"},
        {"every": 60, "interval": 5},
        {"every": 60, "retries": 5},
        {"every": 60, "expires": START + 100_000 * DAY},
        {"at": "no path"},
    ],
)
def test_what_makes_no_schedule_is_refused(scheduler: Scheduler, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        scheduler.schedule("a", Echo, **options)
    assert scheduler.get_schedules() == []


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("crontab", "cron"), ("crn", "cron"), ("timezone", "tz"), ("catchup", "misfire"), ("minutes", "every"),
        ("interval", "every"), ("overlaps", "overlap"), ("max_run", "max_runs"),
    ],
)  # fmt: skip
def test_an_option_of_another_name_leads_to_that_of_a_schedule(scheduler: Scheduler, option: str, ours: str) -> None:
    with pytest.raises(InvalidOption, match=rf"schedule a: there is no option '{option}': did you mean {ours}\?$"):
        scheduler.schedule("a", Echo, **cast(Any, {option: "@daily"}))


@pytest.mark.parametrize("rule", [{"until": "2030-01-01"}, {"until": "soon"}, {"grace": -1}, {"max_runs": 0}])
def test_a_rule_that_makes_no_sense_is_named(scheduler: Scheduler, rule: dict[str, Any]) -> None:
    [(name, value)] = rule.items()
    with pytest.raises(InvalidOption, match=f"^{name}={value!r}[: ]"):
        scheduler.schedule("a", Echo, every="1h", **rule)


@pytest.mark.parametrize("trigger", [{"every": "1h"}, {"cron": "@daily"}, {"at": Fridays}])
def test_a_schedule_that_has_ended_before_it_begins_is_refused(scheduler: Scheduler, trigger: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="until=2020-01-01 00:00:00 UTC is before its first time"):
        scheduler.schedule("a", Echo, until="2020-01-01 00:00 UTC", **trigger)
    assert scheduler.get_schedules() == []

    scheduler.schedule("a", Echo, **trigger)
    with pytest.raises(InvalidOption, match="schedule a: until=2020-01-01"):
        scheduler.schedule("a", Echo, until="2020-01-01 00:00 UTC", **trigger)


def test_a_schedule_that_has_ended_can_be_defined_where_the_application_starts(
    scheduler: Scheduler, store: Store
) -> None:
    plan = minutely(scheduler).snapshot
    assert store.replace_schedule(
        plan, next_version(plan, until=START, stage=Stage.ENDED, next_run_at=None), [], store.now()
    )

    assert minutely(scheduler, until=START).snapshot.until == START


@pytest.mark.parametrize("name", ["", "a b", "a/b", 5, "x" * 201, "a\x00"])
def test_a_name_can_stand_on_a_command_line(scheduler: Scheduler, name: Any) -> None:
    with pytest.raises(InvalidOption, match="name"):
        scheduler.schedule(name, Echo, every=60)


def test_a_class_without_next_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match="next"):
        scheduler.schedule("a", Echo, at=Echo)
