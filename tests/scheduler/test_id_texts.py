"""Ids that the application chooses: a text means one job of each class, wherever an id is taken."""

from __future__ import annotations

import pytest

from taskqueue import Scheduler, Status, task, workflows
from taskqueue.errors import DuplicateId, InvalidOption, InvalidQuery, JobNotFound
from taskqueue.model.ids import JobId, id_of_text
from tests.scheduler.jobs import Echo

ECHO = "tests.scheduler.jobs:Echo"
TEXT = "invoice-7"
ALL = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


@task
def bill(number: int) -> int:
    return number


def test_the_id_is_the_beginning_of_the_digest_of_class_and_text() -> None:
    assert id_of_text("shop:Invoice", TEXT) == JobId("e5423fd9ca8fe0d37a083f4f")


@ALL
def test_the_same_text_and_class_are_one_job(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, {"n": 1}, id=TEXT)
    again = scheduler.add_job(Echo, {"n": 1}, id=TEXT)
    other = scheduler.add_job("shop:Mail", {"n": 1}, id=TEXT)
    of_many = scheduler.add_jobs([(Echo, {"n": 1}, {"id": TEXT}), (Echo, {"n": 1}, {"id": "invoice-8"})])

    assert (first.id, first.id_text, first.existed) == (id_of_text(ECHO, TEXT), TEXT, False)
    assert (again.id, again.existed) == (first.id, True)
    assert (other.id == first.id, other.id_text) == (False, TEXT)
    assert [(job.id_text, job.existed) for job in of_many] == [(TEXT, True), ("invoice-8", False)]
    with pytest.raises(DuplicateId):
        scheduler.add_job(Echo, {"n": 2}, id=TEXT)


@ALL
def test_a_text_is_accepted_wherever_an_id_is(scheduler: Scheduler) -> None:
    added = scheduler.add_job(Echo, {"n": 1}, id=TEXT)
    scheduler.add_job(Echo, {"n": 1})

    assert scheduler.get_job(TEXT) == added
    assert scheduler.get_job(f"{ECHO}:{TEXT}") == added
    assert scheduler.update_job(TEXT, priority=3).priority == 3
    assert scheduler.why(TEXT).startswith(f"Job {added.id} ({ECHO}:{TEXT}) is WAITING.")
    assert scheduler.logs(TEXT) == []
    assert {event.job_id for event in scheduler.events_of(TEXT)} <= {added.id}
    assert list(scheduler.find_jobs({"id_text": TEXT})) == [added]
    assert scheduler.find_jobs(order="id", after=TEXT) == scheduler.find_jobs(order="id", after=added)
    assert scheduler.cancel_job(TEXT).status is Status.CANCELED
    assert scheduler.wait_for([TEXT, added]) == [added, added]
    copy = scheduler.recover_job(TEXT)
    assert (copy.recovered_from, copy.id_text) == (added.id, None)
    assert scheduler.get_job(TEXT) == added


def test_a_text_of_jobs_of_several_classes_is_written_with_its_class(scheduler: Scheduler) -> None:
    added = [scheduler.add_job(job, id=TEXT) for job in ("shop:Invoice", "shop:Mail")]

    with pytest.raises(JobNotFound, match=r"name the class as well: .*shop:Invoice:invoice-7"):
        scheduler.get_job(TEXT)
    with pytest.raises(JobNotFound, match="name the class as well"):
        scheduler.wait_for(TEXT)
    assert [scheduler.get_job(f"{job.job}:{TEXT}") for job in added] == added


def test_a_text_may_have_colons_and_look_like_the_beginning_of_an_id(scheduler: Scheduler) -> None:
    added = [scheduler.add_job("shop:Invoice", id=text) for text in ("eu:7:b", "65f0", "ü 7")]

    assert [scheduler.get_job(text) for text in ("eu:7:b", "65f0", "ü 7")] == added
    assert scheduler.get_job("shop:Invoice:eu:7:b") == added[0]


def test_digits_of_an_id_are_this_id(scheduler: Scheduler) -> None:
    digits = "65f000000000000000000000"
    added = scheduler.add_job(Echo, id=digits)

    assert (str(added.id), added.id_text) == (digits, None)


def test_a_job_depends_on_a_text_with_its_class(scheduler: Scheduler) -> None:
    first = scheduler.add_job("shop:Invoice", id=TEXT)
    name = f"shop:Invoice:{TEXT}"

    assert scheduler.add_job(Echo, depends_on=name).depends_on == (first.id,)
    assert scheduler.add_job(Echo, depends_on={name: "ignore"}).depends_on == (first.id,)
    assert scheduler.add_job(Echo, parent=name).parent == first.id


@ALL
def test_a_text_alone_names_a_job_that_is_the_only_one_with_it(scheduler: Scheduler) -> None:
    first = scheduler.add_job("shop:Invoice", id=TEXT)
    plain = scheduler.add_job("shop:Mail")
    [_, second, third] = scheduler.add_jobs(
        [
            (Echo, 1, {"id": "echo-1"}),
            (Echo, 2, {"depends_on": {"echo-1": "ignore", TEXT: "cancel"}}),
            (Echo, 3, {"parent": TEXT}),
        ]
    )

    assert scheduler.add_job(Echo, depends_on=TEXT).depends_on == (first.id,)
    assert scheduler.add_job(Echo, depends_on=[TEXT, plain]).depends_on == (first.id, plain.id)
    assert scheduler.add_job_once(Echo, 4, depends_on=TEXT, parent=TEXT).parent == first.id
    assert second.depends_on == (id_of_text(ECHO, "echo-1"), first.id)
    assert third.parent == first.id
    for named in workflows.chain(scheduler, Echo, Echo, parent=TEXT).processes:
        assert named.parent == first.id


def test_a_text_alone_that_names_no_job_or_several_is_refused_with_the_way_out(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match=f"depends_on='{TEXT}': .*with its class: 'shop:Invoice:invoice-7'"):
        scheduler.add_job(Echo, depends_on=TEXT)
    for job in ("shop:Invoice", "shop:Mail"):
        scheduler.add_job(job, id=TEXT)
    with pytest.raises(InvalidOption, match=r"parent: .*name the class as well: shop:.*:invoice-7 or shop:"):
        scheduler.add_job(Echo, parent=TEXT)
    with pytest.raises(InvalidOption, match="depends_on='a' is the id of several jobs, so name the class"):
        scheduler.add_jobs([(Echo, 1, {"id": "a"}), ("shop:Mail", 1, {"id": "a"}), (Echo, 2, {"depends_on": "a"})])


def test_the_next_of_a_series_has_no_text(scheduler: Scheduler) -> None:
    scheduler.add_job(Echo, {"n": 1}, id=TEXT, interval="1h")
    [ran] = scheduler.run_pending(once=True)
    [following] = scheduler.find_jobs({"status": Status.POSTPONED})

    assert (ran.id_text, following.id_text) == (TEXT, None)
    assert scheduler.get_job(TEXT) == ran


def test_a_task_has_it_too(blocking: Scheduler) -> None:
    added = bill.using(id="bill-9").add(blocking, 9)

    assert blocking.get_job("bill-9") == added
    assert bill.using(id="bill-9").add(blocking, 9).existed


@pytest.mark.parametrize("text", ["", "x" * 65, "line\nbreak", "nul\0", 7])
def test_what_no_id_can_be_is_refused_with_the_way_out(scheduler: Scheduler, text: object) -> None:
    with pytest.raises(InvalidOption, match=r"Echo: id=.*: pass text of 1 to 64 printable characters.* unique="):
        scheduler.add_job(Echo, id=text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["nope", "nul\0", "half\udcff", "x" * 2000, "shop:Invoice:nope", "shop:Invoice:half\udcff"]
)
def test_a_text_that_no_job_has_is_not_found(scheduler: Scheduler, text: str) -> None:
    with pytest.raises(JobNotFound, match="no job has this text as its id"):
        scheduler.get_job(text)
    with pytest.raises(InvalidQuery, match="the text of an id is id_text"):
        scheduler.count_jobs({"id": "nope"})
