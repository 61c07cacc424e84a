"""Assertions about the jobs that were added, and their messages."""

from __future__ import annotations

from datetime import date

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption
from taskqueue.testing import Jobs
from tests.testing.work import Kind, Letter, Mail, Parent, Post, stamp


def test_an_added_job_is_found_by_class_data_and_options(scheduler: Scheduler, jobs: Jobs) -> None:
    process = scheduler.add_job(Mail, {"to": "a", "text": "hello"}, priority=3, at="+1 hour")

    assert jobs.assert_added(Mail) == process
    assert jobs.assert_added(Mail, data={"to": "a"}, queue="mail", priority=3, at="+1 hour", count=1) == process
    assert jobs.assert_added("tests.testing.work:Mail", {"text": "hello"}) == process
    assert jobs.added() == [process]


def test_the_meta_that_a_test_names_is_compared(scheduler: Scheduler, jobs: Jobs) -> None:
    process = scheduler.add_job(Mail, {"to": "a"}, meta={"tenant": "acme", "request": "r-7"})

    assert jobs.assert_added(Mail, meta={"tenant": "acme"}) == process
    with pytest.raises(AssertionError, match=r"meta\['tenant'\] is 'acme'"):
        jobs.assert_added(Mail, meta={"tenant": "beta"})


def test_the_message_names_what_was_added_instead(scheduler: Scheduler, jobs: Jobs) -> None:
    scheduler.add_job(Parent)
    scheduler.add_job(Mail, {"to": "b"})

    differences = ["data has no 'cc'", "data['to'] is 'b'", "queue is 'mail'"]
    with pytest.raises(AssertionError) as raised:
        jobs.assert_added(Mail, data={"to": "a", "cc": "c"}, queue="urgent")

    assert str(raised.value).splitlines() == [
        "no job was added as tests.testing.work:Mail data={'to': 'a', 'cc': 'c'} queue='urgent'; added were:",
        f"  tests.testing.work:Mail data={{'to': 'b'}} queue='mail' WAITING <- {'; '.join(differences)}",
        "  tests.testing.work:Parent data=None queue='default' WAITING",
    ]


def test_data_that_is_no_mapping_is_compared_as_a_whole(scheduler: Scheduler, jobs: Jobs) -> None:
    scheduler.add_job(Mail, [1, 2])

    jobs.assert_added(Mail, data=(1, 2))
    with pytest.raises(AssertionError, match=r"data is \[1, 2\]"):
        jobs.assert_added(Mail, data=[1])


def test_the_number_of_jobs_may_be_asserted(scheduler: Scheduler, jobs: Jobs) -> None:
    scheduler.add_jobs([(Mail, number) for number in range(12)])

    jobs.assert_added(Mail, count=12)
    with pytest.raises(
        AssertionError, match=r"(?s)12 instead of 2 jobs were added as .*:Mail; added were:.*and 2 more"
    ):
        jobs.assert_added(Mail, count=2)


def test_a_job_that_was_not_to_be_added_is_named(scheduler: Scheduler, jobs: Jobs) -> None:
    jobs.refute_added()
    with pytest.raises(AssertionError, match=r"no job was added as tests.testing.work:Mail; no job was added"):
        jobs.assert_added(Mail)
    scheduler.add_job(Mail, {"to": "a"})

    jobs.refute_added(Parent)
    jobs.refute_added(Mail, data={"to": "b"})
    with pytest.raises(AssertionError, match=r"(?s)expected no new job as .*Mail data=.*there are:\n.*'to': 'a'"):
        jobs.refute_added(Mail, data={"to": "a"})


def test_an_option_that_does_not_exist_is_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidOption, match="assert_added: there is no option 'queu'"):
        jobs.assert_added(Mail, queu="mail")


def test_data_of_a_declared_type_are_found_as_a_whole_and_by_their_fields(scheduler: Scheduler, jobs: Jobs) -> None:
    letter = Letter("ann", date(2030, 1, 1))
    scheduler.add_job(Post, letter)

    jobs.assert_added(Post, data=letter)
    jobs.assert_added(Post, data={"to": "ann", "day": date(2030, 1, 1)})
    jobs.assert_added(Post, data={"day": "2030-01-01", "kind": Kind.BILL})
    with pytest.raises(AssertionError, match=r"data\['kind'\] is 'bill'"):
        jobs.assert_added(Post, data={"kind": Kind.ADVERT})
    with pytest.raises(AssertionError, match=r"data is Letter\(to='ann'"):
        jobs.assert_added(Post, data=Letter("bob", date(2030, 1, 1)))


def test_a_value_within_the_data_is_found_as_a_whole_and_by_some_of_its_keys(scheduler: Scheduler, jobs: Jobs) -> None:
    letter = Letter("ann", date(2030, 1, 1))
    scheduler.add_job(stamp, {"letter": letter})
    scheduler.add_job(Mail, {"to": {"name": "ann", "lines": [1, 2]}})

    jobs.assert_added(stamp, data={"letter": letter})
    jobs.assert_added(stamp, data={"letter": {"to": "ann", "day": date(2030, 1, 1)}})
    jobs.assert_added(Mail, data={"to": {"name": "ann"}})
    with pytest.raises(AssertionError, match=r"<- data\['letter'\] has no 'from'; data\['letter'\]\['to'\] is 'ann'"):
        jobs.assert_added(stamp, data={"letter": {"to": "bob", "from": "eve"}})
