"""``manage.py taskqueue``: nodes, commands and the dashboard of a real project, on the store of its settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from taskqueue.web.users import User, UsersFile, account
from tests.django.projects import Project
from tests.docs import pages
from tests.docs.names import CHECKOUT
from tests.nodes import eventually

JOBS = """
import logging
import os

from asgiref.sync import sync_to_async
from django.db import connection

from shop.models import Order
from taskqueue import task

IMPORTED_BY = os.getpid()


@task
def invoice(order: int):
    was_open = connection.connection is not None
    Order.objects.filter(pk=order).update(invoiced=True)
    return [Order.objects.get(pk=order).number, was_open]


@task
def imported_here():
    return IMPORTED_BY == os.getpid()


@task
async def ainvoice(order: int):
    was_open = await sync_to_async(lambda: connection.connection is not None)()
    return [(await Order.objects.aget(pk=order)).number, was_open]


@task
def warn():
    logging.getLogger("shop").warning("out of paper")
"""

URLS = """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("orders/", lambda request: HttpResponse(f"orders at {request.path}"))]
"""

VISIT = """
from starlette.testclient import TestClient

from project.asgi import application
from shop.jobs import imported_here
from taskqueue import Scheduler

with Scheduler() as scheduler:
    job = imported_here.add(scheduler)
with TestClient(application, base_url="https://shop.example.org", follow_redirects=False) as client:
    print(client.get("/orders/").text)
    print(client.get("/jobs/").headers["location"])
    login = {"name": "ana", "password": "correct horse battery", "next": "/jobs"}
    print(client.post("/jobs/login", data=login).headers["location"])
    print("its page is listed:", f'href="/jobs/jobs/{job.id}"' in client.get("/jobs/jobs").text)
    print(client.get("/orders/").status_code, client.get("/jobs/nothing").status_code)
"""

ADD_ORDERS = """
from shop.jobs import invoice
from shop.models import Order
from taskqueue import Scheduler

with Scheduler() as scheduler:
    for number in (7, 8):
        invoice.add(scheduler, Order.objects.create(number=number).pk)
"""


def test_jobs_that_a_web_process_adds_run_on_a_node_that_has_closed_old_connections(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.set("TASKQUEUE['MAX_CHILDREN'] = 1")
    project.migrate()
    project.python(ADD_ORDERS)

    with project.running("node"):
        assert project.results(2) == [[7, False], [8, False]]


def test_a_persistent_connection_stays_open_between_jobs(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.set("TASKQUEUE['MAX_CHILDREN'] = 1\nDATABASES['default']['CONN_MAX_AGE'] = None")
    project.migrate()
    project.python(ADD_ORDERS)

    with project.running("node"):
        assert project.results(2) == [[7, False], [8, True]]


def test_the_setting_names_the_store_for_all_processes_whatever_their_variables_and_folders(
    project: Project, tmp_path: Path
) -> None:
    project.write("shop/jobs.py", JOBS)
    project.migrate()
    project.python(ADD_ORDERS, TASKQUEUE_URL=str(tmp_path / "other.db"))

    project.working_folder = tmp_path
    with project.running("node"):
        assert len(project.results(2)) == 2

    assert "invoice" in project.manage("taskqueue", "list", "--status", "done", TASKQUEUE_URL="other.db")
    assert not (tmp_path / "other.db").exists()


def test_the_modules_of_jobs_are_imported_once_for_all_workers(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.python("from taskqueue import Scheduler; Scheduler().add_job('shop.jobs:imported_here')")

    with project.running("node"):
        assert project.results(1) == [False]


def test_a_node_finds_the_modules_that_manage_py_finds(project: Project, tmp_path: Path) -> None:
    manage = project.folder / "manage.py"
    manage.write_text(f"import sys\nsys.path.append({str(tmp_path / 'apps')!r})\n{manage.read_text()}")
    project.set("INSTALLED_APPS.append('mail')")
    (tmp_path / "apps/mail").mkdir(parents=True)
    (tmp_path / "apps/mail/__init__.py").touch()
    (tmp_path / "apps/mail/tasks.py").write_text(
        "from taskqueue import task\n\n@task\ndef send():\n    return 'sent'\n"
    )
    project.python("from mail.tasks import send; from taskqueue import Scheduler; send.add(Scheduler())")

    with project.running("node"):
        assert project.results(1) == ["sent"]


def test_a_reload_runs_changed_code(project: Project) -> None:
    project.write("shop/jobs.py", "from taskqueue import task\n\n@task\ndef answer():\n    return 'old'\n")
    with project.running("node") as node, Scheduler(project.url) as scheduler:

        def answer() -> object:
            return scheduler.add_job("shop.jobs:answer").wait(60, raise_on_error=True).result

        assert answer() == "old"
        project.write("shop/jobs.py", "from taskqueue import task\n\n@task\ndef answer():\n    return 'changed'\n")
        node.send_signal(signal.SIGHUP)
        eventually(lambda: answer() == "changed")


def test_async_jobs_side_by_side_keep_their_connections(project: Project) -> None:
    project.write(
        "shop/jobs.py",
        """
        import asyncio

        from shop.models import Order
        from taskqueue import Scheduler, task


        @task(concurrency=2)
        async def numbers(other: str | None):
            found = []
            async for order in Order.objects.order_by("number").aiterator(chunk_size=1):
                found.append(order.number)
                if other is not None and order.number == 1:
                    await asyncio.to_thread(wait, other)
            return found


        def wait(job):
            with Scheduler() as scheduler:
                scheduler.wait_for(job, raise_on_error=True)
        """,
    )
    project.migrate()
    project.python("from shop.models import Order; [Order.objects.create(number=number) for number in (1, 2, 3)]")
    with Scheduler(project.url) as scheduler:
        quick = scheduler.add_job("shop.jobs:numbers", {"other": None})
        scheduler.add_job("shop.jobs:numbers", {"other": str(quick.id)})

    with project.running("node"):
        assert project.results(2) == [[1, 2, 3], [1, 2, 3]]


def test_an_async_job_uses_the_database_without_leaving_a_thread_or_connection(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.set("TASKQUEUE |= {'MAX_CHILDREN': 1, 'LOG_LEVEL': 'debug'}")
    project.migrate()
    project.python("""
    from shop.jobs import ainvoice
    from shop.models import Order
    from taskqueue import Scheduler

    with Scheduler() as scheduler:
        for number in (7, 8):
            ainvoice.add(scheduler, Order.objects.create(number=number).pk)
    """)

    with project.running("node"):
        assert project.results(2) == [[7, False], [8, False]]
        with Scheduler(project.url) as scheduler:
            pids = {attempt.pid for job in scheduler.get_jobs({}) for attempt in job.attempts}
    assert len(pids) == 1, "the worker was replaced"


def test_the_hooks_of_a_file_of_the_project_surround_its_jobs(project: Project) -> None:
    project.write("shop/jobs.py", "from taskqueue import task\nSEEN = []\n\n@task\ndef seen():\n    return SEEN\n")
    project.write(
        "hooks.py",
        """
        from shop import jobs


        def around_run(job, proceed):
            jobs.SEEN.append(job.attempt)
            proceed()


        def became_leader(scheduler):
            scheduler.add_job("shop.jobs:seen")
        """,
    )
    project.set("TASKQUEUE['BOOTSTRAP'] = BASE_DIR / 'hooks.py'")
    with project.running("node"), Scheduler(project.url) as scheduler:
        eventually(lambda: list(scheduler.get_jobs({})))
        assert project.results(1) == [[1]]


def test_another_bootstrap_file_on_the_command_line_is_refused_with_the_way_out(project: Project) -> None:
    refused = project.managed("taskqueue", "node", "--bootstrap=hooks.py")

    assert refused.returncode == Exit.USAGE
    assert "TASKQUEUE['BOOTSTRAP']" in refused.stdout


def test_loggers_stay_enabled_and_lines_are_kept_whatever_logging_the_project_configures(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.write("hooks.py", "def around_run(job, proceed):\n    proceed()\n    raise RuntimeError('of the hook')\n")
    project.set("""
    TASKQUEUE["BOOTSTRAP"] = BASE_DIR / "hooks.py"
    LOGGING = {
        "version": 1,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    }
    """)
    with Scheduler(project.url) as scheduler:
        job = scheduler.add_job("shop.jobs:warn")
        with project.running("node"):
            assert project.results(1) == [None]
            eventually(lambda: "around_run failed" in project.output())
        assert [line.message for line in job.logs()][:1] == ["out of paper"]


def test_a_node_for_development_runs_jobs_of_the_project(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.migrate()
    project.python(ADD_ORDERS)

    with project.running("run"):
        assert project.results(2) == [[7, False], [8, False]]


def test_the_dashboard_of_a_project_shows_its_jobs(project: Project) -> None:
    with Scheduler(project.url) as scheduler:
        job = scheduler.add_job("shop.jobs:invoice")
    with project.running("web", "--listen", "0", "--settings", "project.settings"):
        [address] = eventually(lambda: [word for word in project.output().split() if word.startswith("http://")])
        with urllib.request.urlopen(f"{address}jobs/{job.id}") as answer:
            assert str(job.id) in answer.read().decode()


SCHEDULED = """
from taskqueue import schedule, task

from shop.models import Order

@schedule("nightly", cron="0 2 * * *")
@task
def clean():
    Order.objects.all().delete()
"""


@pytest.mark.parametrize("command", ["node", "run"])
def test_a_node_applies_the_schedules_that_applications_declare(project: Project, command: str) -> None:
    project.write("shop/tasks.py", SCHEDULED)
    with project.running(command), Scheduler(project.url) as scheduler:
        [stored] = eventually(scheduler.get_schedules)

    assert (stored.name, stored.snapshot.application) == ("nightly", "project")


def test_a_node_applies_the_schedules_of_the_module_that_is_named(project: Project) -> None:
    project.write("shop/tasks.py", SCHEDULED)
    with project.running("node", "--schedules", "shop.tasks"), Scheduler(project.url) as scheduler:
        [stored] = eventually(scheduler.get_schedules)

    assert stored.snapshot.application == "shop.tasks"


def test_schedules_that_applications_declare_are_synced(project: Project) -> None:
    project.write("shop/tasks.py", SCHEDULED)

    added = project.manage("taskqueue", "schedules", "sync", "project")
    assert added.splitlines() == ["add     nightly", "1 schedule of application project changed"]
    assert "shop.tasks:clean" in project.manage("taskqueue", "schedules", "list")


def test_schedules_and_other_commands_are_those_of_taskqueue(project: Project) -> None:
    project.manage("taskqueue", "schedules", "add", "nightly", "shop.jobs:invoice", "--cron", "0 2 * * *")

    assert "nightly" in project.manage("taskqueue", "schedule", "list")
    unknown = project.managed("taskqueue", "lst")
    assert (unknown.returncode, "did you mean list" in unknown.stdout) == (Exit.USAGE, True)


def test_commands_name_the_command_that_starts_a_node_of_the_project(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    add = "from taskqueue import Scheduler; print(Scheduler().add_job('shop.jobs:imported_here').id)"
    id = project.python(add).strip()

    assert "start one with `manage.py taskqueue node`" in project.manage("taskqueue", "why", id)
    asked = project.managed("taskqueue", "health", TASKQUEUE_RUNTIME_DIR=str(project.folder / "run"))
    assert (asked.returncode, "start one with `manage.py taskqueue node`" in asked.stdout) == (Exit.NOT_FOUND, True)


def test_variables_and_the_command_line_win_over_the_setting(project: Project) -> None:
    project.set("TASKQUEUE |= {'NAME': 'of-setting'}")
    with Scheduler(project.url) as scheduler:

        def name(*options: str, **variables: str) -> str:
            with project.running("node", *options, **variables):
                [found] = eventually(lambda: [node.name for node in scheduler.nodes()])
            return found

        assert name(TASKQUEUE_NAME="of-variable") == "of-variable"
        assert name("--name", "of-option", TASKQUEUE_NAME="of-variable") == "of-option"


def test_a_wrong_setting_ends_the_command_with_what_is_wrong(project: Project) -> None:
    project.set("TASKQUEUE['MAX_CHILDS'] = 3")
    done: subprocess.CompletedProcess[str] = project.managed("taskqueue", "node")

    assert done.returncode == Exit.CONFIG
    assert done.stdout.strip() == "CommandError: TASKQUEUE has no key 'MAX_CHILDS': did you mean 'MAX_CHILDREN'?"


def test_a_model_as_data_leads_to_its_key(project: Project) -> None:
    printed = project.python("""
    from shop.models import Order
    from taskqueue import Scheduler

    for data in (Order(number=7), Order.objects.all()):
        try:
            Scheduler().add_job("shop.jobs:invoice", {"order": data})
        except Exception as error:
            print(error)
    """)

    assert printed.splitlines() == [
        "data['order'] is shop.models.Order, a row of a database: pass its key, and read it again in the job",
        "data['order'] is django.db.models.query.QuerySet, a query: pass keys, list(….values_list('pk', flat=True))",
    ]


@pytest.mark.parametrize("settings", ["", "project.settings"])
def test_a_node_that_does_not_set_the_project_up_leads_to_the_one_that_does(project: Project, settings: str) -> None:
    project.write("shop/jobs.py", JOBS)
    added = subprocess.run(
        [Path(sys.executable).parent / "taskqueue", "--url", project.url, "add", "--here", "shop.jobs:warn"],
        cwd=project.folder,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": settings},
        capture_output=True,
        text=True,
    )

    assert added.stderr.endswith(": a Django project has nodes of its own, `manage.py taskqueue node`\n"), added.stderr


def test_jobs_and_tasks_run_at_once_within_a_test_case_of_django(project: Project) -> None:
    project.write("shop/jobs.py", JOBS)
    project.write(
        "shop/tests.py",
        """
        from django.db import transaction
        from django.test import TestCase, TransactionTestCase

        from shop.jobs import invoice
        from shop.models import Order
        from taskqueue import Scheduler

        scheduler = Scheduler()


        def order():
            with transaction.atomic():
                made = Order.objects.create(number=7)
                transaction.on_commit(lambda: invoice.add(scheduler, made.pk))
            return made


        class InTransaction(TestCase):
            def test_a_job_sees_what_is_not_committed(self):
                with self.captureOnCommitCallbacks(execute=True):
                    made = order()
                    self.assertFalse(Order.objects.get(pk=made.pk).invoiced)
                self.assertTrue(Order.objects.get(pk=made.pk).invoiced)


        class Committed(TransactionTestCase):
            def test_a_job_runs_on_commit(self):
                self.assertTrue(Order.objects.get(pk=order().pk).invoiced)
        """,
    )
    project.set("TASKQUEUE = {'URL': 'immediate:'}")

    assert "Ran 2 tests" in project.manage("test", "shop")


def test_jobs_of_test_cases_wait_in_a_store_of_their_own_until_the_test_runs_them(project: Project) -> None:
    page = pages.blocks(CHECKOUT / "docs/how-to/applications/django-tests.md")
    files = {block.mark.removeprefix("file: "): block.text for block in page if block.mark.startswith("file: ")}
    for name in ("shop/jobs.py", "shop/tasks.py", "shop/test_added.py"):
        project.write(name, files[name])
    project.write("project/urls.py", files["mysite/urls.py"])
    project.set("""
    INSTALLED_APPS.append("django_tasks")
    ROOT_URLCONF = "project.urls"
    TASKS = {"default": {"BACKEND": "taskqueue.django.backend.TaskBackend"}}
    """)

    assert "Ran 4 tests" in project.manage("test", "shop")
    assert not (project.folder / "jobs.db").exists()


def test_an_asgi_project_has_the_dashboard_below_a_path(project: Project) -> None:
    page = pages.blocks(CHECKOUT / "docs/how-to/applications/django.md")
    [asgi] = [block.text for block in page if block.mark == "file: mysite/asgi.py"]
    project.set('ROOT_URLCONF = "project.urls"\nALLOWED_HOSTS = ["shop.example.org"]')
    project.write("project/urls.py", URLS)
    project.write("project/asgi.py", asgi.replace("mysite", "project"))
    project.write("shop/jobs.py", JOBS)
    with UsersFile(project.folder / "users.json").changing() as users:
        users["ana"] = account(User(name="ana"), "correct horse battery")

    printed = project.python(VISIT).splitlines()

    assert printed[-5:] == [
        "orders at /orders/",
        "/jobs/login?next=/",
        "/jobs/jobs",
        "its page is listed: True",
        "200 404",
    ]
