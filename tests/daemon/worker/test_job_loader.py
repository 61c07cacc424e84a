"""What a worker can run: within what is allowed here, and the hooks of a bootstrap file that has them."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskqueue.daemon.worker.job_loader import JobLoader
from taskqueue.execution.loader import CannotLoad, load_trigger
from tests.nodes import LIMIT


def repertoire(*allow: str) -> JobLoader:
    return JobLoader(allow=allow, scheduler=lambda: "a scheduler")


def test_without_a_choice_every_module_is_allowed() -> None:
    assert repertoire().find("taskqueue:ShellJob").work == "start"


@pytest.mark.parametrize("allowed", ["taskqueue", "taskqueue.execution", "taskqueue.execution.shell_job"])
def test_a_prefix_allows_the_module_and_those_below(allowed: str) -> None:
    assert repertoire("shop", allowed).find("taskqueue.execution.shell_job:ShellJob").work == "start"


@pytest.mark.parametrize("path", ["taskqueue.scheduler.shell:ShellJob", "taskqueue.scheduler.asking:NextTime"])
def test_a_job_of_ours_is_found_under_the_name_that_older_records_have(path: str) -> None:
    assert repertoire("taskqueue").find(path).work == "start"


@pytest.mark.parametrize("allowed", ["taskq", "taskqueue.execution.shell_job.more", "shell"])
def test_no_other_module_is_allowed_not_even_to_be_imported(allowed: str) -> None:
    with pytest.raises(CannotLoad, match=f"this node runs jobs of {allowed} only: start one with --allow taskqueue"):
        repertoire(allowed).find("taskqueue.execution.shell_job:ShellJob")


def test_a_hook_gets_a_scheduler_and_is_no_affair_of_allow(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import pathlib\ndef became_leader(scheduler):\n    pathlib.Path({str(told)!r}).write_text(scheduler)\n"
    (tmp_path / "bootstrap.py").write_text(code)
    booted = repertoire("shop")
    booted.boot(tmp_path / "bootstrap.py")

    booted.load_hook("became_leader")
    booted.find("became_leader").make().call()

    assert told.read_text() == "a scheduler"


@pytest.mark.parametrize("file", ["hooks_of_a_shop.py", "a_shop/hooks.py"])
def test_what_a_job_imports_from_the_bootstrap_file_is_what_its_hooks_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_shop").mkdir()
    (tmp_path / "a_shop" / "__init__.py").touch()
    (tmp_path / file).write_text("tenants = []\ndef run_ended(job, outcome):\n    tenants.append(job)\n")
    booted = repertoire()
    booted.boot(tmp_path / file)
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))

    assert booted.run_hooks is not None
    assert booted.run_hooks.run_ended is module.run_ended
    for name in [name for name in sys.modules if name.partition(".")[0] in {"hooks_of_a_shop", "a_shop"}]:
        del sys.modules[name]


def test_a_bootstrap_file_that_is_no_module_of_its_own_name_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for file in ("my-hooks.py", "json.py"):
        (tmp_path / file).write_text("def run_ended(job, outcome):\n    return __name__\n")
        booted = repertoire()
        booted.boot(tmp_path / file)

        assert booted.run_hooks is not None
        assert booted.run_hooks.run_ended is not None
        assert booted.run_hooks.run_ended.__module__ == f"taskqueue_bootstrap_{Path(file).stem}"


def test_a_hook_may_be_async(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        f"import pathlib\nasync def became_leader(scheduler):\n    pathlib.Path({str(told)!r}).write_text(scheduler)\n"
    )
    (tmp_path / "bootstrap.py").write_text(f"{code}    return object()\n")
    booted = repertoire()
    booted.boot(tmp_path / "bootstrap.py")
    booted.load_hook("became_leader")

    assert asyncio.run(booted.find("became_leader").make().call()) is None

    assert told.read_text() == "a scheduler"


def test_a_hook_that_the_file_does_not_have_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").touch()
    booted = repertoire()
    booted.boot(tmp_path / "bootstrap.py")

    booted.load_hook("stepped_down")
    booted.find("stepped_down").make().call()


def test_a_bootstrap_file_has_to_be_python(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()

    with pytest.raises(ImportError, match=r"settings\.toml is not a Python file"):
        repertoire().boot(tmp_path / "settings.toml")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a module that has imported what others defined, and return its name."""
    name = "shop_of_imports"
    (tmp_path / f"{name}.py").write_text(
        "import os\n"
        "from subprocess import Popen\n"
        "from taskqueue import Job, ShellJob, task\n"
        "from tests.acceptance.retrying import Patient\n"
        "class Own(Job):\n    def start(self): pass\n"
        "@task\ndef own_task(): pass\n"
        "class OwnPolicy:\n    def decide(self, situation): return 1\n"
        "def own_check(job): return True\n"
        "class Made:\n"
        "    made = 0\n"
        "    def __init__(self, **settings): Made.made += 1\n"
        "    def work(self): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("path", ["ShellJob", "ShellJob.start", "Popen.communicate"])
def test_what_an_allowed_module_has_imported_is_not_allowed_with_it(shop: str, path: str) -> None:
    with pytest.raises(CannotLoad, match=r"start one with --allow (taskqueue\.execution\.shell_job|subprocess)"):
        repertoire(shop).find(f"{shop}:{path}")


def test_an_imported_policy_or_predicate_is_not_allowed_either(shop: str) -> None:
    with pytest.raises(CannotLoad, match=r"start one with --allow tests\.acceptance\.retrying"):
        repertoire(shop).find_policy(f"{shop}:Patient")
    with pytest.raises(CannotLoad, match="start one with --allow subprocess"):
        repertoire(shop).find_predicate(f"{shop}:Popen.poll")


def test_what_an_allowed_module_defines_is_found(shop: str) -> None:
    allowed = repertoire(shop)

    assert (allowed.find(f"{shop}:Own").work, allowed.find(f"{shop}:own_task").work) == ("start", "function")
    assert allowed.find(f"{shop}:Made.work").work == "work"
    assert allowed.find_policy(f"{shop}:OwnPolicy").__name__ == "OwnPolicy"
    assert allowed.find_predicate(f"{shop}:own_check")(None) is True


def test_a_module_of_predicates_or_policies_is_imported_where_settings_are_kept(shop: str) -> None:
    kept = []

    @contextmanager
    def keeping() -> Iterator[None]:
        kept.append(shop in sys.modules)
        yield
        kept.append(shop in sys.modules)

    loader = repertoire(shop)
    loader.keeping_settings = keeping
    for _ in range(2):
        loader.find_predicate(f"{shop}:own_check")
        loader.find_policy(f"{shop}:OwnPolicy")

    assert kept == [False, True]


def test_nothing_is_made_of_a_class_that_is_no_policy_and_no_predicate(shop: str) -> None:
    anything = repertoire()
    with pytest.raises(CannotLoad, match="is not a retry policy: it has no method decide"):
        anything.find_policy(f"{shop}:Popen")
    with pytest.raises(CannotLoad, match=r"has no function Made\.nothing"):
        anything.find_predicate(f"{shop}:Made.nothing")
    with pytest.raises(CannotLoad, match="is not a trigger: it has no method next"):
        load_trigger(f"{shop}:Popen")

    assert sys.modules[shop].Made.made == 0


def test_the_watch_is_imported_when_it_runs_and_not_before() -> None:
    text = """
import sys
from taskqueue.daemon.protocol.messages import WATCH
from taskqueue.daemon.worker.job_loader import JobLoader

loader = JobLoader(allow=["shop"], scheduler=lambda: None)
loader.load_hook(WATCH)
assert "taskqueue.notifications.watch" not in sys.modules
assert loader.find(WATCH).work == "start"
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
