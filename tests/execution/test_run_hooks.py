"""``around_run`` and ``run_ended`` in the calling process: what they see, and what their errors change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Thread
from typing import Any

import pytest

from taskqueue import (
    Fail,
    Job,
    Retry,
    RunningJob,
    RunOutcome,
    Scheduler,
    ShellJob,
    Snooze,
    Status,
    StepwiseJob,
    task,
)
from taskqueue.errors import ConfigError

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
Proceed = Callable[[], Any]
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


class Plain(Job):
    """Says in which tenant it runs, and raises what its data name."""

    def start(self) -> str:
        SEEN.append("start")
        if isinstance(self.data, str):
            raise {
                "value": ValueError("no such value"),
                "snooze": Snooze(0),
                "exit": SystemExit(3),
                "stop": StopIteration("no more"),
            }[self.data]
        return TENANT.get()


class Awaited(Job):
    """Does so in an event loop."""

    async def start(self) -> str:
        await asyncio.sleep(0)
        SEEN.append("start")
        if self.data:
            raise ValueError(self.data)
        return await asyncio.to_thread(TENANT.get)


class Hooked(Job):
    """Has hooks of its own."""

    def start(self) -> None: ...

    def on_success(self) -> None:
        SEEN.append("on_success")


class InSteps(StepwiseJob):
    """Has two iterations."""

    def initialize(self) -> None:
        self.state = 0

    def iterate(self) -> bool:
        self.state += 1
        return bool(self.state < 2)

    def complete(self) -> Any:
        return self.state


@task
def plain_task(name: str) -> str:
    return f"{name} of {TENANT.get()}"


def within(job: RunningJob, proceed: Proceed) -> None:
    SEEN.append(("before", job.job.partition(":")[2], job.attempt, dict(job.meta)))
    TENANT.set(job.meta.get("tenant", "unknown"))
    try:
        proceed()
    except BaseException as error:
        SEEN.append(type(error).__name__)
        raise
    finally:
        SEEN.append("after")


async def within_async(job: RunningJob, proceed: Proceed) -> None:
    SEEN.append("before")
    TENANT.set("acme")
    try:
        await proceed()
    finally:
        SEEN.append("after")


async def awaiting(job: RunningJob, proceed: Proceed) -> None:
    await asyncio.sleep(0)
    await within_async(job, proceed)
    await asyncio.sleep(0)


@contextmanager
def hooked(url: str, around_run: Any = None, run_ended: Any = None) -> Iterator[Scheduler]:
    with Scheduler(url, around_run=around_run, run_ended=run_ended) as scheduler:
        yield scheduler


@pytest.mark.parametrize("hook", [within, within_async])
def test_a_job_that_raises_stop_iteration_does_not_make_its_hook_fail(
    url: str, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(url, hook) as scheduler:
        job = scheduler.run_job(Plain, "stop")

    assert job.error is not None
    assert (job.status, job.error.type, job.error.message) == (Status.FAILED, "StopIteration", "no more")
    assert SEEN[-1] == "after"
    assert "around_run" not in caplog.text


def test_a_run_is_within_the_hook_and_sees_its_context_variables(url: str) -> None:
    with hooked(url, within) as scheduler:
        job = scheduler.run_job(Plain, meta={"tenant": "acme"})

    assert job.result == "acme"
    assert SEEN == [("before", "Plain", 1, {"tenant": "acme"}), "start", "after"]
    assert TENANT.get() == "nobody"


@pytest.mark.parametrize("hook", [within, within_async, awaiting])
def test_an_async_job_is_within_it_too(url: str, hook: Any) -> None:
    with hooked(url, hook) as scheduler:
        job, failed = scheduler.run_job(Awaited, meta={"tenant": "acme"}), scheduler.run_job(Awaited, "broken")

    assert job.result == "acme"
    assert (failed.status, failed.error and failed.error.message) == (Status.FAILED, "broken")
    assert [one for one in SEEN if one in ("start", "after")] == ["start", "after"] * 2


def test_an_async_hook_needs_no_event_loop_around_a_plain_job(url: str) -> None:
    class Inner(Job):
        def start(self) -> str:
            return asyncio.run(asyncio.to_thread(TENANT.get))

    globals()["Inner"], Inner.__qualname__ = Inner, "Inner"
    with hooked(url, within_async) as scheduler:
        assert scheduler.run_job(Inner).result == "acme"
        assert scheduler.run_job(Plain, "value").status is Status.FAILED
    assert SEEN == ["before", "after", "before", "start", "after"]


def test_tasks_commands_and_steps_are_within_it(url: str) -> None:
    with hooked(url, within) as scheduler:
        assert scheduler.run_job(plain_task, {"name": "a letter"}, meta={"tenant": "acme"}).result == "a letter of acme"
        assert scheduler.run_job(ShellJob, {"argv": ["true"]}).is_done
        assert scheduler.run_job(InSteps).result == 2
    assert [one[1] for one in SEEN if one != "after"][:6] == ["plain_task", "ShellJob", *["InSteps"] * 4]


def test_the_errors_of_a_job_pass_through_it_and_stay_as_they_are(url: str) -> None:
    with hooked(url, within) as scheduler:
        failed = scheduler.run_job(Plain, "value", retry=1, retry_interval=0)
        scheduler.run_pending()
        failed.refresh()
        left = scheduler.run_job(Plain, "exit")

    assert failed.error is not None
    trace = failed.error.traceback
    assert "ValueError: no such value" in trace
    assert "in start" in trace
    assert "test_run_hooks.py" in trace.splitlines()[1]
    assert "in within" not in trace
    assert left.error is not None
    assert left.error.type == "SystemExit"
    assert [one[2] for one in SEEN if isinstance(one, tuple)] == [1, 2, 1]
    assert SEEN.count("ValueError") == 2


def test_a_job_that_goes_on_later_is_no_error_to_it(url: str) -> None:
    with hooked(url, within) as scheduler:
        assert scheduler.run_job(Plain, "snooze").cause == "snoozed"
    assert SEEN[1:] == ["start", "after"]


def broken_before(job: RunningJob, proceed: Proceed) -> None:
    raise LookupError("before")


def broken_behind(job: RunningJob, proceed: Proceed) -> None:
    proceed()
    raise LookupError("behind")


def silent(job: RunningJob, proceed: Proceed) -> None:
    """Return without the job."""


def swallowing(job: RunningJob, proceed: Proceed) -> None:
    with suppress(ValueError):
        proceed()


def twice(job: RunningJob, proceed: Proceed) -> None:
    proceed()
    proceed()


async def broken_async(job: RunningJob, proceed: Proceed) -> None:
    await asyncio.Event().wait()


def returning(job: RunningJob, proceed: Proceed) -> Any:
    return within_async(job, proceed)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (broken_before, "LookupError: before"),
        (broken_behind, "LookupError: behind"),
        (silent, "around_run returned without calling proceed()"),
        (twice, "around_run called proceed() twice: call it once"),
        (broken_async, "around_run failed"),
        (returning, "write async def around_run, and await proceed() in it"),
    ],
)
def test_a_hook_that_fails_is_logged_and_changes_nothing(
    url: str, hook: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(url, hook) as scheduler:
        job, failed = scheduler.run_job(Plain), scheduler.run_job(Plain, "value")

    assert (job.result, failed.status) == ("nobody", Status.FAILED)
    assert failed.error is not None
    assert failed.error.type == "ValueError"
    assert SEEN == ["start", "start"]
    assert words in caplog.text


def test_a_hook_cannot_swallow_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with hooked(url, swallowing) as scheduler:
        assert scheduler.run_job(Plain, "value").status is Status.FAILED
    assert caplog.text == ""


@pytest.mark.parametrize("proceeds", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (Fail("not in this tenant"), Status.FAILED, "failed"),
        (Retry(60), Status.POSTPONED, "retry"),
        (Snooze(60), Status.POSTPONED, "snoozed"),
    ],
)
def test_an_error_of_ours_is_the_outcome(
    url: str, error: Exception, status: Status, cause: str, proceeds: bool
) -> None:
    def refusing(job: RunningJob, proceed: Proceed) -> None:
        if proceeds:
            proceed()
        raise error

    with hooked(url, refusing) as scheduler:
        job = scheduler.run_job(Plain, retry=1)

    assert (job.status, job.cause) == (status, cause)
    assert ["start"] * proceeds == SEEN


def test_run_ended_sees_each_stored_outcome(url: str) -> None:
    def ended(job: RunningJob, outcome: RunOutcome) -> None:
        SEEN.append((outcome.name, outcome.status.name, str(outcome.error or ""), job.attempt, job.data, job.queue))
        assert outcome.took >= 0

    with hooked(url, run_ended=ended) as scheduler:
        scheduler.run_job(Hooked)
        scheduler.run_job(Plain, "value", retry=1, retry_interval=0)
        scheduler.run_pending()
        scheduler.run_job(Plain, "snooze")
        scheduler.run_job("elsewhere:Missing")

    assert [one for one in SEEN if one != "start"] == [
        "on_success",
        ("Done", "DONE", "", 1, None, "default"),
        ("Failed", "WAITING", "no such value", 1, "value", "default"),
        ("Failed", "FAILED", "no such value", 2, "value", "default"),
        ("Snoozed", "WAITING", "", 1, "snooze", "default"),
    ]


def test_an_async_run_ended_is_awaited_and_its_error_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def ended(job: RunningJob, outcome: RunOutcome) -> None:
        await asyncio.sleep(0)
        SEEN.append(outcome.name)
        raise LookupError("no server")

    with hooked(url, run_ended=ended) as scheduler:
        assert scheduler.run_job(Plain).is_done
    assert SEEN == ["start", "Done"]
    assert "a hook failed after its job had ended; the outcome is unchanged" in caplog.text


def test_ctrl_c_in_a_hook_reaches_the_caller(url: str) -> None:
    def pressed(job: RunningJob, proceed: Proceed) -> None:
        raise KeyboardInterrupt

    with hooked(url, pressed) as scheduler:
        with pytest.raises(KeyboardInterrupt):
            scheduler.run_job(Plain)
        [job] = scheduler.get_jobs({})
    assert (job.status, job.cause, SEEN) == (Status.WAITING, "interrupted", [])


def test_a_thread_of_a_run_has_the_context_of_its_process(url: str) -> None:
    found: list[str] = []

    class Threaded(Job):
        def start(self) -> None:
            thread = Thread(target=lambda: found.append("ran"))
            thread.start()
            thread.join()

    globals()["Threaded"], Threaded.__qualname__ = Threaded, "Threaded"
    with hooked(url, within) as scheduler:
        assert scheduler.run_job(Threaded).is_done
    assert found == ["ran"]


def test_a_hook_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="around_run='within' cannot be called: define a function"):
        Scheduler(url, around_run="within")  # type: ignore[arg-type]
