"""Hooks of the bootstrap file in real workers: around each run, also of many at once, and behind its stored outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue.daemon.protocol.messages import Ended, OutcomeSettled, Progressed, Stop
from taskqueue.model.record import Status
from tests.daemon.fake_node import FakeNode

JOBS = "tests.daemon.hooked_jobs"

PLAIN = """
from contextlib import suppress
from tests.daemon.hooked_jobs import TENANT, note


def around_run(job, proceed):
    TENANT.set(job.meta["tenant"])
    note(job, "before")
    try:
        proceed()
    except BaseException as error:
        note(job, type(error).__name__)
        raise
    finally:
        note(job, "after")


def run_ended(job, outcome):
    note(job, f"{outcome.name} {outcome.status.name} {TENANT.get()}")


def became_leader(scheduler):
    pass
"""

ASYNC = """
import asyncio
from tests.daemon.hooked_jobs import TENANT, note


async def around_run(job, proceed):
    await asyncio.sleep(0)
    TENANT.set(job.meta["tenant"])
    note(job, "before")
    try:
        await proceed()
    except BaseException as error:
        note(job, type(error).__name__)
        raise
    finally:
        await asyncio.sleep(0)
        note(job, "after")
"""

DEAF = """
import threading


def around_run(job, proceed):
    try:
        threading.Event().wait()  # say for a connection, in code that takes an interrupt for an error of its own
    except BaseException:
        {then}
    proceed()
"""


class Hooked:
    """A fake_node whose workers have hooks, which note in a file what they see."""

    def __init__(self, folder: Path, code: str, **settings: Any) -> None:
        (folder / "hooks.py").write_text(code)
        self.notes = folder / "notes"
        self.fake_node = FakeNode(bootstrap=folder / "hooks.py", url=f"sqlite:///{folder}/jobs.db", **settings)

    def run(self, job: str, tenant: str = "acme", do: str = "", **given: Any) -> Any:
        meta = {"tenant": tenant, "notes": str(self.notes)}
        return self.fake_node.run(f"{JOBS}:{job}", do, meta=meta, **given)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Hooked]:
    hooked = Hooked(tmp_path, PLAIN, max_children=1)  # a run stands behind the hooks of the one before
    with hooked.fake_node:
        yield hooked


@pytest.fixture
def awaiting(tmp_path: Path) -> Iterator[Hooked]:
    hooked = Hooked(tmp_path, ASYNC, max_children=3)  # a run that waits for a busy worker may be handed back
    with hooked.fake_node:
        yield hooked


def test_each_run_is_within_the_hook_and_its_threads_see_its_context(plain: Hooked) -> None:
    for tenant in ("acme", "beta"):
        run = plain.run("Threads", tenant)
        assert plain.fake_node.expect(Ended, run).confirm
        plain.fake_node.tell(OutcomeSettled(run.id, run.claims, accepted=True, status=int(Status.DONE)))
        assert json.loads(plain.fake_node.result(run)) == [tenant] * 4
    plain.fake_node.expect(Ended, plain.run("Threads", "gamma"))  # by the same worker, behind the hooks

    assert plain.noted()[:6] == [
        *["acme before", "acme after", "acme Done DONE acme"],
        *["beta before", "beta after", "beta Done DONE beta"],
    ]


def test_a_refused_outcome_is_none_that_has_ended(plain: Hooked) -> None:
    run = plain.run("Threads")
    plain.fake_node.expect(Ended, run)
    plain.fake_node.tell(OutcomeSettled(run.id, run.claims, accepted=False, status=int(Status.WAITING)))

    plain.fake_node.expect(Ended, plain.run("Threads", "beta"))
    assert plain.noted() == ["acme before", "acme after", "beta before", "beta after"]


@pytest.mark.parametrize("job", ["Waits", "WaitsAwaited"])
def test_a_cancel_passes_through_the_hook(plain: Hooked, job: str) -> None:
    run = plain.run(job)
    plain.fake_node.expect(Progressed, run)
    plain.fake_node.tell(Stop(id=run.id, claims=run.claims, reason="cancel"))

    assert plain.fake_node.expect(Ended, run).outcome == "Canceled"
    assert plain.noted() == ["acme before", "acme Interrupted", "acme after"]


@pytest.mark.parametrize("then", ["raise RuntimeError('no connection')", "return"])
def test_a_job_that_is_to_end_does_not_begin_behind_a_hook_that_took_the_interrupt(tmp_path: Path, then: str) -> None:
    hooked = Hooked(tmp_path, DEAF.format(then=then))
    with hooked.fake_node:
        run = hooked.run("Waits", timeout=0.2)

        assert hooked.fake_node.expect(Ended, run).outcome == "TimedOut"
        assert hooked.fake_node.all_of(Progressed, run) == []


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_async_hook_may_await_around_an_async_job(awaiting: Hooked, concurrency: int) -> None:
    runs = [awaiting.run("Awaited", tenant, concurrency=concurrency) for tenant in ("acme", "beta")]
    failing = awaiting.run("Awaited", "gamma", "fail", concurrency=concurrency)

    assert [awaiting.fake_node.result(run) for run in runs] == ["acme", "beta"]
    assert awaiting.fake_node.expect(Ended, failing).fields["failure"]["message"] == "as told"
    assert sorted(awaiting.noted()) == sorted(
        [f"{tenant} {what}" for tenant in ("acme", "beta", "gamma") for what in ("before", "after")]
        + ["gamma ValueError"]
    )


@pytest.mark.parametrize("reason", ["cancel", "timeout"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_interrupted_async_job_ends_as_it_does_without_a_hook(
    awaiting: Hooked, concurrency: int, reason: str
) -> None:
    run = awaiting.run("WaitsAwaited", concurrency=concurrency)
    awaiting.fake_node.expect(Progressed, run)
    awaiting.fake_node.tell(Stop(id=run.id, claims=run.claims, reason=reason))

    outcome, error = {"cancel": ("Canceled", "Interrupted"), "timeout": ("TimedOut", "JobTimeout")}[reason]
    assert awaiting.fake_node.expect(Ended, run).outcome == outcome
    assert awaiting.noted() == ["acme before", f"acme {error}", "acme after"]


def test_a_plain_hook_cannot_surround_many_runs_at_once(plain: Hooked) -> None:
    ended = plain.fake_node.expect(Ended, plain.run("Awaited", concurrency=3))

    assert ended.outcome == "Unloadable"
    assert "around_run of the bootstrap file is a plain function: write async def" in ended.fields["failure"]["message"]


def test_jobs_of_a_job_pass_before_add_of_the_bootstrap_file(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, "def before_add(new):\n    new.meta['by'] = new.job\n")
    with hooked.fake_node:
        assert hooked.fake_node.result(hooked.run("Adds")) == {"tenant": "acme", "by": "elsewhere:Job"}
