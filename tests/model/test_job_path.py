"""Under which path a job is stored, and what is found under a path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Interrupted, Job, Scheduler, ShellJob
from taskqueue.errors import InvalidJob
from taskqueue.execution.loader import CannotLoad, load
from taskqueue.model.job_path import path_of
from tests.scheduler import jobs
from tests.scheduler.jobs import Echo


class Outer:
    class Nested(Job):
        pass


def local() -> Any:
    """Return what exists in a function only."""

    class Local(Job):
        pass

    return Local


class Replaced(Job):
    pass


first = Replaced


class Replaced(Job):  # type: ignore[no-redef]
    pass


def test_the_import_path_is_the_name() -> None:
    assert path_of(Echo) == "tests.scheduler.jobs:Echo"
    assert path_of(jobs.add) == "tests.scheduler.jobs:add"
    assert path_of(ShellJob) == "taskqueue.execution.shell_job:ShellJob"
    assert path_of("shop:Reports.monthly") == "shop:Reports.monthly"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Outer.Nested, "class Outer.Nested is nested"),
        (local(), "is nested"),
        (first, "is not what tests.model.test_job_path.Replaced names"),
        (Job, "Job itself does no work"),
        (Echo(), "Echo() is an instance: pass the class"),
        (jobs.undecorated, "undecorated is a plain function: decorate it with @task"),
        (jobs.Reports, "is not a job"),
        (None, "None is not a job"),
        ("Mail", "'Mail' is not an import path"),
        ("shop.Mail", "is not an import path"),
        ("shop:Mail.a.b", "is not an import path"),
        ("shop:", "is not an import path"),
        ("shop:1", "is not an import path"),
    ],
)
def test_what_a_worker_could_not_import_is_refused(scheduler: Scheduler, job: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        scheduler.add_job(job)

    assert words in str(refused.value)


SCRIPT = """
from taskqueue import Job, Scheduler, task

class Mine(Job):
    def start(self):
        return __name__

@task
def mine():
    return __name__

if __name__ == "__main__":
    with Scheduler("jobs.db") as scheduler:
        processes = [scheduler.add_job(Mine), scheduler.add_job(mine)]
        scheduler.run_pending()
        print([(one.job, one.refresh().result) for one in processes])
"""


def python(folder: Path, *arguments: str, **more: Any) -> str:
    """Return what a Python process says, on either output."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
        **more,
    )
    return str(ended.stdout + ended.stderr)


def test_a_class_of_the_running_script_is_stored_under_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)

    assert "[('app:Mine', '__main__'), ('app:mine', '__main__')]" in python(tmp_path, "app.py")


def test_a_class_of_a_module_that_is_run_by_name_has_its_full_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(SCRIPT)

    assert "[('shop.app:Mine', '__main__')" in python(tmp_path, "-m", "shop.app")


@pytest.mark.parametrize("name", ["my-app.py", "app", "__main__.py"])
def test_a_class_of_a_file_that_cannot_be_imported_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SCRIPT)

    assert "class Mine is defined interactively or in a file that cannot be imported by name" in python(tmp_path, name)


def test_an_interactively_defined_class_is_refused(tmp_path: Path) -> None:
    assert "defined interactively" in python(tmp_path, "-", input=SCRIPT)


def test_a_class_that_is_not_at_the_top_level_of_the_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        SCRIPT.replace("scheduler.add_job(Mine)", "scheduler.add_job(gone)").replace(
            "    with", "    gone = Mine; del Mine\n    with"
        )
    )

    assert "class Mine is not at the top level of app" in python(tmp_path, "app.py")


@pytest.mark.parametrize("name", ["wave", "queue"])
def test_jobs_of_a_script_with_the_name_of_a_standard_module_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(SCRIPT)

    refused = python(tmp_path, f"{name}.py")

    assert f"class Mine is defined in {tmp_path / name}.py, and workers would import {name} of the standard" in refused
    assert f"rename the file or folder, for example to my_{name}" in refused


def test_jobs_of_a_package_with_the_name_of_a_standard_module_are_refused(tmp_path: Path) -> None:
    (tmp_path / "wave").mkdir()
    (tmp_path / "wave" / "__init__.py").touch()
    (tmp_path / "wave" / "jobs.py").write_text(SCRIPT)
    (tmp_path / "app.py").write_text(SCRIPT.replace("if __name__", "from wave.jobs import mine\n\nif __name__"))

    for arguments in (["app.py"], ["-m", "wave.jobs"]):
        assert f"is defined in {tmp_path}/wave/jobs.py, and workers would import wave" in python(tmp_path, *arguments)


def test_a_module_below_a_package_may_have_the_name_of_a_standard_one(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "calendar.py").write_text(SCRIPT)

    assert "[('shop.calendar:Mine', '__main__')" in python(tmp_path, "-m", "shop.calendar")


NAMED_BY_PATH = """
import os
from taskqueue import Check, retry
from taskqueue.errors import InvalidOption

Check(os.path.exists)

def is_open(job):
    return True

class Patient:
    def decide(self, situation):
        return 1

for declare in (Check, retry.custom):
    try:
        declare(is_open if declare is Check else Patient)
    except InvalidOption as refused:
        print(refused)
"""


def test_predicates_and_retry_policies_of_such_a_file_are_refused_but_standard_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "wave.py").write_text(NAMED_BY_PATH)
    (tmp_path / "app.py").write_text("import wave")

    for script in ("wave.py", "app.py"):
        lines = python(tmp_path, script).splitlines()
        clash = f"is defined in {tmp_path}/wave.py, and workers would import wave of the standard library"
        assert [line.partition(":")[0] for line in lines] == [
            f"predicate is_open {clash}",
            f"retry policy Patient {clash}",
        ]


def test_a_job_that_another_module_of_the_name_does_not_have_names_the_file_of_that_module() -> None:
    with pytest.raises(CannotLoad) as refused:
        load("click:Mine")

    assert "click:Mine: module click has no Mine: it was loaded from " in str(refused.value)
    assert str(refused.value).endswith("click/__init__.py")


def test_a_path_leads_back_to_the_job() -> None:
    loaded = load("tests.scheduler.jobs:Echo")

    assert isinstance(loaded.make(), Echo)
    assert load("tests.scheduler.jobs:add").make() is jobs.add


@pytest.mark.parametrize(
    "path", ["nonsense", "tests.scheduler.jobs:Echo.missing", "tests.scheduler.jobs:add.x", "os:path"]
)
def test_a_path_to_nothing_runnable_is_not_loaded(path: str) -> None:
    with pytest.raises(CannotLoad, match=path):
        load(path)


def test_a_module_that_fails_is_imported_again_when_it_was_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "mended_meanwhile.py"
    for text in ("raise SystemExit(1)", "import sys; sys.nonsense"):
        module.write_text(text)
        with pytest.raises(CannotLoad) as refused:
            load("mended_meanwhile:Mail")
        assert "mended_meanwhile.py" in refused.value.failure.traceback
    module.write_text("from taskqueue import Job\nclass Mail(Job):\n    pass\n# longer than before\n")

    assert load("mended_meanwhile:Mail").work == "start"


def test_an_interrupt_in_the_str_of_what_a_module_raises_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_mute.py").write_text(
        "from taskqueue import Interrupted\n"
        "class Mute(OSError):\n"
        "    def __str__(self):\n"
        "        raise Interrupted('timeout')\n"
        "raise Mute\n"
    )

    with pytest.raises(Interrupted):
        load("raising_mute:Mail")
