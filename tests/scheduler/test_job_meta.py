"""The meta of a job travels to its runs, retries, copies, occurrences, children and log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from taskqueue import AsyncScheduler, Job, JobOptions, NewJob, Retry, Scheduler, StepwiseJob, workflows
from taskqueue.errors import ConfigError, InvalidJob, InvalidOption
from taskqueue.model import log_fields
from taskqueue.scheduler import json_shapes

ACME = {"tenant": "acme", "request": "r-7"}


class Seeing(Job):
    """Returns its meta, after as many failures as its data say."""

    def start(self) -> dict[str, str]:
        if self.attempt <= (self.data or 0):
            raise Retry(0)
        return dict(self.meta)


class Adding(Job):
    """Adds jobs in each way, and returns their ids."""

    def start(self) -> list[Any]:
        scheduler = self.scheduler
        return [
            scheduler.add_job(Seeing).id,
            scheduler.add_job("elsewhere:Seeing", meta=["request=r-8", "step=2"]).id,
            *[one.id for one in scheduler.add_jobs([(Seeing, None), (Seeing, None, {"meta": {"step": "3"}})])],
            scheduler.add_job_once(Seeing, "once").id,
            workflows.chain(scheduler, Seeing, Seeing).processes[1].id,
            scheduler.schedule("nightly", Seeing, every="1h").trigger().id,
        ]


class Overfull(Job):
    """Adds a job with a key more than the present one has."""

    def start(self) -> None:
        self.scheduler.add_job(Seeing, meta={"more": "1"})


class Stepping(StepwiseJob):
    """Keeps the meta that its steps have seen."""

    def initialize(self) -> None:
        self.state = [dict(self.meta)]

    def iterate(self) -> bool:
        self.state.append(dict(self.meta))
        return len(self.state) < 3

    def complete(self) -> Any:
        return self.state


class Logging(Job):
    """Logs by itself and by another logger."""

    def start(self) -> None:
        self.log.warning("mine")
        logging.getLogger("library").warning("of a library")


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_the_meta_is_seen_by_each_attempt_and_kept_with_the_job(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Seeing, 1, retry=1, retry_interval=0, meta=ACME)
    plain = scheduler.add_job(Seeing)

    scheduler.run_pending()

    assert job.refresh().result == ACME
    assert [attempt.outcome for attempt in job.attempts] == ["Failed", "Done"]
    assert (job.meta, plain.refresh().meta, plain.result) == (ACME, {}, {})
    assert (job.options["meta"], plain.options["meta"]) == (ACME, {})
    assert json_shapes.job(job.snapshot)["meta"] == ACME
    assert [one.id for one in scheduler.get_jobs({"meta.tenant": "acme"})] == [job.id]


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_a_recovered_copy_and_the_occurrences_of_a_series_have_it(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Seeing, meta=ACME)
    scheduler.add_job(Seeing, "series", interval="1h", max_runs=2, meta={"tenant": "beta"})
    scheduler.run_pending()

    copy = scheduler.recover_job(job.id)
    [second] = scheduler.get_jobs({"meta.tenant": "beta", "status": "POSTPONED"})

    assert copy.meta == ACME
    assert second.meta == {"tenant": "beta"}


def test_each_job_of_a_schedule_has_it(scheduler: Scheduler) -> None:
    schedule = scheduler.schedule("nightly", Seeing, every="1h", meta=ACME)

    assert schedule.trigger().meta == ACME
    assert scheduler.schedule("nightly", Seeing, every="1h", meta=ACME).snapshot == schedule.refresh().snapshot


def test_jobs_that_are_added_in_a_run_inherit_it_and_their_own_values_win(blocking: Scheduler) -> None:
    adding = blocking.add_job(Adding, meta=ACME)
    blocking.run_pending(once=True)

    found = {job.id: job.meta for job in blocking.get_jobs({})}
    own = {"tenant": "acme", "request": "r-8", "step": "2"}

    assert [found[id] for id in adding.refresh().result] == [ACME, own, ACME, {**ACME, "step": "3"}, ACME, ACME, ACME]


def test_outside_of_a_run_nothing_is_inherited(blocking: Scheduler) -> None:
    blocking.run_job(Seeing, meta=ACME)

    assert blocking.add_job(Seeing).meta == {}


def test_steps_and_inline_runs_see_it(scheduler: Scheduler) -> None:
    assert scheduler.run_job(Stepping, meta=ACME).result == [ACME] * 3


def test_a_job_cannot_add_one_whose_meta_grows_out_of_bounds(blocking: Scheduler) -> None:
    full = {f"key-{number}": "" for number in range(16)}

    with pytest.raises(InvalidOption, match="17 keys, including those of the job that adds it: pass up to 16"):
        blocking.run_job(Overfull, meta=full, reraise=True)


def test_another_meta_makes_no_other_job(scheduler: Scheduler) -> None:
    first = scheduler.add_job_once(Seeing, 1, meta={"request": "r-1"})
    again = scheduler.add_job_once(Seeing, 1, meta={"request": "r-2"})

    assert (again.id, again.existed, again.meta) == (first.id, True, {"request": "r-1"})


def test_many_jobs_have_each_their_own(scheduler: Scheduler) -> None:
    jobs = scheduler.add_jobs([*[(Seeing, None, JobOptions(meta={"n": str(n)})) for n in range(3)], (Seeing, None)])

    assert [job.meta for job in jobs] == [{"n": "0"}, {"n": "1"}, {"n": "2"}, {}]


def test_a_wrong_meta_is_refused_by_the_name_of_its_job(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match=r"jobs\[1\]\..*:Seeing: meta=\{'a b': ''\}: the key 'a b'"):
        scheduler.add_jobs([(Seeing, None), (Seeing, None, WRONG)])
    assert list(scheduler.get_jobs({})) == []


def test_it_belongs_to_one_job(blocking: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="Scheduler: meta applies to one job: pass it to add_job"):
        Scheduler(meta=ACME)  # type: ignore[call-arg]


def tenant(new: NewJob) -> None:
    new.meta["tenant"] = f"of {new.job.rpartition(':')[2]} {new.data}"


@pytest.fixture
def hooked(scheduler: Scheduler) -> Scheduler:
    """Return a client, blocking or of asyncio, whose hook adds the tenant."""
    client: Any = getattr(scheduler, "inner", scheduler)
    client._before_add = tenant
    return scheduler


def test_before_add_adds_to_the_meta_of_each_job(hooked: Scheduler) -> None:
    alone = hooked.add_job(Seeing, 0, meta={"request": "r-7"})
    together = hooked.add_jobs([(Seeing, 0), (Seeing, 0, JobOptions(meta={"request": "r-8"}))])
    others = [hooked.add_job_once(Seeing, 1), hooked.run_job(Seeing, 0)]

    mine = {"tenant": "of Seeing 0"}
    assert alone.meta == {"request": "r-7", **mine}
    assert [job.meta for job in together] == [mine, {"request": "r-8", **mine}]
    assert [job.meta for job in others] == [{"tenant": "of Seeing 1"}, mine]
    assert others[1].result == mine


def test_before_add_sees_what_the_job_inherits_and_may_take_it_away(url: str, blocking: Scheduler) -> None:
    def forget(new: NewJob) -> None:
        assert new.options == {"priority": 3}
        del new.meta["tenant"]

    class Handing(Job):
        def start(self) -> Any:
            with Scheduler(url, before_add=forget) as other:
                return dict(other.add_job("elsewhere:Job", priority=3).meta)

    globals()["Handing"] = Handing
    Handing.__qualname__ = "Handing"

    assert blocking.run_job(Handing, meta=ACME).result == {"request": "r-7"}


def test_a_coroutine_function_is_awaited_in_the_context_of_the_call(url: str) -> None:
    request = ContextVar("request", default="")

    async def slowly(new: NewJob) -> None:
        await asyncio.sleep(0)
        new.meta["request"] = request.get()

    async def main() -> list[Any]:
        async with AsyncScheduler(url, before_add=slowly) as scheduler:
            request.set("r-9")
            return [await scheduler.add_job(Seeing), *await scheduler.add_jobs([(Seeing, None)])]

    assert [job.meta for job in asyncio.run(main())] == [{"request": "r-9"}] * 2
    with pytest.raises(ConfigError, match="is a coroutine function: pass it to an AsyncScheduler"):
        Scheduler(url, before_add=slowly)


def test_a_hook_that_fails_is_logged_and_the_job_is_added(hooked: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    def broken(new: NewJob) -> None:
        new.meta["half"] = "done"
        raise LookupError("no tenant")

    getattr(hooked, "inner", hooked)._before_add = broken

    assert hooked.add_job(Seeing, meta=ACME).meta == ACME
    assert "before_add failed; the job is added with its previous meta" in caplog.text
    assert "LookupError: no tenant" in caplog.text


def test_an_error_of_ours_refuses_the_job(hooked: Scheduler) -> None:
    def refuse(new: NewJob) -> None:
        raise InvalidJob(f"{new.job} needs a tenant")

    def number(new: NewJob) -> None:
        new.meta["tenant"] = 7  # type: ignore[assignment]

    def nothing(new: NewJob) -> None:
        new.meta = None  # type: ignore[assignment]

    client: Any = getattr(hooked, "inner", hooked)
    wrong = ((refuse, "needs a tenant"), (number, "the value of 'tenant': pass text"), (nothing, "meta=None: pass"))
    for hook, words in wrong:
        client._before_add = hook
        with pytest.raises(InvalidJob, match=words):
            hooked.add_job(Seeing)
    assert list(hooked.get_jobs({})) == []


WRONG: JobOptions = {"meta": {"a b": ""}}


class Kept(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Return the log records of this process, which has the fields of runs as a node has them."""
    handler, factory = Kept(), logging.getLogRecordFactory()
    log_fields.install()
    logging.getLogger().addHandler(handler)
    yield handler.records
    logging.getLogger().removeHandler(handler)
    logging.setLogRecordFactory(factory)


def test_each_line_that_is_logged_in_a_run_has_it(blocking: Scheduler, lines: list[logging.LogRecord]) -> None:
    blocking.run_job(Logging, meta=ACME)

    found = [line for line in lines if line.getMessage() in ("mine", "of a library")]
    assert [vars(line)["meta"] for line in found] == [ACME, ACME]
