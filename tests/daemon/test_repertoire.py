"""What a worker can run: within what is allowed here, and the hooks of a bootstrap file that has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue.daemon.repertoire import Repertoire
from taskqueue.scheduler.loading import CannotLoad


def repertoire(*allow: str) -> Repertoire:
    return Repertoire(allow=allow, scheduler=lambda: "a scheduler")


def test_without_a_choice_every_module_is_allowed() -> None:
    assert repertoire().find("taskqueue:ShellJob").work == "start"


@pytest.mark.parametrize("allowed", ["taskqueue", "taskqueue.scheduler", "taskqueue.scheduler.shell"])
def test_a_prefix_allows_the_module_and_those_below(allowed: str) -> None:
    assert repertoire("shop", allowed).find("taskqueue.scheduler.shell:ShellJob").work == "start"


@pytest.mark.parametrize("allowed", ["taskq", "taskqueue.scheduler.shell.more", "shell"])
def test_no_other_module_is_allowed_not_even_to_be_imported(allowed: str) -> None:
    with pytest.raises(CannotLoad, match=f"this node runs jobs of {allowed} only: start one with --allow taskqueue"):
        repertoire(allowed).find("taskqueue.scheduler.shell:ShellJob")


def test_a_hook_gets_a_scheduler_and_is_no_affair_of_allow(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"import pathlib\ndef became_leader(scheduler):\n    pathlib.Path({str(told)!r}).write_text(scheduler)\n"
    (tmp_path / "bootstrap.py").write_text(code)
    booted = repertoire("shop")
    booted.boot(tmp_path / "bootstrap.py")

    booted.find("became_leader").make().call()

    assert told.read_text() == "a scheduler"


def test_a_hook_that_the_file_does_not_have_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").touch()
    booted = repertoire()
    booted.boot(tmp_path / "bootstrap.py")

    booted.find("stepped_down").make().call()


def test_a_bootstrap_file_has_to_be_python(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").touch()

    with pytest.raises(ImportError, match=r"settings\.toml is no Python file"):
        repertoire().boot(tmp_path / "settings.toml")
