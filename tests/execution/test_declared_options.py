"""Jobs that are added by their path, in a process that has their class, that has not, and that runs them itself."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from taskqueue import ClassOptions, Job, Scheduler, Status, StepwiseJob, task
from taskqueue.errors import InvalidOption
from taskqueue.retry import exponential

CLASS = """
from taskqueue import Job

class Mail(Job):
    options = {"queue": "mail", "retry": 3, "on_dependency_failure": "ignore", "unique": "only"}

    def start(self):
        return self.data
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a class that this process has not loaded."""
    name = f"shop_{secrets.token_hex(6)}"
    (tmp_path / f"{name}.py").write_text(CLASS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:Mail"


def test_a_class_that_is_loaded_here_is_obeyed_at_once(scheduler: Scheduler, path: str) -> None:
    __import__(path.partition(":")[0])

    first, again = scheduler.add_job(path), scheduler.add_job(path, retry=1)

    assert (first.options["queue"], first.options["retry"]) == ("mail", 3)
    assert again.id == first.id
    assert not first.snapshot.options.undeclared


def test_one_that_is_not_is_asked_for_by_whoever_runs_it(scheduler: Scheduler, path: str) -> None:
    job = scheduler.add_job(path, 1, retry=1)
    assert job.options["queue"] == "default"

    [ran] = scheduler.run_pending()

    assert (ran.status, ran.result, ran.attempt) == (Status.DONE, 1, 1)
    assert (ran.options["queue"], ran.options["retry"], ran.options["unique"]) == ("mail", 1, "only")
    assert [attempt.claims for attempt in ran.snapshot.attempts] == [2]


def test_a_job_that_is_run_here_by_its_path_has_the_options_of_its_class(scheduler: Scheduler, path: str) -> None:
    ran = scheduler.run_job(path, 2)

    assert (ran.status, ran.result, ran.options["queue"]) == (Status.DONE, 2, "mail")


def test_options_of_a_class_that_is_loaded_here_are_refused_here(scheduler: Scheduler, path: str) -> None:
    module = __import__(path.partition(":")[0])
    module.Mail.options = {"retries": 3}

    with pytest.raises(InvalidOption, match=r"options of shop_.*: there is no option 'retries'"):
        scheduler.add_job(path)


def test_concurrency_is_for_coroutine_functions() -> None:
    with pytest.raises(InvalidOption, match=r"concurrency=5 is for jobs that share an event loop: define start with"):
        type("Blocking", (Shared,), {"options": {"concurrency": 5}, "start": Job.on_success})
    with pytest.raises(InvalidOption, match=r"define .*send with async def"):
        task(concurrency=5)(send)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retyr": 3}, rf"^options of {__name__}:send: there is no option 'retyr': did you mean retry"),
        ({"queue": ""}, rf"^options of {__name__}:send: queue='': pass a name"),
        ({"id": "a"}, rf"^options of {__name__}:send: id applies to one job: pass it to add_job$"),
        ({"bind": True}, r"there is no option 'bind': call current_job\(\) in the task, or declare it with"),
    ],
)
def test_options_of_a_task_are_checked_when_it_is_declared(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        cast(Any, task)(**options)(send)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retyr": 3}, rf"^options of {__name__}:Mail: there is no option 'retyr': did you mean retry"),
        ({"queue": ""}, rf"^options of {__name__}:Mail: queue='': pass a name"),
        ({"id": "a"}, rf"^options of {__name__}:Mail: id applies to one job: pass it to add_job$"),
        ({"bind": True}, r"there is no option 'bind': call current_job\(\) in the task, or declare it with"),
        (["retry"], r"^options of Mail are \['retry'\]: declare a mapping of names to values$"),
    ],
)
@pytest.mark.parametrize("base", [Job, StepwiseJob, type("Retrying", (Job,), {"options": {"retry": 3}})])
def test_options_of_a_class_are_checked_when_it_is_defined(base: type[Job], options: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        type("Mail", (base,), {"options": options, "__module__": __name__})


def test_options_that_a_class_gets_from_a_base_are_checked_with_it() -> None:
    mixin = type("Mixin", (), {"options": {"retries": 3}})

    with pytest.raises(InvalidOption, match=r":Mail: there is no option 'retries': did you mean retry"):
        type("Mail", (mixin, Job), {})


def test_a_pause_beside_a_policy_with_pauses_is_refused_where_it_is_declared() -> None:
    options: dict[str, Any] = {"retry": exponential(1), "retry_interval": 5}

    with pytest.raises(InvalidOption, match="leave out retry_interval"):
        cast(Any, task)(**options)(send)
    with pytest.raises(InvalidOption, match="leave out retry_interval"):
        type("Mail", (Job,), {"options": options})


def test_a_base_class_may_declare_concurrency_and_leave_the_work_to_its_subclasses() -> None:
    base = type("Base", (Job,), {"options": {"concurrency": 5}})

    with pytest.raises(InvalidOption, match="concurrency=5 is for jobs that share an event loop: define start with"):
        type("Mail", (base,), {"start": Job.on_success})


def test_jobs_with_concurrency_run_one_at_a_time_in_the_caller(scheduler: Scheduler) -> None:
    jobs = scheduler.add_jobs([(Shared, number) for number in range(7)])
    at_once = scheduler.run_job(Shared, 7)

    assert [ran.result for ran in scheduler.run_pending()] == list(range(7))
    assert at_once.result == 7
    assert [job.refresh().result for job in jobs] == list(range(7))
    assert jobs[0].options["concurrency"] == 3
    assert "limits" not in jobs[0].options or jobs[0].options["limits"] == []


def send() -> None:
    """Send nothing."""


class Shared(Job):
    """A job that shares its event loop with others."""

    options: ClassVar[ClassOptions] = {"concurrency": 3}

    async def start(self) -> Any:
        return self.data
