"""The text of a stack: frames of the worker are left out, other jobs' tasks too, and it is bounded."""

from __future__ import annotations

import pytest

import taskqueue
from taskqueue.model.stack import MAIN, frame, head, latest, of_job, shortened, task_head, without_worker

PACKAGE = taskqueue.__path__[0]
CHARGE = frame("/app/shop.py", 12, "charge")
EXECUTE = frame(f"{PACKAGE}/execution/executor.py", 90, "execute")
ATTEMPT = frame(f"{PACKAGE}/execution/attempt.py", 50, "run_attempt")
WORKER = frame(f"{PACKAGE}/daemon/worker/worker.py", 120, "Worker.run")
CLICK = frame("/lib/click/core.py", 700, "main")


def test_the_frames_of_the_worker_are_left_out() -> None:
    assert without_worker([CHARGE, EXECUTE, ATTEMPT, WORKER, CLICK]) == [CHARGE]
    assert without_worker([CHARGE, WORKER, CLICK]) == [CHARGE]


def test_frames_of_a_thread_without_the_worker_stay() -> None:
    assert without_worker([CHARGE, CLICK]) == [CHARGE, CLICK]


def test_of_a_worker_that_does_nothing_else_one_frame_stays() -> None:
    assert without_worker([EXECUTE, ATTEMPT, WORKER]) == [EXECUTE]


def test_tasks_of_other_jobs_are_left_out() -> None:
    mine, other = task_head("Task-1", "a" * 24), task_head("mail", "b" * 24)
    text = "\n".join((mine, CHARGE, other, CLICK, head(MAIN), WORKER))

    assert of_job(text, "a" * 24) == "\n".join((mine, CHARGE, head(MAIN), WORKER))
    assert other.startswith("Task mail of job ")


def test_threads_whose_name_tells_of_jobs_stay() -> None:
    text = "\n".join((head("Thread export of job 5"), CHARGE, task_head("copy of job 7"), CLICK))

    assert of_job(text, "a" * 24) == text


def test_a_long_one_is_cut_after_a_line() -> None:
    text = "\n".join([head(MAIN), *[CHARGE] * 100])

    cut = shortened(text, 1000)

    assert len(cut.encode()) <= 1000
    *lines, left = cut.split("\n")
    assert set(lines) == {head(MAIN), CHARGE}
    assert left == f"… {101 - len(lines)} more lines"
    assert shortened(text, len(text)) == text


def test_the_latest_frame_in_words() -> None:
    assert latest("\n".join((head(MAIN), CHARGE, CLICK)), "shop:Charge") == "/app/shop.py, line 12, in charge"
    assert latest("nothing", "shop:Charge") == ""


@pytest.mark.parametrize(
    "library",
    [
        "/usr/lib/python3.11/threading.py",
        "/usr/lib64/python3.10/socket.py",
        "/root/.pyenv/versions/3.13.0/lib/python3.13/asyncio/locks.py",
        "/app/.venv/lib/python3.12/site-packages/requests/sessions.py",
        "/usr/lib/python3/dist-packages/six.py",
        "/opt/lib/pypy3.10/ssl.py",
        "<frozen importlib._bootstrap>",
        f"{PACKAGE}/scheduler/wait.py",
    ],
)
def test_a_line_of_the_job_counts_before_those_of_libraries(library: str) -> None:
    inner, outer = frame(library, 327, "wait"), frame(library, 629, "wait")
    text = "\n".join((head("Thread pool"), inner, head(MAIN), inner, outer, CHARGE, frame("/app/shop.py", 9, "start")))

    assert latest(text, "shop:Charge") == (
        f"/app/shop.py, line 12, in charge (in a call that had reached {library}, line 327, in wait)"
    )
    assert latest("\n".join((head(MAIN), inner, outer)), "shop:Charge") == f"{library}, line 327, in wait"


@pytest.mark.parametrize("file", ["shop/jobs.py", "shop/jobs/__init__.py"])
def test_the_module_of_an_installed_job_is_no_library(file: str) -> None:
    packages = "/app/.venv/lib/python3.12/site-packages"
    mine, other = frame(f"{packages}/{file}", 12, "charge"), frame(f"{packages}/shop/http.py", 7, "get")

    assert latest("\n".join((head(MAIN), other, mine)), "shop.jobs:Charge").startswith(
        f"{packages}/{file}, line 12, in"
    )


def test_names_command_no_terminal() -> None:
    assert head("Thread a\x1b[2J\nb") == "Thread a\\x1b[2J\\nb (most recent call first):"
    assert len(task_head("\n" * 5000)) < 300
    assert frame("/app/\x1b[2J\n.py", 1, "é") == '  File "/app/\\x1b[2J\\n.py", line 1 in é'
