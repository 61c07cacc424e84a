"""The table of options: what is accepted, how three levels become one, and what counts as changed."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as some

from taskqueue.errors import InvalidOption
from taskqueue.model.conditions import Check
from taskqueue.model.limits import Limit, Rate
from taskqueue.model.options import checked, merged
from taskqueue.model.options.new_record import changed, in_force, record
from taskqueue.model.options.table import OPTIONS, ClassOptions, JobOptions, SchedulerOptions, Scope
from taskqueue.model.record import Cause, OnCrash, OnFailure, Record, Status
from taskqueue.model.retry import ExponentialRetry, FilteredRetry, FixedRetry

NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def a_record(**given: Any) -> Record:
    """Return the record that a call with these options makes."""
    call = checked(given)
    return record(job="app:Mail", data="1", options=merged(call, {}, {}), given=call, id=ObjectId(), now=NOON)


ACCEPTED = [
    ("at", None, None),
    ("at", "now", None),
    ("at", "+1 hour", "+1 hour"),
    ("at", NOON, NOON),
    ("at", 1e9, datetime(2001, 9, 9, 1, 46, 40, tzinfo=timezone.utc)),
    ("expires", " +1 hour ", "+1 hour"),
    ("expires", HOUR, "+3600 seconds"),
    ("interval", "5m", 300.0),
    ("interval", -1, -1),
    ("interval", 0, None),
    ("interval", None, None),
    ("interval_reference", "start", "start"),
    ("interval_reference", NOON, NOON),
    ("until", "+1 day", "+1 day"),
    ("max_runs", 3, 3),
    ("max_runs", None, None),
    ("stop_after_failures", 3, 3),
    ("retry", 0, 0),
    ("retry", -1, -1),
    ("retry", ExponentialRetry(), ExponentialRetry()),
    ("retry", {"policy": "fixed", "times": 2}, FixedRetry(2)),
    ("retry_on", (), ()),
    ("retry_on", ValueError, ("ValueError",)),
    (
        "retry_on",
        ["app.errors.Refused", ValueError, "builtins.OSError"],
        ("OSError", "ValueError", "app.errors.Refused"),
    ),
    ("retry_on_timeout", False, False),
    ("retry_interval", 0, 0.0),
    ("retry_interval", "5m", 300.0),
    ("timeout", None, None),
    ("timeout", 0, None),
    ("timeout", "00:01:00", 60.0),
    ("stall_timeout", "5m", 300.0),
    ("stall_timeout", 0, None),
    ("priority", -20, -20),
    ("priority", 20, 20),
    ("queue", "mail/eu-1.high", "mail/eu-1.high"),
    ("tags", "one", ("one",)),  # App. C: one text is a list of one
    ("tags", ["b", "a", "b"], ("a", "b")),
    ("tags", [], ()),
    ("unique", None, None),
    ("unique", "näm", "näm"),
    ("force_spawn", True, True),
    ("crash_retries", 0, 0),
    ("on_crash", "fail", OnCrash.FAIL),
    ("unique_for", "5m", 300.0),
    ("unique_for", None, None),
    ("on_duplicate", "extend", "extend"),
    ("receives", {"page": "result", "all": "results"}, ("all=results", "page=result")),
    ("receives", "results", ("results",)),
    ("receives", ["a=b=result"], ("a=b=result",)),
    ("receives", (), ()),
    ("on_crash", OnCrash.RETRY, OnCrash.RETRY),
    ("id", None, None),
    ("id", "65f0" * 6, ObjectId("65f0" * 6)),
    ("depends_on", "65f0" * 6, ((ObjectId("65f0" * 6), None),)),
    ("depends_on", [ObjectId("65f0" * 6), "65f0" * 6], ((ObjectId("65f0" * 6), None),)),
    ("depends_on", ["#is_paid", "65f0" * 6], ((ObjectId("65f0" * 6), None), Check("#is_paid"))),
    ("ready", "shop:is_open", Check("shop:is_open")),
    ("ready", {"not": {"check": "#is_full"}}, ~Check("#is_full")),
    ("depends_on", {"65f0" * 6: "ignore"}, ((ObjectId("65f0" * 6), OnFailure.IGNORE),)),
    ("on_dependency_failure", "wait", OnFailure.WAIT),
    ("limits", (), ()),
    ("limits", 5, (Limit(5),)),
    ("limits", ["5 by=a.b", "100/1m name=api"], (Limit(5, by="a.b"), Rate(100, per=60, name="api"))),
    ("parent", None, None),
    ("parent", "65f0" * 6, ObjectId("65f0" * 6)),
    ("meta", {"tenant": "acme", "empty": ""}, {"tenant": "acme", "empty": ""}),
    ("meta", ["tenant=acme", "query=a=b"], {"tenant": "acme", "query": "a=b"}),
    ("meta", {f"key-{number}": "" for number in range(16)}, {f"key-{number}": "" for number in range(16)}),
    ("ignore_data", False, False),
]

REFUSED = [
    ("at", "soon", "is not a time"),
    ("at", True, "is not a time"),
    ("expires", -HOUR, "is out of range: pass a duration between 0"),
    ("interval", -2, "duration"),
    ("interval", 0.0001, "1 ms"),
    ("interval_reference", "middle", "is not a time"),
    ("until", "soon", "is not a time"),
    ("max_runs", 0, "whole number"),
    ("stop_after_failures", 101, "whole number"),
    ("retry", "10", "pass the number of further attempts"),
    ("retry", True, "pass the number"),
    ("retry", 1.0, "pass the number"),
    ("retry", -2, "pass the number"),
    ("retry", {"policy": "soon"}, "is not a retry policy"),
    ("retry_on", int, "is not an exception class"),
    ("retry_on", [5], "is not an exception class"),
    ("retry_on", 5, "pass exception classes"),
    ("retry_on", "no name", "is not a dotted name"),
    ("retry_on_timeout", 1, "pass True or False"),
    ("retry_interval", -1, "between 0 and ten years"),
    ("retry_interval", None, "is not a duration"),
    ("timeout", "60", "is not a duration"),
    ("stall_timeout", "soon", "is not a duration"),
    ("timeout", True, "is not a duration"),
    ("priority", -21, "from -20 to 20"),
    ("priority", 21, "from -20 to 20"),
    ("priority", False, "from -20 to 20"),
    ("priority", "high", "from -20 to 20"),
    ("queue", "", "without spaces"),
    ("queue", "a=2", "without spaces, '=' and ','"),
    ("queue", "a b", "without spaces"),
    ("queue", "x" * 101, "1 to 100 characters"),
    ("queue", "\udc80", "printable"),
    ("queue", None, "pass a name"),
    ("tags", [""], "1 to 200 characters"),
    ("tags", ["x" * 201], "1 to 200"),
    ("tags", [1], "pass text"),
    ("tags", ["\n"], "printable"),
    ("tags", 5, "up to 50 texts"),
    ("tags", [str(number) for number in range(51)], "up to 50 texts"),
    ("unique", "", "1 to 200"),
    ("unique", 5, "pass text"),
    ("force_spawn", 1, "pass True or False"),
    ("crash_retries", -1, "from 0 to 1,000,000"),
    ("crash_retries", True, "from 0"),
    ("unique_for", 0, "more than 0"),
    ("unique_for", "soon", "is not a duration"),
    ("on_duplicate", "drop", "pass 'return', 'replace', 'extend' or 'raise'"),
    ("on_duplicate", ["raise"], "pass 'return', 'replace', 'extend' or 'raise'"),
    ("receives", 5, "pass 'result' or 'results'"),
    ("receives", "page", "pass 'result' or 'results'"),
    ("receives", "=result", "pass 'result' or 'results'"),
    ("receives", {"page": 7}, "pass 'result' or 'results'"),
    ("receives", ["page=result", "page=results"], "name each once"),
    ("receives", ["result", "page=results"], "name each once"),
    ("on_crash", "hold", "pass 'retry' or 'fail'"),
    ("id", "", "24 hexadecimal digits"),
    ("id", 5, "pass text of 1 to 64 printable characters"),
    ("depends_on", None, "pass a Process, an ObjectId"),
    ("ready", "is_open", "'is_open' does not name a predicate: write 'module:function' or '#method'"),
    ("ready", 5, "5 is not a predicate"),
    ("depends_on", ["65f0"], "24 hexadecimal digits"),
    ("depends_on", [ObjectId()] * 1001, "up to 1,000 jobs"),
    ("depends_on", {"65f0" * 6: "stop"}, "pass 'cancel', 'ignore' or 'wait'"),
    ("ready", Limit(5), "pass it in limits="),
    ("depends_on", Rate(5, per=60), "pass it in limits="),
    ("depends_on", ["65f0" * 6, Limit(5)], "pass it in limits="),
    ("limits", Check("shop:is_open"), "pass it in ready="),
    ("limits", [Limit(5), ~Check("shop:is_open")], "pass it in ready="),
    ("limits", "many", "pass Limit(5)"),
    ("limits", "10/m", "'m' is not a time: write 10/1m"),
    ("limits", True, "pass Limit(5)"),
    ("limits", [1] * 6, "up to 5 limits"),
    ("limits", 0, "from 1 to 10,000"),
    ("parent", 5, "pass a Process, an ObjectId"),
    ("on_dependency_failure", "stop", "pass 'cancel', 'ignore' or 'wait'"),
    ("meta", None, "a mapping of text to text"),
    ("meta", "tenant", "or texts KEY=VALUE"),
    ("meta", {"a.b": "1"}, "the key 'a.b': pass 1 to 64 letters, digits, '_' and '-'"),
    ("meta", {"k" * 65: "1"}, "pass 1 to 64 letters"),
    ("meta", {1: "1"}, "the key 1"),
    ("meta", {"tenant": 1}, "the value of 'tenant': pass text of printable characters"),
    ("meta", {"tenant": "a\n"}, "the value of 'tenant'"),
    ("meta", ["a=1", "a=2"], "the key 'a' is given twice: pass it once"),
    (
        "meta",
        {f"key-{number}": "" for number in range(17)},
        "17 keys, including those of the job that adds it: pass up to 16",
    ),
    ("meta", {"key": "ä" * 1023}, "2,049 bytes in total: pass up to 2,048, or put them in the data"),
    ("ignore_data", "yes", "pass True or False"),
]


@pytest.mark.parametrize(("name", "value", "kept"), ACCEPTED)
def test_an_option_is_checked_and_kept_in_one_form(name: str, value: Any, kept: Any) -> None:
    assert checked({name: value}) == {name: kept}


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_a_wrong_value_is_refused_with_name_value_and_way_out(name: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        checked({name: value})

    text = str(refused.value)
    assert text.startswith(f"add_job: {name}={value!r}"[:100])
    assert words in text
    assert len(text) < 500


def test_a_number_that_python_does_not_write_is_refused_by_its_length() -> None:
    with pytest.raises(InvalidOption, match="add_job: priority is a whole number of 16,610 bits"):
        checked({"priority": 10**5000})


OF_CLASSES = {"concurrency", "name", "begin_within", "promise"}


def test_each_option_is_tried_here_both_ways() -> None:
    assert {name for name, *_ in ACCEPTED} == {name for name, *_ in REFUSED} == set(OPTIONS) - OF_CLASSES


@pytest.mark.parametrize(
    ("types", "scope"), [(SchedulerOptions, Scope.ALL), (ClassOptions, Scope.CLASS), (JobOptions, Scope.ONE)]
)
def test_each_option_has_a_type_at_the_levels_that_may_set_it(types: Any, scope: Scope) -> None:
    assert set(types.__annotations__) == {
        name for name, option in OPTIONS.items() if option.scope >= scope and (scope > 1 or not option.is_of_class)
    }


def test_the_defaults_are_accepted_by_their_own_checks() -> None:
    for name, option in OPTIONS.items():
        scope = Scope.CLASS if option.is_of_class else Scope.ONE
        assert checked({name: option.default}, scope=scope) == {name: option.default}
        assert option.meaning


def test_unknown_options_are_named_with_near_ones() -> None:
    with pytest.raises(
        InvalidOption, match=r"options of app:Mail: there is no option 'prioritty': did you mean priority\?"
    ):
        checked({"prioritty": 1}, "options of app:Mail")
    with pytest.raises(InvalidOption, match="there is no option 'zzz': use at, retry, retry_interval"):
        checked({"zzz": 1})


def test_what_belongs_to_one_job_is_no_default() -> None:
    with pytest.raises(InvalidOption, match="Scheduler: id applies to one job: pass it to add_job"):
        checked({"id": ObjectId()}, "Scheduler", Scope.ALL)
    with pytest.raises(InvalidOption, match="Mail: parent applies to one job: pass it to add_job"):
        checked({"parent": ObjectId()}, "Mail", Scope.CLASS)


def test_one_key_is_no_default_of_all_classes() -> None:
    assert checked({"unique": "nightly"}, "Mail", Scope.CLASS) == {"unique": "nightly"}
    with pytest.raises(InvalidOption, match="Scheduler: unique cannot be set for jobs of all classes"):
        checked({"unique": "nightly"}, "Scheduler", Scope.ALL)


Anything = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(), some.text(), some.lists(some.text()), some.binary()
)


@given(some.sampled_from(sorted(OPTIONS)), Anything)
def test_any_value_is_kept_or_refused_and_what_is_kept_is_kept_again(name: str, value: Any) -> None:
    try:
        kept = checked({name: value})
    except InvalidOption:
        return
    assert checked(kept) == kept


VALID: dict[str, Any] = {
    "at": some.sampled_from([None, "now", "+1 hour", NOON - HOUR, NOON + HOUR, 1e9]),
    "retry": some.one_of(some.integers(-1, 100), some.just(ExponentialRetry()), some.just(FixedRetry(times=2))),
    "retry_on": some.lists(some.sampled_from([ValueError, OSError, "app.errors.Refused"])),
    "retry_on_timeout": some.booleans(),
    "timeout": some.one_of(some.none(), some.floats(0, 1e6)),
    "stall_timeout": some.one_of(some.none(), some.floats(0, 1e6)),
    "priority": some.integers(-20, 20),
    "queue": some.from_regex(r"\A[a-z][a-z0-9/.-]{0,20}\Z"),
    "tags": some.sets(some.from_regex(r"\A[a-z]{1,9}\Z"), max_size=5),
    "unique": some.one_of(some.none(), some.just("key")),
    "force_spawn": some.booleans(),
    "crash_retries": some.integers(0, 9),
    "on_crash": some.sampled_from(["retry", "fail"]),
    "expires": some.sampled_from([None, "+3 hours"]),
}


@given(some.fixed_dictionaries({}, optional=VALID))
def test_every_valid_call_makes_a_record_that_equals_the_call(options: dict[str, Any]) -> None:
    made = a_record(**options)

    assert changed(made, checked(options)) == []
    assert changed(made, {}) == []
    assert in_force(made)["priority"] == options.get("priority", 0)
    assert made.ready_at is not None
    assert (made.status is Status.POSTPONED) == (made.ready_at > NOON)


@given(some.fixed_dictionaries({}, optional=VALID), some.fixed_dictionaries({}, optional=VALID))
def test_a_call_equals_a_record_exactly_when_it_would_make_the_same(
    one: dict[str, Any], other: dict[str, Any]
) -> None:  # PTS-12: only what the second call names counts, whatever the order
    first, second = a_record(**one), a_record(**{**one, **other})
    compared = [name for name in other if name != "unique"]

    assert changed(first, checked(other)) == [name for name in compared if _kept(first, name) != _kept(second, name)]


def _kept(made: Record, name: str) -> Any:
    return in_force(made)[name]


def test_the_call_wins_over_the_class_and_the_class_over_the_scheduler() -> None:
    options = merged({"retry": 1}, {"retry": 2, "queue": "b"}, {"retry": 3, "queue": "c", "priority": 4})

    assert (options["retry"], options["queue"], options["priority"], options["timeout"]) == (1, "b", 4, None)


@pytest.mark.parametrize(
    ("call", "declared", "defaults"),
    [
        ({"retry": ExponentialRetry(), "retry_interval": 5.0}, {}, {}),
        ({"retry_interval": 5.0}, {"retry": ExponentialRetry()}, {}),
        ({"retry_interval": 5.0}, {}, {"retry": ExponentialRetry()}),
    ],
)
def test_an_interval_that_a_policy_would_ignore_is_refused(
    call: dict[str, Any], declared: dict[str, Any], defaults: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption, match="retry is a policy with pauses of its own"):
        merged(call, declared, defaults)


def test_an_interval_of_a_weaker_level_gives_way_to_a_policy() -> None:
    assert merged({"retry": ExponentialRetry()}, {}, {"retry_interval": 5.0})["retry"] == ExponentialRetry()
    assert merged({"retry": 3}, {"retry": ExponentialRetry(), "retry_interval": 5.0}, {})["retry_interval"] == 5.0


def test_retry_and_interval_become_one_policy() -> None:
    assert a_record(retry=5, retry_interval="1m").options.retry == FixedRetry(times=5, interval=60)
    assert a_record().options.retry == FixedRetry(times=0, interval=300)


def test_a_list_of_errors_binds_the_policy_to_them() -> None:
    made = a_record(retry=5, retry_on=(ValueError, "app.errors.Refused"))

    assert made.options.retry == FilteredRetry(FixedRetry(5), ("ValueError", "app.errors.Refused"))
    assert (in_force(made)["retry"], in_force(made)["retry_on"]) == (5, ["ValueError", "app.errors.Refused"])
    assert changed(made, checked({"retry": FilteredRetry(FixedRetry(5), ("ValueError", "app.errors.Refused"))})) == []


def test_a_new_record_waits_or_is_postponed() -> None:
    now, later = a_record(priority=2), a_record(at="+1 hour")

    assert (now.status, now.cause, now.ready_at) == (Status.WAITING, Cause.ADDED, NOON)
    assert (later.status, later.cause, later.ready_at) == (Status.POSTPONED, Cause.SCHEDULED, NOON + HOUR)
    assert now.rank - a_record().rank == 2 * 3_600_000


def test_a_job_that_expires_before_it_may_start_is_refused() -> None:
    with pytest.raises(InvalidOption, match="is not after the time at which the job may start"):
        a_record(expires=NOON + HOUR, at="+1 hour")
    with pytest.raises(InvalidOption, match="is not after the time at which the job may start"):
        a_record(expires="now")


def test_how_long_a_job_may_wait_counts_from_the_time_at_which_it_may_start() -> None:
    assert a_record(expires="+1 hour").expires_at == NOON + HOUR
    assert a_record(expires="+1 hour", at="+2 hours").expires_at == NOON + 3 * HOUR
    assert a_record(expires="+1 hour", at=NOON - HOUR).expires_at == NOON + HOUR


def test_what_the_call_named_is_kept_as_plain_values() -> None:
    kept = a_record(at=NOON, tags=["b", "a"], on_crash="fail", retry=ExponentialRetry(times=1), id=ObjectId()).given

    assert kept == {
        "at": "2026-07-01T12:00:00.000+00:00",
        "tags": ["a", "b"],
        "on_crash": "fail",
        "retry": {
            "policy": "exponential",
            "times": 1,
            "interval": 30.0,
            "factor": 2.0,
            "longest": 86_400.0,
            "jitter": 0.0,
        },
    }


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"begin_within": "5m", "promise": 0.5}, {"begin_within": 300.0, "promise": 0.5}),
        ({"begin_within": None}, {"begin_within": None}),
    ],
)
def test_a_promise_is_kept_in_one_form(options: dict[str, Any], kept: dict[str, Any]) -> None:
    assert checked(options, "options of app:Mail", Scope.CLASS) == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"promise": 99}, "promise=99: pass a share from 0.5 to 0.99999: 0.99 for 99 of 100 jobs"),
        ({"promise": 1.0}, "promise=1.0: pass a share"),
        ({"promise": float("nan")}, "promise=nan: pass a share"),
        ({"promise": True}, "promise=True: pass a share"),
        ({"promise": "0.99"}, "promise='0.99': pass a share"),
        ({"begin_within": 0}, "begin_within=0: pass seconds or '5m', more than 0"),
        ({"begin_within": "soon"}, "begin_within='soon' is not a duration"),
    ],
)
def test_a_wrong_promise_is_refused_with_name_value_and_way_out(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=f"^options of app:Mail: {re.escape(words)}"):
        checked(options, "options of app:Mail", Scope.CLASS)


@pytest.mark.parametrize("name", ["begin_within", "promise"])
def test_a_promise_belongs_to_a_class(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"add_job: {name} applies to all jobs of a class"):
        checked({name: 0.9})
    with pytest.raises(InvalidOption, match=f"Scheduler: {name} cannot be set for jobs of all classes"):
        checked({name: 0.9}, "Scheduler", Scope.ALL)


def test_concurrency_belongs_to_a_class() -> None:
    assert checked({"concurrency": 100}, "options of app:Mail", Scope.CLASS) == {"concurrency": 100}
    with pytest.raises(InvalidOption, match="app:Mail: concurrency applies to all jobs of a class: declare it in the"):
        checked({"concurrency": 100}, "app:Mail")
    with pytest.raises(InvalidOption, match="Scheduler: concurrency cannot be set for jobs of all classes"):
        checked({"concurrency": 100}, "Scheduler", Scope.ALL)


def test_a_name_belongs_to_a_class() -> None:
    assert checked({"name": "Send an invoice"}, "options of app:Mail", Scope.CLASS) == {"name": "Send an invoice"}
    with pytest.raises(InvalidOption, match=r"name applies to all jobs .*; pass data .*: add_job\(Mail, .*A"):
        checked({"name": "A"}, "app:Mail", call="add_job(Mail, ")


@pytest.mark.parametrize("value", ["", "  ", "a\nb", "x" * 65, 7, "half\udcff"])
def test_a_name_is_text_for_people(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"name=.*: pass text of"):
        checked({"name": value}, "options of app:Mail", Scope.CLASS)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "5", 1_001])
def test_a_concurrency_is_a_whole_number(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"concurrency=.*: pass a whole number from 1 to 1,000"):
        checked({"concurrency": value}, "app:Mail", Scope.CLASS)
