"""Each extra begins, shows something and acts with any supported versions: ``django``, ``web``, ``top``, ``otel``."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from textual.pilot import Pilot

from taskqueue import Scheduler, otel
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.users import Role, User, UsersFile, account, with_new_token
from tests.acceptance.work import Echo
from tests.cli.test_top import run_top, shows
from tests.django.projects import Project
from tests.web.servers import served


def test_a_dashboard_shows_its_pages_to_a_user_and_pauses_a_queue(tmp_path: Path) -> None:
    known, token = with_new_token(account(User(name="olaf", role=Role.OPERATOR), "correct horse"))
    users = UsersFile(tmp_path / "users.json")
    users.change({"olaf": known})
    with Scheduler(f"sqlite://{tmp_path}/jobs.db") as scheduler:
        job = scheduler.add_job(Echo, {"to": "ann"}, queue="mail")
        scheduler.schedule("nightly", Echo, cron="0 2 * * *")
        with served(app(scheduler, users=users.path)) as address:

            def ask(path: str, body: Any = None) -> str:
                headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
                data = None if body is None else json.dumps(body).encode()
                with urllib.request.urlopen(urllib.request.Request(address + path, data, headers)) as answer:
                    text: str = answer.read().decode()
                return text

            pages = {path: ask(path) for path in ("/", "/jobs", f"/jobs/{job.id}", "/schedules/nightly", "/queues")}
            assert [path for path, text in pages.items() if "</html>" not in text] == []
            assert "At 02:00" in pages["/schedules/nightly"]
            assert json.loads(ask("/api/v1/queues/pause", {"queue": "mail"}))["name"] == "mail"
        assert [one.name for one in scheduler.controls()] == ["mail"]


def test_the_live_screen_shows_a_queue_and_pauses_it(tmp_path: Path) -> None:
    with Scheduler(f"sqlite://{tmp_path}/jobs.db") as scheduler:
        scheduler.add_job(Echo, queue="mail")

        async def steps(pilot: Pilot[int]) -> None:
            await shows(pilot, "mail")
            await pilot.press("tab", "p")
            await shows(pilot, "Pause queue mail?")
            await pilot.press("enter")
            await shows(pilot, "queue mail is paused")

        with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as store:
            run_top(store, steps)
        assert [one.name for one in scheduler.controls()] == ["mail"]


def test_the_trace_of_a_call_reaches_the_run_of_its_job(tmp_path: Path) -> None:
    context = SpanContext(trace_id=0x1234, span_id=0x5678, is_remote=False, trace_flags=TraceFlags(1))
    url = f"sqlite://{tmp_path}/jobs.db"
    with Scheduler(url, before_add=otel.before_add, around_run=otel.around_run) as scheduler:
        with trace.use_span(NonRecordingSpan(context)):
            job = scheduler.add_job(Echo)
        scheduler.run_pending()

        assert job.refresh().is_done
        assert job.meta["traceparent"].split("-")[1] == f"{0x1234:032x}"


def test_jobs_of_a_django_project_read_its_models_on_a_node(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "shop/jobs.py",
        """
        from shop.models import Order
        from taskqueue import task


        @task
        def number(order: int):
            return Order.objects.get(pk=order).number


        @task
        async def anumber(order: int):
            return (await Order.objects.aget(pk=order)).number
        """,
    )
    project.write(
        "shop/tasks.py",
        """
        import django

        if django.VERSION >= (6, 0):
            from django.tasks import task
        else:
            from django_tasks import task


        @task(takes_context=True)
        def double(context, number):
            return 2 * number + context.attempt
        """,
    )
    project.set("TASKS = {'default': {'BACKEND': 'taskqueue.django.backend.TaskBackend'}}")
    project.migrate()
    project.python("""
    from shop.jobs import anumber, number
    from shop.models import Order
    from shop.tasks import double
    from taskqueue import Scheduler

    with Scheduler() as scheduler:
        for job, wanted in ((number, 7), (anumber, 8)):
            job.add(scheduler, Order.objects.create(number=wanted).pk)
    double.enqueue(4)
    """)

    with project.running("node"):
        assert project.results(3) == [7, 8, 9]


def test_the_dashboard_is_a_view_of_a_django_project(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.add_site()
    project.migrate()

    said = project.python(
        """
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client(SERVER_NAME="127.0.0.1")
    print(client.get("/work/jobs/").headers["Location"])
    client.force_login(User.objects.create_superuser("sue"))
    print([client.get(path).status_code for path in ("/work/jobs/", "/work/jobs/jobs", "/work/jobs/api/v1/queues")])
    print("/admin/taskqueue/" in client.get("/admin/").content.decode())
    from taskqueue import Scheduler

    with Scheduler() as scheduler:
        job = scheduler.add_job("shop.jobs:invoice", {"order": 7}, queue="mail")
    print(client.get("/admin/taskqueue/job/?q=queue:mail").content.decode().count("shop.jobs:invoice"))
    page = client.get(f"/admin/taskqueue/job/{job.id}/change/")
    print(page.status_code, "is WAITING" in page.content.decode())
    print(client.post("/work/jobs/api/v1/queues/pause", {"queue": "mail"}, "application/json").status_code)
    """,
        PYTHONWARNINGS=os.environ.get("PYTHONWARNINGS", "error::ResourceWarning"),
    )

    assert said.splitlines() == ["/admin/login/?next=/work/jobs/", "[200, 200, 200]", "True", "1", "200 True", "200"]
