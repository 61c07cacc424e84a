"""The sequence of one run, which a worker and the caller's process share: hooks, and what may interrupt them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskqueue import Interrupted, JobTimeout, Scheduler, Status, retry
from taskqueue.execution.attempt import finished, hooks
from taskqueue.execution.executor import Ran
from taskqueue.execution.loader import Loaded
from taskqueue.execution.received_values import complete
from taskqueue.model.job import Job
from taskqueue.model.lifecycle import outcomes
from tests.execution.test_executor import Context, Ending, Guard, ran


def test_a_timeout_calls_the_hooks_with_an_exception() -> None:
    class Hooked(Ending):
        heard: list[Exception]

        def on_failure(self, error: Exception) -> None:
            self.heard = [error]

    for error in (None, JobTimeout()):
        timed_out = ran(error, "timeout", Hooked)
        assert isinstance(timed_out.job, Hooked)
        [on_failure] = hooks(timed_out, Status.POSTPONED)
        on_failure()
        assert isinstance(timed_out.job.heard[0], TimeoutError)


def test_leaving_with_an_exit_code_calls_the_hooks_with_an_exception() -> None:
    left = ran(SystemExit(3), None)

    on_failure, on_last_failure, _ = hooks(left, Status.FAILED)
    assert on_failure.args == on_last_failure.args  # type: ignore[attr-defined]
    assert str(on_failure.args[0]) == "SystemExit: 3"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "names"), [(Status.WAITING, []), (Status.FAILED, ["finalize"])])
def test_an_interrupted_run_has_no_failure_for_its_hooks(status: Status, names: list[str]) -> None:
    interrupted = ran(Interrupted("shutdown"), "shutdown")
    assert interrupted.outcome == outcomes.Interrupted()

    assert [hook.__name__ for hook in hooks(interrupted, status)] == names


@pytest.mark.parametrize(
    ("status", "names"),
    [
        (Status.DONE, ["on_success", "finalize"]),
        (Status.WAITING, []),
        (Status.CANCELED, ["finalize"]),
    ],
)
def test_each_status_has_its_hooks(status: Status, names: list[str]) -> None:
    done = ran(None, None)

    assert [hook.__name__ for hook in hooks(done, status)] == names


def test_what_has_no_job_has_no_hooks() -> None:
    assert list(hooks(Ran(outcome=outcomes.Done(), job=None, error=None), Status.DONE)) == []


class Reading(Context):
    """Is interrupted while it reads the results that its job receives."""

    error: BaseException

    @property
    def scheduler(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "stop_reason", "outcome"),
    [
        (JobTimeout("timeout"), "timeout", outcomes.TimedOut),
        (Interrupted("cancel"), "cancel", outcomes.Canceled),
        (Interrupted("shutdown"), "shutdown", outcomes.Interrupted),
        (SystemExit(3), None, outcomes.Failed),
        (OSError("no answer"), None, outcomes.Failed),
    ],
)
def test_whatever_ends_the_reading_of_received_results_is_the_outcome(
    error: BaseException, stop_reason: str | None, outcome: type
) -> None:
    interrupts = Guard(stop_reason)
    context = Reading(interrupts)
    context.error = error

    ended = complete(Loaded(path="tests:Ending", make=Ending, work="start"), context, interrupts)

    assert ended is not None
    assert isinstance(ended.outcome, outcome)


class Hooked(Job):
    """Raises what its class says in a hook."""

    raised: BaseException = SystemExit(3)
    seen: ClassVar[list[str]] = []

    def start(self) -> str:
        return "done"

    def on_success(self) -> None:
        self.seen.append("on_success")
        raise self.raised

    def finalize(self) -> None:
        self.seen.append("finalize")


class Leaving(Hooked):
    """Leaves in a hook."""

    seen: ClassVar[list[str]] = []


class KeyedOff(Hooked):
    """Has a hook that Ctrl-C ends."""

    raised = KeyboardInterrupt()
    seen: ClassVar[list[str]] = []


class Choosy:
    """A retry policy that Ctrl-C ends."""

    def decide(self, situation: Any) -> None:
        raise KeyboardInterrupt

    def is_last(self, situation: Any) -> bool:
        return False


class Failing(Job):
    """Fails, and leaves the rest to its policy."""

    options: ClassVar = {"retry": retry.custom(Choosy)}

    def start(self) -> None:
        raise ValueError("no")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """Return a scheduler on an empty store."""
    with Scheduler(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as scheduler:
        yield scheduler


def test_a_hook_that_leaves_ends_no_process_that_runs_jobs(scheduler: Scheduler, caplog: Any) -> None:
    job = scheduler.add_job(Leaving)

    assert scheduler.run_pending()[0].status is Status.DONE
    assert (Leaving.seen, job.refresh().result) == (["on_success"], "done")
    assert "a hook was interrupted; the outcome is unchanged" in caplog.text


def test_ctrl_c_in_a_hook_reaches_the_caller(scheduler: Scheduler) -> None:
    job, other = scheduler.add_job(KeyedOff), scheduler.add_job(Leaving)

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()

    assert KeyedOff.seen == ["on_success"]
    assert job.refresh().status is Status.DONE
    assert other.refresh().status is Status.WAITING


def test_ctrl_c_in_a_retry_policy_reaches_the_caller_once_the_failure_is_kept(scheduler: Scheduler) -> None:
    job = scheduler.add_job(Failing)

    with pytest.raises(KeyboardInterrupt):
        scheduler.run_pending()

    assert job.refresh().status is Status.FAILED


def test_a_run_outside_of_an_event_loop_cannot_suspend() -> None:
    class Once:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def suspending() -> None:
        await Once()

    coroutine = suspending()
    with pytest.raises(RuntimeError, match=r"suspending .* suspended outside of an event loop"):
        finished(coroutine)
    coroutine.close()
