"""The pages of jobs in Django's admin: on each store, for users with a permission, and without the dashboard."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pymongo
import pytest

from taskqueue import Scheduler
from tests.django.projects import Project

URLS = """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""

PAGES = """
import re

from django.contrib.auth.models import Permission, User
from django.test import Client


def client(name, *codenames, **flags):
    user = User.objects.create_user(name, **flags)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    return client


def text(answer):
    assert answer.status_code == 200, answer.status_code
    return re.sub("<[^>]*>", "", answer.content.decode())

"""

JOBS = "/admin/taskqueue/job/"


@pytest.fixture
def site(project: Project) -> Project:
    """Return a project with the admin, but without the dashboard."""
    project.add_site()
    project.write("project/urls.py", URLS)
    project.write("shop/jobs.py", "from taskqueue import task\n\n@task\ndef invoice(order, password):\n    1 / 0\n")
    project.migrate()
    return project


@pytest.fixture(params=["sqlite", "postgresql", "mongodb"])
def stored(request: pytest.FixtureRequest, site: Project) -> Iterator[Project]:
    """Return the project with its jobs in a store of this kind."""
    name = f"admin_{secrets.token_hex(6)}"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql_url")
        site.url = f"{server}?taskqueue.schema={name}"
    elif request.param == "mongodb":
        server = request.getfixturevalue("mongo_set")
        site.url = server.replace("/?", f"/{name}?")
    site.set(f"TASKQUEUE = {{'URL': {site.url!r}}}")
    yield site
    if request.param == "postgresql":
        with psycopg.connect(server, autocommit=True) as raw:
            raw.execute(f"DROP SCHEMA {name} CASCADE")
    elif request.param == "mongodb":
        with pymongo.MongoClient[dict[str, object]](server) as client:
            client.drop_database(name)


def test_the_admin_lists_and_shows_jobs_of_each_store(stored: Project) -> None:
    with Scheduler(stored.url) as scheduler:
        job = scheduler.add_job("shop.jobs:invoice", {"order": "<b>7</b>", "password": "hunter2"}, id="invoice-7")
        scheduler.add_job("shop.jobs:invoice", {"order": "8", "password": "hunter2"}, queue="mail")
    printed = stored.python(
        PAGES
        + f"""
from taskqueue import Scheduler

Scheduler().run_pending()
sue = client("sue", is_staff=True, is_superuser=True)
print("entry", "{JOBS}" in sue.get("/admin/").content.decode())
print("failed", text(sue.get("{JOBS}?q=status:failed")).count("ZeroDivisionError"))
print("queue", text(sue.get("{JOBS}?q=queue:mail")).count("ZeroDivisionError"))
print("after", text(sue.get("{JOBS}?q=queue:default&after={job.id}")).count("No jobs"))
print("mistyped", "did you mean" in text(sue.get("{JOBS}?q=status:faild")))
print("secret", "data.password is masked" in text(sue.get("{JOBS}?q=data.password:hunter2")))
page = sue.get("{JOBS}{job.id}/change/")
print("escaped", "&lt;b&gt;7" in page.content.decode())
print("job", [word in text(page) for word in ("invoice-7", "is FAILED", "line 5, in invoice", "•••", "hunter2")])
print("text", sue.get("{JOBS}invoice-7/change/").status_code, sue.get("{JOBS}{"0" * 24}/change/").status_code)
print("posted", [sue.post("{JOBS}" + path).status_code for path in ("add/", "{job.id}/delete/")])
"""
    )

    assert printed.splitlines() == [
        "entry True",
        "failed 2",
        "queue 1",
        "after 1",
        "mistyped True",
        "secret True",
        "escaped True",
        "job [True, True, True, True, False]",
        "text 200 404",
        "posted [403, 403]",
    ]


def test_jobs_are_for_staff_with_a_permission_for_the_dashboard(site: Project) -> None:
    with Scheduler(site.url) as scheduler:
        job = scheduler.add_job("shop.jobs:invoice", {"order": 7, "password": "hunter2"})
    printed = site.python(
        PAGES
        + f"""
for name, codenames, is_staff in [
    ("stan", [], True), ("vera", ["view_dashboard"], True), ("olga", ["operate_dashboard"], True),
    ("nora", ["view_dashboard"], False),
]:
    user = client(name, *codenames, is_staff=is_staff)
    pages = ["{JOBS}", "{JOBS}{job.id}/change/"]
    print(name, "{JOBS}" in user.get("/admin/").content.decode(), [user.get(page).status_code for page in pages])
"""
    )

    assert printed.splitlines() == [
        "stan False [403, 403]",
        "vera True [200, 200]",
        "olga True [200, 200]",
        "nora False [302, 302]",
    ]


def test_a_list_has_pages_and_a_store_that_does_not_answer_is_named(site: Project) -> None:
    with Scheduler(site.url) as scheduler:
        jobs = scheduler.add_jobs([("shop.jobs:invoice", {"order": order, "password": ""}) for order in range(101)])
    printed = site.python(
        PAGES
        + f"""
sue = client("sue", is_staff=True, is_superuser=True)
next = re.search('href="([^"]+)">Next page', sue.get("{JOBS}?q=queue:default").content.decode())[1]
print(next)
page = sue.get("{JOBS}" + next.replace("&amp;", "&")).content.decode()
print("{JOBS}{jobs[0].id}/change/" in page, page.count("/change/"), "Next page" in page)
"""
    )
    assert printed.splitlines() == [f"?q=queue%3Adefault&amp;after={jobs[1].id}", "True 1 False"]

    site.set("TASKQUEUE = {'URL': 'postgresql://nobody@127.0.0.1:1/none'}")
    printed = site.python(
        PAGES
        + f"""
sue = client("eve", is_staff=True, is_superuser=True)
print(*[text(sue.get(page)).count("127.0.0.1:1/none") for page in ("{JOBS}", "{JOBS}{jobs[0].id}/change/")])
"""
    )
    assert printed.splitlines()[-1] == "1 1"
