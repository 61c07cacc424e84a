"""Retry policies: how often, after what pause, and the same again from what was stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import taskqueue
from taskqueue import JobTimeout, retry
from taskqueue.errors import InvalidOption
from taskqueue.model.exception_names import known_names, timed_out_names
from taskqueue.model.retry import (
    NO_RETRY,
    AskWorker,
    CustomRetry,
    Decision,
    ExponentialRetry,
    FilteredRetry,
    FixedRetry,
    GiveUp,
    Refusal,
    RetryIn,
    RetryPolicy,
    SelectedRetry,
    Situation,
    TableRetry,
    asks_a_class,
    decision_document,
    decision_of,
    is_policy,
    policy,
)
from taskqueue.model.schedules import Duration

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
MINUTE = 60
NOT_RETRIABLE = GiveUp(refusal=Refusal.NOT_RETRIABLE)
KEY_ERROR = ("KeyError", "LookupError", "Exception", "BaseException")

EXAMPLES: list[RetryPolicy] = [
    NO_RETRY,
    FixedRetry(times=3, interval=1.5),
    FixedRetry(times=-1),
    ExponentialRetry(),
    ExponentialRetry(times=-1, interval=0, factor=3, longest=60, jitter=0.5),
    retry.exponential(100, 5),
    retry.time_table(),
    retry.time_table({"1h": 60}, since="created"),
    retry.only_on(retry.forever(), ValueError, "app.errors.Refused"),
    retry.by_exception(retry.when(OSError).then(retry.forever()), retry.when(ValueError, KeyError).then(NO_RETRY)),
    retry.custom("app.retrying:Patient", times=3, pauses=[1, 2.5], name="näm"),
]


def after(failures: int, **given: Any) -> Situation:
    """Return the situation after so many failures of a job that was added at noon."""
    return Situation(**{"failures": failures, "created_at": NOON, "due_at": NOON, "now": NOON, **given})


def pauses(policy: RetryPolicy, failures: int) -> list[float | None]:
    """Return the pause after each of the first failures, None where the policy gives up."""
    decisions = [policy.decide(after(number)) for number in range(1, failures + 1)]
    return [decision.after if isinstance(decision, RetryIn) else None for decision in decisions]


def runs(policy: RetryPolicy) -> Iterator[float]:
    """Yield when a job that fails at once each time runs, in seconds since it was added."""
    now, failures = NOON, 0
    while True:
        yield (now - NOON).total_seconds()
        failures += 1
        decision = policy.decide(after(failures, now=now))
        if not isinstance(decision, RetryIn):
            return
        now += timedelta(seconds=decision.after)


# Counting failures


def test_without_retry_the_first_failure_is_the_last() -> None:  # REC-26 DoNotDoItAgain
    assert NO_RETRY.decide(after(1)) == GiveUp(refusal=Refusal.SPENT)
    assert NO_RETRY.is_last(after(1))
    assert retry.never() == NO_RETRY


def test_a_fixed_policy_always_pauses_the_same() -> None:
    assert pauses(FixedRetry(times=2, interval=300), 3) == [300, 300, None]


def test_many_times_is_once_more_than_the_number() -> None:  # X-9, vector 3: runs at minute 0, 1, 2, 3
    assert list(runs(retry.many_times(3, 60))) == [0, 60, 120, 180]
    assert retry.many_times(3) == FixedRetry(3, 60)
    assert [retry.many_times(3).is_last(after(number)) for number in (1, 2, 3, 4)] == [False, False, False, True]


def test_an_exponential_policy_follows_the_formula_exactly() -> None:  # vector 1
    policy = retry.exponential(10, 30)

    assert pauses(policy, 11) == [30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, None]
    assert sum(pause or 0 for pause in pauses(policy, 11)) == 30690
    assert len(list(runs(policy))) == 11
    assert policy.decide(after(11)) == GiveUp(refusal=Refusal.SPENT)
    assert [policy.is_last(after(number)) for number in (1, 10, 11)] == [False, False, True]


def test_an_exponential_policy_of_a_hundred_times_stays_within_the_calendar() -> None:  # vector 2
    found = pauses(retry.exponential(100, 5), 101)

    assert found[:2] == [5, 10]
    assert found[99] == 10 * 366 * 86_400
    assert found[100] is None


def test_an_exponential_policy_doubles_its_pause_up_to_the_longest() -> None:
    assert pauses(ExponentialRetry(times=5, interval=30, longest=200), 6) == [30, 60, 120, 200, 200, None]
    assert retry.exponential(5, 30, longest="200 s") == ExponentialRetry(5, 30, 2, 200)


@pytest.mark.parametrize("endless", [FixedRetry(times=-1, interval=1), ExponentialRetry(times=-1, factor=100)])
def test_an_endless_policy_never_gives_up(endless: RetryPolicy) -> None:
    assert isinstance(endless.decide(after(1_000_000)), RetryIn)
    assert not endless.is_last(after(1_000_000))
    assert retry.forever("1h") == FixedRetry(-1, 3600)


def test_jitter_leaves_out_a_part_of_the_pause_by_the_chance_given() -> None:
    policy = retry.exponential(5, 100, jitter=0.5)

    assert [policy.decide(after(1, chance=chance)) for chance in (0.0, 0.5, 0.999)] == [
        RetryIn(after=100),
        RetryIn(after=75),
        RetryIn(after=100 * (1 - 0.5 * 0.999)),
    ]


@pytest.mark.parametrize(
    ("span", "interval", "times"),
    [(120, 30, 2), (1025, 1, 10), (3600, 60, 6), (100, 30, 2), (40, 30, 0), (43, 30, 1), (10, 30, 0)],
)
def test_a_span_gives_the_number_of_attempts(span: float, interval: float, times: int) -> None:  # REC-26, vector 4
    policy = retry.for_an_interval(span, interval)

    assert policy == ExponentialRetry(times, interval, 2.0, None)
    if times > 1:
        assert span / 2 - interval <= sum(pause or 0 for pause in pauses(policy, times)) <= 2 * span


@pytest.mark.parametrize(("span", "interval"), [(60, 0), (0, 60), (-1, 60)])
def test_a_span_without_length_is_refused(span: float, interval: float) -> None:  # REC-26: s=0 divided by zero
    with pytest.raises(InvalidOption):
        retry.for_an_interval(span, interval)


# The age of the job


def test_the_default_table_makes_41_runs() -> None:  # REC-27
    found = list(runs(retry.time_table()))

    assert found[:9] == [0, 60, 120, 180, 240, 300, 360, 660, 960]
    assert {3360, 3660, 7260, 10860, 82860, 86460} <= set(found)
    assert found[-1] == 86460
    assert len(found) == 41


@pytest.mark.parametrize(
    ("table", "age", "is_last"),
    [({"1 min": "1 min", "1 h": "1 min"}, 3, True), ({"1 h": "1 min", "24 h": "1 h"}, 3, False)],
)
def test_a_job_older_than_the_table_is_at_its_last_attempt(
    table: dict[Duration, Duration], age: int, is_last: bool
) -> None:  # vector 4
    policy = retry.time_table(table)

    assert policy.is_last(after(1, now=NOON + age * HOUR)) is is_last
    assert isinstance(policy.decide(after(1, now=NOON + age * HOUR)), GiveUp) is is_last


def test_an_age_is_within_its_row_to_the_last_moment() -> None:  # REC-27: boundary inclusive
    policy = retry.time_table({"1h": "5m"})

    assert policy.decide(after(1, now=NOON + HOUR)) == RetryIn(after=300)
    assert policy.decide(after(1, now=NOON + HOUR + timedelta(milliseconds=1))) == GiveUp()


def test_the_age_counts_from_the_time_the_job_was_planned_for() -> None:
    late = after(1, due_at=NOON + 48 * HOUR, now=NOON + 48 * HOUR)

    assert retry.time_table().decide(late) == RetryIn(after=60)
    assert retry.time_table(since="created").decide(late) == GiveUp()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "has no rows"),
        ({0: 0}, "ages must grow"),
        ({60: 0}, "pause=0"),
        ({60: 61}, "no more than the age 60"),
        ({3600: 60, 300: 60}, "ages must grow"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table: dict[Duration, Duration], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        retry.time_table(table)
    with pytest.raises(InvalidOption, match="since="):
        retry.time_table(since="started")


# What failed


def test_listed_types_are_retried_and_others_are_not() -> None:  # REC-24, vector 5
    policy = retry.only_on(retry.many_times(1), LookupError, "app.errors.Refused")

    assert policy.decide(after(1, errors=KEY_ERROR)) == RetryIn(after=60)
    assert policy.decide(after(2, errors=KEY_ERROR)) == GiveUp()
    assert policy.decide(after(1, errors=("app.errors.Refused", "Exception"))) == RetryIn(after=60)
    assert policy.decide(after(1, errors=("ValueError", "Exception"))) == NOT_RETRIABLE
    assert policy.decide(after(1)) == NOT_RETRIABLE  # no exception at all
    assert policy.is_last(after(2))
    assert not policy.is_last(after(1))


def test_a_filter_without_types_is_for_every_exception() -> None:  # REC-24
    policy = FilteredRetry(retry.forever())

    assert policy.decide(after(1, errors=KEY_ERROR)) == RetryIn(after=60)
    assert policy.decide(after(1, errors=("SystemExit", "BaseException"))) == NOT_RETRIABLE


def test_a_timeout_passes_the_filter() -> None:  # types and timeouts have nothing to do with each other
    timeout = after(1, errors=timed_out_names(()), timed_out=True)

    assert retry.only_on(retry.forever(), ValueError).decide(timeout) == RetryIn(after=60)


def test_the_first_case_that_fits_decides() -> None:  # REC-26 SelectByException
    policy = retry.by_exception(
        retry.when(KeyError).then(retry.many_times(1, 1)),
        retry.when(LookupError, "app.errors.Refused").then(retry.forever(2)),
        retry.when(JobTimeout).then(retry.forever(3)),
    )

    assert policy.decide(after(1, errors=KEY_ERROR)) == RetryIn(after=1)
    assert policy.decide(after(2, errors=KEY_ERROR)) == GiveUp()
    assert policy.decide(after(9, errors=("IndexError", "LookupError", "Exception"))) == RetryIn(after=2)
    assert policy.decide(after(9, errors=timed_out_names(()), timed_out=True)) == RetryIn(after=3)
    assert policy.decide(after(1, errors=("ValueError", "Exception"))) == NOT_RETRIABLE
    assert not policy.is_last(after(9))


def test_several_policies_are_at_their_end_when_all_are() -> None:
    policy = retry.by_exception(
        retry.when(KeyError).then(retry.many_times(1)), retry.when(ValueError).then(retry.many_times(3))
    )

    assert [policy.is_last(after(number)) for number in (2, 3, 4)] == [False, False, True]


def test_no_name_means_one_thing_in_taskqueue_and_another_in_taskqueue_retry() -> None:
    assert not set(taskqueue.__all__) & set(retry.__all__)


def test_names_are_those_under_which_users_know_the_classes() -> None:
    assert retry.only_on(NO_RETRY, "builtins.ValueError", ValueError, JobTimeout) == FilteredRetry(
        NO_RETRY, ("ValueError", "taskqueue.JobTimeout")
    )
    assert known_names(["taskqueue.model.job.Retry", "app.Error"]) == ("taskqueue.Retry", "app.Error")


@pytest.mark.parametrize("kind", [int, 5, None, "not a name", "", "app."])
def test_what_is_no_exception_class_is_refused(kind: Any) -> None:  # REC-24: a type that cannot be thrown
    with pytest.raises(InvalidOption, match=r"exception class"):
        retry.only_on(NO_RETRY, kind)


def test_a_policy_for_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="no types"):
        retry.only_on(NO_RETRY)
    with pytest.raises(InvalidOption, match="no cases"):
        retry.by_exception()


# A class of the user's


class Patient:
    """A policy as a user writes it."""


def test_a_class_of_the_users_is_asked_elsewhere() -> None:
    policy = retry.custom(Patient, times=3)

    assert policy == retry.custom(f"{__name__}:Patient", times=3)
    assert policy.decide(after(1)) == AskWorker(path=f"{__name__}:Patient", settings={"times": 3})
    assert not policy.is_last(after(1))


def test_it_is_known_where_a_class_may_have_to_be_asked() -> None:
    asking = retry.custom(Patient)

    assert [asks_a_class(example) for example in EXAMPLES] == [isinstance(one, CustomRetry) for one in EXAMPLES]
    assert asks_a_class(retry.only_on(asking, ValueError))
    assert asks_a_class(retry.by_exception(retry.when(OSError).then(NO_RETRY), retry.when(KeyError).then(asking)))


@pytest.mark.parametrize("path", ["Patient", "app.retrying", "app:Patient.inner", 5])
def test_what_is_no_path_of_a_class_is_refused(path: Any) -> None:
    with pytest.raises(InvalidOption):
        retry.custom(path)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_settings_that_are_no_json_are_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match="plain JSON values"):
        retry.custom("app:Patient", value=value)


# Kept and told


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_policy_comes_back_from_its_document(example: RetryPolicy) -> None:
    assert policy(json.loads(json.dumps(example.document()))) == example
    assert hash(policy(example.document())) == hash(example)
    assert is_policy(example)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"policy": "soon"},
        {"policy": "fixed", "often": 1},
        {"policy": "table", "rows": 5},
        {"policy": "filtered", "types": ["ValueError"]},
        {"policy": "selected", "cases": [{}]},
        {"policy": "custom"},
    ],
)
def test_a_document_that_is_no_policy_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="retry policy"):
        policy(document)


@pytest.mark.parametrize(
    "decision", [RetryIn(after=1.5), RetryIn(after=0, queue="slow"), GiveUp(refusal=Refusal.UNDECIDED, reason="why")]
)
def test_a_decision_crosses_processes_as_json(decision: RetryIn | GiveUp) -> None:
    assert decision_of(json.loads(json.dumps(decision_document(decision)))) == decision


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (FixedRetry(), "no retry"),
        (FixedRetry(times=3, interval=60), "retry 3 times, every 60 s"),
        (FixedRetry(times=-1, interval=0.5), "retry endlessly, every 0.5 s"),
        (ExponentialRetry(times=4), "retry 4 times, after 30 s and then 2 times longer, at most 86400 s"),
        (
            retry.exponential(-1, 30, jitter=0.25),
            "retry endlessly, after 30 s and then 2 times longer, up to 25 % of it cut off at random",
        ),
        (
            retry.time_table({"5m": "1m", "1h": "5m"}),
            "retry every 60 s up to an age of 300 s, every 300 s up to an age of 3600 s",
        ),
        (
            retry.only_on(retry.many_times(2), ValueError, "app.Refused"),
            "retry twice, every 60 s, after ValueError or app.Refused only",
        ),
        (
            retry.by_exception(retry.when(KeyError).then(NO_RETRY), retry.when(OSError).then(retry.forever(1))),
            "after KeyError: no retry; after OSError: retry endlessly, every 1 s",
        ),
        (retry.custom("app:Patient", times=3), "retry as app:Patient(times=3) decides"),
    ],
)
def test_a_policy_is_told_in_words(example: RetryPolicy, words: str) -> None:
    assert str(example) == words


@pytest.mark.parametrize("times", [-2, 1.5, "3", True, None])
def test_times_that_are_no_number_of_attempts_are_refused(times: object) -> None:
    for kind in (FixedRetry, ExponentialRetry):
        with pytest.raises(InvalidOption, match="times="):
            kind(times=times)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, "60", True, float("nan"), float("inf"), 1e10])
def test_pauses_that_are_no_seconds_are_refused(seconds: object) -> None:
    for kind in (FixedRetry, ExponentialRetry):
        with pytest.raises(InvalidOption, match="interval="):
            kind(interval=seconds)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="longest="):
        ExponentialRetry(longest=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, 101, float("nan")])
def test_a_factor_that_does_not_grow_is_refused(factor: float) -> None:
    with pytest.raises(InvalidOption, match="factor="):
        ExponentialRetry(factor=factor)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, True, "half", float("nan")])
def test_a_jitter_that_is_no_part_is_refused(jitter: Any) -> None:
    with pytest.raises(InvalidOption, match="jitter="):
        ExponentialRetry(jitter=jitter)


# What holds of every policy

SECONDS = some.floats(0.001, 1e6)
NAMES = some.sampled_from(["ValueError", "KeyError", "LookupError", "Exception", "app.Refused"])
COUNTED = some.one_of(
    some.builds(FixedRetry, some.integers(-1, 20), SECONDS),
    some.builds(
        ExponentialRetry,
        some.integers(-1, 200),
        SECONDS,
        some.floats(1, 100),
        some.one_of(some.none(), SECONDS),
        some.floats(0, 1),
    ),
    some.lists(some.floats(1, 1e6), min_size=1, max_size=5, unique=True).map(
        lambda ages: TableRetry(tuple((age, age / 2) for age in sorted(ages)))
    ),
)
POLICIES: some.SearchStrategy[RetryPolicy] = some.recursive(
    COUNTED,
    lambda inner: some.one_of(
        some.builds(lambda one, names: retry.only_on(one, *names), inner, some.lists(NAMES, min_size=1)),
        some.builds(
            lambda ones: SelectedRetry(tuple(retry.when(name).then(one) for name, one in ones)),
            some.lists(some.tuples(NAMES, inner), min_size=1, max_size=3),
        ),
    ),
    max_leaves=4,
)
fields(Situation)  # makes the class: hypothesis reads its signature twice, and the first reading makes it
SITUATIONS = some.builds(
    Situation,
    failures=some.integers(1, 10_000),
    created_at=some.just(NOON),
    due_at=some.integers(0, 10**6).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    now=some.integers(0, 10**8).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    errors=some.sampled_from([(), KEY_ERROR, ("ValueError", "Exception"), ("app.Refused", "Exception")]),
    timed_out=some.booleans(),
    chance=some.floats(0, 1, exclude_max=True),
)


@given(POLICIES, SITUATIONS)
def test_every_policy_always_decides_and_says_so_again_after_being_stored(
    one: RetryPolicy, situation: Situation
) -> None:
    decision: Decision = one.decide(situation)

    assert isinstance(decision, RetryIn | GiveUp)
    if isinstance(decision, RetryIn):
        assert 0 <= decision.after <= 10 * 366 * 86_400
        assert not one.is_last(situation)
    assert policy(json.loads(json.dumps(one.document()))).decide(situation) == decision
    assert str(one)


@given(COUNTED, SITUATIONS)
def test_who_has_given_up_does_not_begin_again(one: RetryPolicy, situation: Situation) -> None:
    decisions = [
        one.decide(replace(situation, failures=situation.failures + more, now=situation.now + more * HOUR))
        for more in range(5)
    ]

    gave_up = [isinstance(decision, GiveUp) for decision in decisions]
    assert gave_up == sorted(gave_up)


@given(some.builds(ExponentialRetry, some.just(-1), SECONDS, some.floats(1, 100), some.one_of(some.none(), SECONDS)))
def test_exponential_pauses_never_shrink(one: ExponentialRetry) -> None:
    found = pauses(one, 150)

    assert all(first is not None and second is not None and first <= second for first, second in pairwise(found))


LOOSE: Any = retry
LOOSE_TASK: Any = taskqueue.task
"""The same without types, for calls that a checker refuses."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LOOSE.exponential(3, factor="2"), "factor='2' of a retry policy: pass a number between 1 and 100"),
        (lambda: LOOSE.time_table([5]), r"table=\[5\] of a retry policy: pass a mapping such as"),
        (lambda: LOOSE.only_on(5, OSError), "5 is not a retry policy: pass one such as"),
        (lambda: LOOSE.only_on(Situation, OSError), r"Situation is a class, not a retry policy: pass retry.custom"),
        (lambda: LOOSE.when(OSError).then(None), "None is not a retry policy: pass one such as"),
        (lambda: LOOSE.by_exception(5), r"5 is not a case of a retry policy: pass when\("),
        (lambda: LOOSE.call(len, 5), "5 is not a retry policy: pass one such as"),
        (lambda: LOOSE.call(5, LOOSE.forever(0)), r"retry.call\(5, …\): pass a function"),
        (lambda: LOOSE_TASK(5), r"task\(5\): pass a function"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_the_way_out(make: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        make()
