"""The backend for Django's Tasks framework: what a web process enqueues runs on a real node, and shows its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from taskqueue import Scheduler
from tests.django.projects import Project
from tests.postgresql import USER, PostgreSQL

TASKS = """
import os
import signal

try:
    from django.tasks import task
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    from django_tasks import task
    from django_tasks.signals import task_enqueued, task_finished, task_started

from shop.models import Order

FOLDER = os.path.dirname(__file__)


def note(text):
    with open(os.path.join(FOLDER, "notes"), "a") as notes:
        notes.write(text + "\\n")


def noting(name):
    def receive(sender, task_result, **_):
        if task_result.task.name == "tell":
            note(f"{name} {sender.__name__} {task_result.status} {task_result.attempts}")
    return receive


RECEIVERS = [noting("enqueued"), noting("started"), noting("finished")]
for sent, receiver in zip((task_enqueued, task_started, task_finished), RECEIVERS):
    sent.connect(receiver)


@task
def number(order, *, plus=0):
    return Order.objects.get(pk=order).number + plus


@task
async def anumber(order):
    return (await Order.objects.aget(pk=order)).number


@task(takes_context=True)
def tell(context, fails=0, kills=0):
    if context.attempt <= kills:
        os.kill(os.getpid(), signal.SIGKILL)
    if context.attempt <= fails:
        raise LookupError(f"attempt {context.attempt}")
    return [context.task_result.id, context.attempt]


@task
def ordered(text):
    note(text)
"""

SHOW = """
import json
import sys

from shop.tasks import number, anumber, tell, ordered, Order

def show(result):
    times = (result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at)
    return {
        "status": result.status,
        "value": result._return_value,
        "errors": [error.exception_class.__name__ for error in result.errors],
        "attempts": result.attempts,
        "args": [result.args, result.kwargs],
        "times": [at is not None for at in times],
    }

backend = number.get_backend()
"""


@pytest.fixture
def shop(project: Project) -> Project:
    """Return a project with tasks and the backend."""
    project.write("shop/tasks.py", TASKS)
    project.set("""
    TASKS = {"default": {"BACKEND": "taskqueue.django.backend.TaskBackend"}}
    TASKQUEUE["MAX_CHILDREN"] = 1
    """)
    project.migrate()
    return project


def notes(project: Project) -> list[str]:
    """Return what tasks and receivers have written."""
    return (project.folder / "shop/notes").read_text().splitlines()


@pytest.fixture
def ran(shop: Project) -> Callable[[str], list[Any]]:
    """Return a function that enqueues with code, which prints ids, runs all on a node, and returns the results."""

    def run(code: str) -> list[Any]:
        ids = shop.python(SHOW + code).split()
        with shop.running("node"), Scheduler(shop.url) as scheduler:
            scheduler.wait_for(ids, timeout=60)
        return list(json.loads(shop.python(f"{SHOW}print(json.dumps([show(backend.get_result(id)) for id in {ids}]))")))

    return run


def test_tasks_run_on_a_node_and_any_process_reads_their_results(ran: Callable[[str], list[Any]]) -> None:
    plain, coroutine, context = ran("""
from asgiref.sync import async_to_sync

pk = Order.objects.create(number=7).pk
print(number.enqueue(pk, plus=1).id, async_to_sync(anumber.aenqueue)(pk).id, tell.enqueue().id)
""")

    assert plain == {
        "status": "SUCCESSFUL",
        "value": 8,
        "errors": [],
        "attempts": 1,
        "args": [[1], {"plus": 1}],
        "times": [True, True, True, True],
    }
    assert (coroutine["status"], coroutine["value"]) == ("SUCCESSFUL", 7)
    assert context["value"][1] == 1


def test_errors_have_their_class_and_retries_are_attempts(shop: Project, ran: Callable[[str], list[Any]]) -> None:
    shop.set("TASKS['default']['OPTIONS'] = {'retry': 1, 'retry_interval': 0}")

    second, never = ran("print(tell.enqueue(fails=1).id, tell.enqueue(fails=9).id)")

    assert [second[name] for name in ("status", "errors", "attempts")] == ["SUCCESSFUL", ["LookupError"], 2]
    assert [never[name] for name in ("status", "errors", "attempts")] == ["FAILED", ["LookupError"] * 2, 2]


def test_a_task_whose_worker_is_killed_runs_again_and_fails_in_the_end(
    shop: Project, ran: Callable[[str], list[Any]]
) -> None:
    shop.set("TASKS['default']['OPTIONS'] = {'crash_retries': 1}")

    second, never = ran("print(tell.enqueue(kills=1).id, tell.enqueue(kills=9).id)")

    assert [second[name] for name in ("status", "errors", "attempts")] == ["SUCCESSFUL", ["JobFailed"], 2]
    assert [never[name] for name in ("status", "errors", "attempts")] == ["FAILED", ["JobFailed"] * 2, 2]


def test_signals_are_sent_where_it_happens_and_the_last_one_once(
    shop: Project, ran: Callable[[str], list[Any]]
) -> None:
    shop.set("TASKS['default']['OPTIONS'] = {'retry': 1, 'retry_interval': 0}")

    ran("print(tell.enqueue(fails=1).id)")

    assert notes(shop) == [
        "enqueued TaskBackend READY 0",
        "started TaskBackend RUNNING 1",
        "started TaskBackend RUNNING 2",
        "finished TaskBackend SUCCESSFUL 2",
    ]


def test_the_last_signal_is_sent_after_a_kill(shop: Project, ran: Callable[[str], list[Any]]) -> None:
    shop.set("TASKS['default']['OPTIONS'] = {'crash_retries': 0}")

    ran("print(tell.enqueue(kills=9).id)")

    assert notes(shop) == [
        "enqueued TaskBackend READY 0",
        "started TaskBackend RUNNING 1",
        "finished TaskBackend FAILED 1",
    ]


def test_higher_priorities_run_first(shop: Project, ran: Callable[[str], list[Any]]) -> None:
    ran("""
ids = [ordered.using(priority=priority).enqueue(str(priority)).id for priority in (0, -100, 1, -1, 100, 50)]
print(*ids)
""")

    assert notes(shop) == ["100", "50", "1", "0", "-1", "-100"]


def test_a_task_waits_for_its_time_and_keeps_its_options(shop: Project) -> None:
    printed = shop.python(
        SHOW
        + """
from datetime import timedelta
from django.utils import timezone

later = number.using(run_after=timezone.now() + timedelta(days=1), priority=-7)
found = backend.get_result(later.enqueue(1).id)
print(found.task == later, found.status)
"""
    )
    with Scheduler(shop.url) as scheduler:
        [job] = scheduler.get_jobs({})

    assert printed.split() == ["True", "READY"]
    assert (job.is_postponed, job.priority) == (True, 2)


def test_a_task_is_enqueued_when_its_transaction_commits(shop: Project) -> None:
    code = """
from django.db import transaction
from taskqueue.django.backend import exceptions

with transaction.atomic():
    kept = number.enqueue(1)
    try:
        kept.refresh()
        print("early")
    except exceptions.TaskResultDoesNotExist:
        print("waits", kept.enqueued_at)
print("committed", backend.get_result(kept.id).status, kept.enqueued_at is not None)
with transaction.atomic():
    number.enqueue(2)
    transaction.set_rollback(True)
"""
    assert shop.python(SHOW + code).split() == ["waits", "None", "committed", "READY", "True"]
    with Scheduler(shop.url) as scheduler:
        assert len(list(scheduler.get_jobs({}))) == 1

    shop.set("TASKS['default']['ENQUEUE_ON_COMMIT'] = False")
    assert shop.python(SHOW + code).split()[0] == "early"


@pytest.fixture
def shop_on_postgresql(project: Project, postgresql_server: PostgreSQL) -> Project:
    """Return a project with tasks, whose data and store are in one database of PostgreSQL."""
    server = postgresql_server
    project.write("shop/tasks.py", TASKS)
    project.url = server.url
    project.set(f"""
    TASKS = {{"default": {{"BACKEND": "taskqueue.django.backend.TaskBackend"}}}}
    TASKQUEUE["URL"] = {server.url!r}
    TASKQUEUE["MAX_CHILDREN"] = 1
    DATABASES["default"] = {{
        "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": {USER!r},
        "PASSWORD": {server.password!r}, "HOST": "127.0.0.1", "PORT": {server.port},
    }}
    """)
    project.migrate()
    return project


def test_a_task_is_part_of_the_transaction_if_its_store_is_in_the_database(shop_on_postgresql: Project) -> None:
    code = """
import os
from django.db import transaction

with transaction.atomic():
    number.enqueue(1)
    transaction.set_rollback(True)
with transaction.atomic():
    try:
        with transaction.atomic():
            number.enqueue(2)
            raise LookupError
    except LookupError:
        pass
with transaction.atomic():
    transaction.on_commit(lambda: os._exit(0))  # a process that dies just after the commit
    print(tell.enqueue().id, flush=True)
"""
    id = shop_on_postgresql.python(SHOW + code).split()[-1]

    with Scheduler(shop_on_postgresql.url) as scheduler:
        assert [str(job.id) for job in scheduler.get_jobs({})] == [id]


def test_a_signal_is_sent_after_the_commit_of_a_task_in_the_transaction(shop_on_postgresql: Project) -> None:
    code = """
from shop.tasks import note
from django.db import transaction

with transaction.atomic():
    kept = tell.enqueue()
    note(f"open {kept.status} {kept.enqueued_at is not None}")
"""
    shop_on_postgresql.python(SHOW + code)

    assert notes(shop_on_postgresql) == ["open READY True", "enqueued TaskBackend READY 0"]


@pytest.mark.parametrize("elsewhere", ["another database", "another store", "a user without rights"])
def test_a_task_whose_job_cannot_be_in_the_transaction_is_enqueued_after_the_commit(
    shop_on_postgresql: Project, postgresql_server: PostgreSQL, elsewhere: str
) -> None:
    shop, server = shop_on_postgresql, postgresql_server
    if elsewhere != "another database":
        with Scheduler(server.url) as scheduler:
            scheduler.stats()  # creates the store
    with psycopg.connect(server.url, autocommit=True) as operator:
        if elsewhere == "a user without rights":
            operator.execute("CREATE ROLE web LOGIN PASSWORD 'web'")
            shop.set("DATABASES['default'] |= {'USER': 'web', 'PASSWORD': 'web'}")
        else:
            operator.execute("CREATE DATABASE jobs")
            shop.url = server.url.removesuffix("/postgres") + "/jobs"
            shop.set(f"TASKQUEUE['URL'] = {shop.url!r}")
    code = """
from django.db import transaction

with transaction.atomic():
    kept = number.enqueue(1)
    print(kept.enqueued_at)
print(backend.get_result(kept.id).status)
"""
    assert shop.python(SHOW + code).split() == ["None", "READY"]


def test_a_job_that_runs_no_task_is_no_result(shop: Project) -> None:
    with Scheduler(shop.url) as scheduler:
        job = scheduler.add_job("shop.jobs:other")
    printed = shop.python(
        SHOW
        + f"""
from taskqueue.django.backend import exceptions

for id in ("{job.id}", "no id", "65f0c0ffee65f0c0ffee0000"):
    try:
        backend.get_result(id)
    except exceptions.TaskResultDoesNotExist as error:
        print(error)
"""
    )

    assert printed.splitlines() == [str(job.id), "no id", "65f0c0ffee65f0c0ffee0000"]


def test_checks_name_what_is_wrong_with_the_backend(shop: Project) -> None:
    shop.set("TASKS['default']['OPTIONS'] = {'retries': 3}\nDEBUG = True\nINSTALLED_APPS.append('django_tasks')")

    found = shop.managed("check").stdout
    assert "(taskqueue.E003) TASKS['default']['OPTIONS']" in found
    assert "retries" in found

    shop.set("INSTALLED_APPS.remove('taskqueue.django')")
    assert "(taskqueue.E002)" in shop.managed("check").stdout


def test_the_jobs_of_a_task_are_known_by_its_path(shop: Project) -> None:
    shop.set("TASKQUEUE['ALLOW'] = ['shop']")
    shop.python(SHOW + "ordered.enqueue('a'), ordered.enqueue('b')")

    with shop.running("node"), Scheduler(shop.url) as scheduler:
        assert shop.results(2) == [None, None]
        assert scheduler.count_jobs({"job": "shop.tasks:ordered"}) == 2
    assert notes(shop) == ["a", "b"]


def test_a_job_that_is_no_task_has_no_result(shop: Project) -> None:
    with Scheduler(shop.url) as scheduler:
        data = (None, {"task": "shop.tasks.ordered"}, {"task": 5})
        others = [scheduler.add_job("shop.jobs:other", value).id for value in data]

    for id in others:
        assert "TaskResultDoesNotExist" in shop.managed("shell", "-c", f"{SHOW}backend.get_result('{id}')").stdout


def test_a_backend_that_cannot_be_imported_is_reported_where_jobs_run(shop: Project) -> None:
    code = "import sys; sys.modules['taskqueue.django.backend'] = None; import taskqueue.django.preload"

    assert "tasks of Django cannot run here: import of taskqueue.django.backend halted" in shop.python(code)
