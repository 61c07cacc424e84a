"""What add_job and add_jobs store, and what they refuse before anything is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, cast

import pytest
from bson import ObjectId

from taskqueue import Every, Limit, Rate, Scheduler, ShellJob, Status, retry, workflows
from taskqueue.errors import DataTooLarge, DuplicateId, InvalidJob, InvalidOption
from taskqueue.model.record import Cause
from tests.scheduler import jobs
from tests.scheduler.jobs import Echo, Mail


def test_a_job_is_stored_and_can_be_found_again(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, {"to": "a@example.org"})

    found = scheduler.get_job(process.id)
    assert found == process
    assert found.job == "tests.scheduler.jobs:Echo"
    assert found.data == {"to": "a@example.org"}
    assert (found.status, found.cause) == (Status.WAITING, Cause.ADDED)  # PTS-11
    assert found.created_at == found.ready_at


def test_a_time_that_is_now_is_not_waited_for(scheduler: Scheduler) -> None:
    added = [scheduler.add_job(Echo, at=at()) for at in (time.time, lambda: datetime.now(timezone.utc))]

    assert [process.cause for process in added] == [Cause.ADDED, Cause.ADDED]
    assert scheduler.add_job(Echo, at=time.time() + 60).cause is Cause.SCHEDULED


def test_a_job_needs_no_data(scheduler: Scheduler) -> None:
    assert scheduler.add_job(Echo).data is None


def test_the_call_wins_over_the_class_and_the_class_over_the_scheduler(url: str) -> None:
    with Scheduler(url, retry=1, queue="low", priority=3) as scheduler:
        options = scheduler.add_job(Mail, {"to": "a"}, retry=7).options

    assert options["retry"] == 7
    assert options["queue"] == "mail"
    assert options["priority"] == 3
    assert options["timeout"] == 60.0


def test_a_job_for_later_is_postponed(scheduler: Scheduler) -> None:
    at = datetime(2100, 1, 1, tzinfo=timezone.utc)
    process = scheduler.add_job(Echo, at=at)

    assert (process.status, process.cause, process.ready_at) == (Status.POSTPONED, Cause.SCHEDULED, at)


def test_times_may_be_spans_from_now(scheduler: Scheduler) -> None:
    span = timedelta(hours=1, microseconds=1500)
    process = scheduler.add_job(Echo, at=span, expires=timedelta(minutes=5))
    moved = scheduler.update_job(scheduler.add_job(Echo).id, at=timedelta(days=1))

    assert process.is_postponed
    assert process.ready_at == process.created_at + timedelta(hours=1, milliseconds=2)
    assert process.expires_at == process.ready_at + timedelta(minutes=5)
    assert moved.ready_at is not None
    assert moved.ready_at - moved.created_at >= timedelta(days=1)
    with pytest.raises(InvalidOption, match=r"at=datetime.timedelta.* is out of range"):
        scheduler.add_job(Echo, at=timedelta(seconds=-1))


def test_a_job_for_the_past_can_run_at_once(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, at=10**9)

    assert process.is_waiting  # PTS options: at <= now means immediate
    assert process.ready_at == datetime.fromtimestamp(10**9, timezone.utc)  # which is its place in the queue


@pytest.mark.parametrize("value", [60, 0, 86_400.0, "60", "5m"], ids=str)
def test_a_duration_is_not_taken_for_a_time_in_1970(scheduler: Scheduler, value: Any) -> None:
    waiting, ended = scheduler.add_job(Echo, at="+1 hour"), scheduler.run_job(Echo)
    calls: Mapping[str, Callable[[], object]] = {
        "at=": lambda: scheduler.add_job(Echo, at=value),
        "jobs[0]": lambda: scheduler.add_jobs([(Echo, 1, {"at": value})]),
        "expires=": lambda: scheduler.add_job_once(Echo, expires=value),
        "interval_reference=": lambda: scheduler.add_job(Echo, interval=60, interval_reference=value),
        "Echo: until=": lambda: scheduler.add_job(Echo, interval=60, until=value),
        "until=": lambda: scheduler.schedule("hourly", Echo, every=3600, until=value),
        "an interval counts from": lambda: scheduler.schedule("hourly", Echo, every=Every(60, value)),
        "update_job: at=": lambda: scheduler.update_job(waiting.id, at=value),
        "recover_job: at=": lambda: scheduler.recover_job(ended.id, value),
    }
    for place, call in calls.items():
        with pytest.raises(InvalidOption) as refused:
            call()
        assert place in str(refused.value)
        written = value if isinstance(value, str) and value[-1] == "m" else f"{float(value):g} seconds"
        assert f"is not a time: write '+{written}' for that long from now" in str(refused.value)
    assert scheduler.count_jobs({}) == 2
    assert list(scheduler.get_schedules()) == []


def test_all_options_reach_the_record(scheduler: Scheduler) -> None:
    id = ObjectId()
    process = scheduler.add_job(
        Echo,
        id=str(id),
        at="+1 hour",
        expires="+2 hours",
        retry=retry.exponential(3, 1, longest="1d"),
        retry_on=[ValueError, "app.errors.Refused"],
        retry_on_timeout=False,
        timeout="90s",
        stall_timeout="30s",
        priority=-20,
        queue="mail",
        tags={"b", "a"},
        unique="k",
        force_spawn=True,
        crash_retries=0,
        on_crash="fail",
    )

    assert process.id == id
    assert process.expires_at is not None
    assert process.ready_at is not None
    assert process.expires_at - process.ready_at == timedelta(hours=2)
    assert process.tags == ("a", "b")
    expected = {
        "at": "+1 hour",
        "expires": "+2 hours",
        "retry": {"policy": "exponential", "times": 3, "interval": 1, "factor": 2.0}
        | {"longest": 86_400.0, "jitter": 0.0},
        "retry_on": ["ValueError", "app.errors.Refused"],
        "retry_on_timeout": False,
        "timeout": 90.0,
        "stall_timeout": 30.0,
        "priority": -20,
        "queue": "mail",
        "tags": ["a", "b"],
        "unique": "k",
        "force_spawn": True,
        "crash_retries": 0,
        "on_crash": "fail",
    }
    assert {name: process.options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": 3}, "no option 'retries': did you mean retry?"),
        ({"xyz": 3}, "options are at, retry, retry_interval"),
        ({"retry": "10"}, "retry='10': pass the number"),  # PTS-9
        ({"retry": True}, "retry=True"),
        ({"priority": 21}, "priority=21: pass a whole number from -20 to 20"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"at": "tomorrow"}, "at='tomorrow'"),
        ({"expires": "2050-01-01T00:00:00Z", "at": "2060-01-01T00:00:00Z"}, "is not after the time"),
        ({"expires": "2020-01-01T00:00:00Z"}, "pass a later one"),
        ({"retry": retry.exponential(5), "retry_interval": 3}, "leave out retry_interval"),
        ({"id": "a\nc"}, "24 hexadecimal digits"),
        ({"ignore_data": True}, "pass it to add_job_once"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_way_out(
    scheduler: Scheduler, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        scheduler.add_job(Echo, **options)

    assert words in str(refused.value)
    assert list(scheduler.get_jobs()) == []


def test_options_that_a_class_gets_after_its_definition_are_checked_too(scheduler: Scheduler) -> None:
    Changed.options = {"queue": ""}
    with pytest.raises(InvalidOption, match=r"options of .*Changed: queue=''"):
        scheduler.add_job(Changed)
    Changed.options = ["retry"]
    with pytest.raises(InvalidOption, match="declare a mapping"):
        scheduler.add_job(Changed)


class Changed(Echo):
    options: ClassVar[Any] = {}


def test_an_id_cannot_be_a_default(url: str) -> None:
    with pytest.raises(InvalidOption, match="Scheduler: id applies to one job"):
        Scheduler(url, id=ObjectId())  # type: ignore[call-arg]


def test_a_unique_key_cannot_be_a_default(url: str) -> None:
    with pytest.raises(InvalidOption, match="declare it on a class, or pass it to add_job"):
        Scheduler(url, unique="nightly")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([1, 2], "data of add is [1, 2]: pass a mapping whose keys are the function's arguments"),
        (None, "add() cannot be called with this data: missing a required argument: 'x'"),
    ],
)
def test_a_task_that_was_added_by_its_path_fails_for_good_with_data_that_are_no_arguments(
    scheduler: Scheduler, data: Any, words: str
) -> None:
    process = scheduler.run_job("tests.scheduler.jobs:add", data, retry=5)

    assert process.is_failed
    assert process.error is not None
    assert (process.error.type, process.error.message) == ("taskqueue.Fail", words)


def test_what_cannot_be_kept_is_refused_with_its_path(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match=r"data\['a'\]\[0\] is builtins.object"):
        scheduler.add_job(Echo, {"a": [object()]})
    with pytest.raises(DataTooLarge, match="at most 1,048,576 are kept"):
        scheduler.add_job(Echo, "x" * 2**20)


def test_the_same_id_and_data_are_the_same_job(scheduler: Scheduler) -> None:
    id = ObjectId()
    first = scheduler.add_job(Echo, 1, id=id)

    assert scheduler.add_job(Echo, 1, id=id) == first
    with pytest.raises(DuplicateId, match=str(id)):
        scheduler.add_job(Echo, 2, id=id)


def test_a_unique_key_has_one_pending_job(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, 1, unique="nightly")

    assert scheduler.add_job(Echo, 2, unique="nightly") == first
    first.cancel()
    assert scheduler.add_job(Echo, 2, unique="nightly") != first


def test_many_jobs_are_stored_in_order(scheduler: Scheduler) -> None:
    processes = scheduler.add_jobs((Echo, number, {"priority": number % 3}) for number in range(50))

    assert [process.data for process in processes] == list(range(50))
    assert [process.priority for process in processes[:4]] == [0, 1, 2, 0]
    assert [process.id for process in scheduler.get_jobs()] == [process.id for process in processes]


def test_a_job_of_many_has_the_options_that_its_class_has_when_it_comes(scheduler: Scheduler) -> None:
    class Changing(Echo):
        options: ClassVar[Any] = {}

    Changing.__qualname__ = "Changing"
    jobs.Changing = Changing  # type: ignore[attr-defined]
    Changing.__module__ = jobs.__name__

    def entries() -> Iterator[tuple[type[Echo], str]]:
        for queue in ("mail", "", "imports", ""):
            Changing.options = {"queue": queue} if queue else {}
            yield Changing, queue

    assert [process.queue for process in scheduler.add_jobs(entries())] == ["mail", "default", "imports", "default"]


def test_none_is_no_job_among_many_either(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match="None is not a job"):
        scheduler.add_jobs([(None, 1)])  # type: ignore[list-item]


def test_no_jobs_at_all_are_fine(scheduler: Scheduler) -> None:
    assert scheduler.add_jobs([]) == []


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ((Echo,), r"jobs\[1\] is \(<class"),
        ("ab", r"jobs\[1\] is 'ab': pass \(job, data\)"),
        ((Echo, 1, 2), r"jobs\[1\]: the options are 2"),
        ((Echo, {"a": object()}), r"jobs\[1\].data\['a'\]"),
        (
            (Echo, 1, {"retri": 1}),
            r"jobs\[1\].tests.scheduler.jobs:Echo: there is no option 'retri': did you mean retry",
        ),
        ((Echo, 1, {"ignore_data": True}), r"jobs\[1\]: ignore_data"),
        ((Echo, 1, {"at": "soon"}), "at='soon'"),
    ],
)
def test_one_invalid_job_of_many_means_that_none_is_stored(scheduler: Scheduler, entry: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        scheduler.add_jobs([(Echo, 1), entry])

    assert list(scheduler.get_jobs()) == []


@pytest.mark.parametrize(
    ("job", "call"),
    [
        (Echo, "add_job(Echo, {'to': 'x'})"),
        (jobs.add, "add_job(add, {'to': 'x'})"),
        ("shop:Mail", "add_job('shop:Mail', {'to': 'x'})"),
    ],
)
def test_an_unknown_option_may_be_data_and_the_error_shows_where_these_go(
    scheduler: Scheduler, job: Any, call: str
) -> None:
    unknown: Any = {"to": "x"}
    with pytest.raises(InvalidOption) as refused:
        scheduler.add_job(job, **unknown)

    assert f"there is no option 'to': pass data as one argument after the job: {call}; options are at, " in str(
        refused.value
    )


def test_data_that_look_like_an_option_are_shown_as_data_too(scheduler: Scheduler) -> None:
    unknown: Any = {"tag": "x"}
    with pytest.raises(
        InvalidOption,
        match=r"did you mean tags\? Pass data as one argument after the job: add_job\(Echo, {'tag': 'x'}\)",
    ):
        scheduler.add_job(Echo, **unknown)
    with pytest.raises(InvalidOption, match=r"after the job: \(Echo, {'to': 'x'}\); options are"):
        scheduler.add_jobs([(Echo, None, cast(Any, {"to": "x"}))])


def test_a_task_is_added_with_its_arguments(scheduler: Scheduler) -> None:
    process = scheduler.add_job(jobs.add, {"x": 1, "y": 2})
    other = jobs.add.add(scheduler, x=5)

    assert (process.job, process.queue) == ("tests.scheduler.jobs:add", "sums")
    assert other.data == {"x": 5}
    assert jobs.add(1, y=2) == 3


@pytest.mark.parametrize("data", [{}, {"x": 1, "z": 2}, [1, 2], None])
def test_data_that_a_task_cannot_be_called_with_are_refused(scheduler: Scheduler, data: Any) -> None:
    with pytest.raises(InvalidJob, match="add"):
        scheduler.add_job(jobs.add, data)


def test_a_name_is_stored_without_being_imported(scheduler: Scheduler) -> None:
    process = scheduler.add_job("shop.reports:Reports.monthly", {"year": 2030})

    assert process.job == "shop.reports:Reports.monthly"


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"argv": []},
        {"argv": "ls"},
        {"argv": ["ls", 1]},
        {"argv": ["ls", "a\0b"]},
        {"argv": ["ls"], "shell": True},
        {"argv": ["ls"], "shell": 1},
        {"argv": ["ls"], "cwd": 3},
        {"argv": ["ls"], "env": {"A": 1}},
        {"argv": ["ls"], "timeout": 1},
    ],
)
def test_data_that_are_no_command_are_refused(scheduler: Scheduler, data: Any) -> None:
    with pytest.raises(InvalidJob, match="ShellJob"):
        scheduler.add_job(ShellJob, data)


@pytest.mark.parametrize(("right", "wrong"), [({"priority": 1}, {"priority": True}), ({"retry": 2}, {"retry": 2.0})])
def test_options_are_checked_although_equal_ones_were_right_before(
    scheduler: Scheduler, right: Mapping[str, Any], wrong: Mapping[str, Any]
) -> None:
    scheduler.add_job(Echo, **right)

    with pytest.raises(InvalidOption):
        scheduler.add_job(Echo, **wrong)


def test_options_that_change_on_a_class_hold_for_its_next_job(scheduler: Scheduler) -> None:
    before = scheduler.add_job(Mail, {"to": "a"})
    kept = Mail.options
    try:
        Mail.options = {**kept, "queue": "other", "tags": ["x"]}
        after = scheduler.add_job(Mail, {"to": "a"})
    finally:
        Mail.options = kept

    assert (before.queue, after.queue, after.tags) == ("mail", "other", ("x",))


def test_jobs_with_the_same_options_have_times_and_data_of_their_own(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, {"n": 1}, priority=-2, tags=["a"])
    second = scheduler.add_job(Echo, {"n": 2}, priority=-2, tags=["a"])

    assert (first.data, second.data) == ({"n": 1}, {"n": 2})
    assert first.id != second.id
    for process in (first, second):
        assert process.snapshot == process.snapshot.at_rank()
        assert scheduler.get_job(process.id).snapshot == process.snapshot


def test_an_option_of_add_jobs_itself_is_refused_with_the_way_out(scheduler: Scheduler) -> None:
    with pytest.raises(
        InvalidOption, match=r"add_jobs: timeout goes with each job: pass \(job, data, {'timeout': …}\)"
    ):
        scheduler.add_jobs([(Echo, 1)], timeout=3)  # type: ignore[arg-type]


HUGE = 10**5000  # Python refuses to write it
TOO_LONG = "a whole number of 16,610 bits"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda at: at.find_jobs(limit=HUGE), f"limit={TOO_LONG}: pass how many jobs to return"),
        (lambda at: at.analytics(at_most=HUGE), f"at_most={TOO_LONG}: pass how many jobs may be looked at"),
        (lambda _: Limit(HUGE), f"Limit.{TOO_LONG}.: pass a whole number from 1 to"),
        (lambda _: Rate(1, per=HUGE), f"{TOO_LONG} is out of range: pass a duration"),
        (lambda at: at.schedule("a", Echo, every=HUGE), f"{TOO_LONG} is out of range: pass a duration"),
        (lambda at: at.add_job(Echo, {HUGE: 1}), f"data has the key {TOO_LONG}, which is not text: use text keys"),
        (lambda at: at.cancel_jobs({HUGE: 1}), f"a query cannot name {TOO_LONG}: use id, "),
        (lambda at: at.get_jobs({"data.a": {"$in": HUGE}}), f"data.a: .in takes a list, not {TOO_LONG}"),
        (lambda at: at.add_job(HUGE), f"{TOO_LONG} is not a job: pass a subclass of Job"),
        (lambda at: at.add_jobs([HUGE]), f"jobs.0. is {TOO_LONG}: pass .job, data."),
        (lambda at: at.add_job(Echo, tags=[HUGE]), "tags=a list with a whole number of over 4,300 digits: "),
    ],
)
def test_a_number_that_python_refuses_to_write_is_refused_in_words(
    scheduler: Scheduler, call: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call(scheduler)


def test_jobs_come_in_the_order_in_which_they_were_added_however_that_was(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, 1)
    scheduler.run_pending()
    second = scheduler.recover_job(first.id)
    chained = workflows.chain(scheduler, (Echo, 1), (Echo, 2)).processes
    last = scheduler.add_jobs([(Echo, 1), (Mail, 2)])

    ids = [process.id for process in (first, second, *chained, *last)]
    assert ids == sorted(ids)


def test_jobs_of_one_call_come_in_their_order_even_if_it_takes_more_than_a_second(scheduler: Scheduler) -> None:
    def entries() -> Iterator[tuple[Any, ...]]:
        yield from ((Echo, 0), (Echo, 1))
        begun = int(time.time())
        while int(time.time()) == begun:
            time.sleep(0.01)
        yield from ((Mail, 2), (Echo, 3, {"meta": {"by": "me"}}), (Echo, 4, {"unique": "key"}), (Echo, 5), (Echo, 6))

    ids = [process.id for process in scheduler.add_jobs(entries())]
    assert ids == sorted(ids)
