"""The backend passes Django's own tests of tasks and of the backend that runs them at once, in immediate mode.

They are those of the source distribution of Django 6, which ``bin/setup test`` puts beside the packages of the tests.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import django

from tests.django.projects import Project

UPSTREAM = Path(sys.prefix, "django-tests")
FILES = ("tasks.py", "test_tasks.py", "test_immediate_backend.py")
OURS = "taskqueue.django.backend"
OF_NO_STORE = (
    "test_cannot_get_result",
    "test_cannot_refresh_result",
    "test_cannot_pass_run_after",
    "test_doesnt_wait_until_transaction_commit_by_default",
)
"""Tests of what a backend without a store cannot do, or does otherwise."""
OF_ITS_CALLER = ("test_throws_keyboard_interrupt",)
"""Tests of Ctrl-C in the caller: a job is run by a worker."""


def adapted(text: str) -> str:
    """Return a file of the tests with our backend in place of the immediate one, for the framework that is here."""
    ours = f"from {OURS} import TaskBackend as ImmediateBackend"
    text = text.replace("from django.tasks.backends.immediate import ImmediateBackend", ours)
    text = text.replace("django.tasks.backends.immediate.ImmediateBackend", f"{OURS}.TaskBackend")
    for name in (*OF_NO_STORE, *OF_ITS_CALLER):
        text = text.replace(f"def {name}(", f"def left_out_{name}(")
    if django.VERSION >= (6, 0):
        return text
    return re.sub(r"\b(InvalidTask(?:Backend)?)\b", r"\1Error", text.replace("django.tasks", "django_tasks"))


def test_the_tests_of_django_pass_with_our_backend(project: Project) -> None:
    project.write("tasks/__init__.py", "")
    for name in FILES:
        (project.folder / "tasks" / name).write_text(adapted((UPSTREAM / name).read_text()))
    project.set("TASKQUEUE['URL'] = 'immediate:'")

    done = project.managed("test", "tasks", "-v", "2")

    assert done.returncode == 0, done.stdout
    assert "Ran 48 tests" in done.stdout, done.stdout
