"""The dashboard as a view of a project, behind real servers of WSGI and ASGI, in a real browser: users of Django."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from taskqueue import Scheduler
from tests.django.projects import Project
from tests.nodes import LIMIT, eventually

APPLICATIONS = """
import os

from django.core.{gateway} import get_{gateway}_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
application = get_{gateway}_application()
"""

SERVE = """
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

from project.wsgi import application

server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
server.set_app(application)
print(f"serving http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""

SERVERS = {
    "wsgi": ["serve.py"],
    "asgi": ["-m", "uvicorn", "project.asgi:application", "--port", "0", "--lifespan", "off"],
}

USERS = """
from django.contrib.auth.models import Permission, User
from django.test import Client


def log_in(user):
    client = Client()
    client.force_login(user)
    print(user.username, client.cookies["sessionid"].value)


for name, is_staff, codenames in [
    ("stan", True, []),
    ("olga", False, ["operate_dashboard"]),
    ("vera", False, ["view_dashboard"]),
    ("nora", False, []),
]:
    user = User.objects.create_user(name, password="correct horse", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    log_in(user)
log_in(User.objects.create_superuser("sue", password="correct horse"))
"""

ADDRESSES = re.compile(r'\b(?:href|src|action|formaction|data-url)="([^"]+)"')

LOGINS = """
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings


def login_address(**changed):
    with override_settings(**changed):
        return Client(SERVER_NAME="127.0.0.1").get("/work/jobs/queues").headers["location"]


print(login_address())
print(login_address(LOGIN_URL="https://login.example.org/"))
print(login_address(ROOT_URLCONF="project.urls_with_accounts"))
print(login_address(ROOT_URLCONF="project.urls_without_login"))
with_users = "django.contrib.auth.middleware.AuthenticationMiddleware"
try:
    login_address(MIDDLEWARE=[name for name in settings.MIDDLEWARE if name != with_users])
except ImproperlyConfigured as error:
    print(error)
"""

ADMIN = """
from django.contrib.auth.models import User
from django.test import Client, override_settings

client = Client(SERVER_NAME="127.0.0.1")
client.force_login(User.objects.create_superuser("sue"))


def has_entry(**changed):
    with override_settings(**changed):
        return "/admin/taskqueue/dashboard/" in client.get("/admin/").content.decode()


print(has_entry(), has_entry(ROOT_URLCONF="project.urls_without_dashboard"))
print([client.get(f"/admin/taskqueue/dashboard/{path}").status_code for path in ("", "add/")])
with override_settings(ROOT_URLCONF="project.urls_without_dashboard"):
    print(client.get("/admin/taskqueue/dashboard/").status_code)
"""

Visit = Callable[[str, str], Page]


class Site:
    """A project that a server runs, with the dashboard at ``/work/jobs/``."""

    def __init__(self, address: str, sessions: Mapping[str, str], scheduler: Scheduler) -> None:
        self.address = address
        self.sessions = sessions
        self.root = f"{address}/work/jobs"
        self.scheduler = scheduler


@contextmanager
def served(project: Project, arguments: list[str]) -> Iterator[str]:
    """Serve the project, and yield its address."""
    log = project.folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=project.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(project.folder)])},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        [address] = eventually(lambda: re.findall(r"http://127\.0\.0\.1:\d+", log.read_text()))
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(LIMIT)
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["wsgi", pytest.param("asgi", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site with users for all tests of this file."""
    project = Project(tmp_path_factory.mktemp(request.param))
    project.add_site()
    project.write("project/wsgi.py", APPLICATIONS.format(gateway="wsgi"))
    project.write("project/asgi.py", APPLICATIONS.format(gateway="asgi"))
    project.write("serve.py", SERVE)
    project.write("shop/jobs.py", "from taskqueue import task\n\n@task\ndef invoice(password: str):\n    pass\n")
    project.migrate()
    sessions = dict(line.split() for line in project.python(USERS).splitlines())
    with served(project, SERVERS[request.param]) as address, Scheduler(project.url) as scheduler:
        yield Site(address, sessions, scheduler)


@pytest.fixture
def visit(chromium: Browser, site: Site) -> Iterator[Visit]:
    """Return what opens a page of the dashboard as a user who has logged in; its scripts must not fail."""
    contexts: list[Any] = []
    errors: list[str] = []

    def opened(path: str, name: str) -> Page:
        context = chromium.new_context()
        context.add_cookies([{"name": "sessionid", "value": site.sessions[name], "url": site.address}])
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{site.root}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def test_a_user_logs_in_with_django_to_the_page_that_was_asked_for_and_out(chromium: Browser, site: Site) -> None:
    page = chromium.new_page()
    page.goto(f"{site.root}/jobs?queue=mail")
    expect(page).to_have_url(re.compile(r"/admin/login/\?next=/work/jobs/jobs%3Fqueue%3Dmail"))
    page.get_by_label("Username").fill("stan")
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{site.root}/jobs?queue=mail")
    expect(page.get_by_text("stan")).to_be_visible()

    page.get_by_role("button", name="Log out").click()

    expect(page.get_by_label("Username")).to_be_visible()
    page.goto(f"{site.root}/queues")
    expect(page.get_by_label("Username")).to_be_visible()
    assert "sessionid" not in [cookie["name"] for cookie in page.context.cookies()]
    page.close()


def test_a_user_without_permission_is_refused_by_the_name_of_the_permission(visit: Visit, site: Site) -> None:
    page = visit("/", "nora")

    assert page.request.get(f"{site.root}/").status == 403
    expect(page.get_by_role("alert")).to_contain_text("has no permission taskqueue.view_dashboard")


def test_an_operator_acts_in_its_own_name(visit: Visit, site: Site) -> None:
    job = site.scheduler.add_job("shop.jobs:invoice", {"password": "hunter2"})
    page = visit(f"/jobs/{job.id}", "olga")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("button", name="Run again", exact=True)).to_be_visible()

    entry = site.scheduler.audit(1)[0]
    assert (entry.action, entry.by, entry.source) == ("cancel", "olga", "127.0.0.1")
    assert job.refresh().is_canceled


def test_a_reader_sees_no_actions_and_is_refused_each(visit: Visit, site: Site) -> None:
    job = site.scheduler.add_job("shop.jobs:invoice", {"password": "hunter2"})
    page = visit(f"/jobs/{job.id}", "vera")
    expect(page.get_by_role("heading", level=1)).to_have_text("invoice")
    expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)

    token = page.locator("meta[name=csrf-token]").get_attribute("content")
    answer = page.request.post(f"{site.root}/jobs/{job.id}/cancel", form={"csrf": token or ""})

    assert (answer.status, "user vera is a reader" in answer.text()) == (403, True)
    assert job.refresh().is_pending


def test_a_change_without_the_token_of_the_site_is_refused(visit: Visit, site: Site) -> None:
    page = visit("/", "sue")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")

    refused = page.request.post(f"{site.root}/queues/pause", form={"queue": "mail"})
    foreign = page.request.post(
        f"{site.root}/queues/pause",
        form={"queue": "mail", "csrf": page.locator("meta[name=csrf-token]").get_attribute("content") or ""},
        headers={"origin": "https://evil.example.org"},
    )

    assert (refused.status, foreign.status) == (403, 403)
    assert site.scheduler.paused() == []


def test_a_superuser_may_see_secret_values_and_each_look_is_kept(visit: Visit, site: Site) -> None:
    job = site.scheduler.add_job("shop.jobs:invoice", {"password": "hunter2"})
    page = visit(f"/jobs/{job.id}", "sue")
    expect(page.get_by_role("heading", level=1)).to_have_text("invoice")
    assert "hunter2" not in page.content()

    page.get_by_role("button", name="show secrets").click()

    expect(page.get_by_role("region", name="data", exact=True)).to_contain_text("hunter2")
    assert [(entry.action, entry.by) for entry in site.scheduler.audit(1)] == [("unmask", "sue")]


def test_every_page_is_reached_by_its_link_and_every_address_is_below_the_path(visit: Visit, site: Site) -> None:
    page = visit("/", "stan")
    for name in ("Overview", "Jobs", "Queues", "Schedules", "Nodes", "Failures", "Audit"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        addresses = [one for one in ADDRESSES.findall(page.content()) if not one.startswith("#")]
        assert len(addresses) > 10, name
        assert [one for one in addresses if not one.startswith("/work/jobs/")] == [], name


def test_an_open_page_shows_what_happens_by_asking_again(visit: Visit, site: Site) -> None:
    job = site.scheduler.add_job("shop.jobs:invoice", {"password": "hunter2"})
    page = visit(f"/jobs/{job.id}", "sue")
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    expect(page.get_by_role("button", name="live")).to_be_visible()

    job.cancel()

    expect(page.get_by_role("button", name="Run again", exact=True)).to_be_visible()


def test_an_open_page_whose_session_has_ended_becomes_the_login(visit: Visit, site: Site) -> None:
    page = visit("/queues", "stan")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")

    page.context.clear_cookies(name="sessionid")

    expect(page.get_by_label("Username")).to_be_visible()


def test_programs_of_a_user_use_the_api_with_the_cookies_of_the_site(visit: Visit, site: Site) -> None:
    job = site.scheduler.add_job("shop.jobs:invoice", {"password": "hunter2"})
    page = visit("/", "olga")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    me = page.request.get(f"{site.root}/api/v1/session").json()
    cancel = f"{site.root}/api/v1/jobs/{job.id}/cancel"

    done = page.request.post(cancel, headers={"x-csrf-token": me["csrf_token"]})
    stream = page.request.get(f"{site.root}/api/v1/events")

    assert (me["user"], me["role"], done.json()["status"]) == ("olga", "operator", "CANCELED")
    assert (stream.status, "sends no streams" in stream.json()["detail"]) == (404, True)
    page.context.clear_cookies()
    anonymous = page.request.get(f"{site.root}/api/v1/jobs/{job.id}")
    assert (anonymous.status, anonymous.json()["detail"]) == (
        401,
        "nobody is logged in: log in to the site, and send its cookies",
    )


def test_the_index_of_the_admin_leads_to_the_dashboard(visit: Visit, site: Site) -> None:
    page = visit("/", "stan")
    page.goto(f"{site.address}/admin/")
    page.get_by_role("link", name="Dashboard").click()

    expect(page).to_have_url(f"{site.root}/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.fixture
def site_project(project: Project) -> Project:
    """Return a project with the dashboard, which nothing serves."""
    project.add_site()
    return project


def test_users_log_in_where_the_site_says_or_else_in_the_admin(site_project: Project) -> None:
    dashboard = 'path("work/jobs/", include("taskqueue.django.urls"))'
    imports = "from django.urls import include, path\n"
    accounts = 'path("accounts/", include("django.contrib.auth.urls"))'
    site_project.write("project/urls_without_login.py", f"{imports}urlpatterns = [{dashboard}]\n")
    site_project.write(
        "project/urls_with_accounts.py",
        f"from project.urls import urlpatterns as others\n{imports}urlpatterns = [*others, {accounts}]\n",
    )

    assert site_project.python(LOGINS).splitlines() == [
        "/admin/login/?next=/work/jobs/queues",
        "https://login.example.org/?next=/work/jobs/queues",
        "/accounts/login/?next=/work/jobs/queues",
        "/accounts/login/?next=/work/jobs/queues",
        "the dashboard needs the users of the project: add django.contrib.auth.middleware.AuthenticationMiddleware",
    ]


def test_a_project_without_the_packages_of_the_dashboard_is_told_how_to_get_them(site_project: Project) -> None:
    refused = site_project.managed(
        "shell", "-c", "import sys; sys.modules['starlette'] = None; import taskqueue.django.urls"
    )

    assert "the dashboard needs the package starlette: pip install 'taskqueue-jobs[web]'" in refused.stdout


def test_the_permissions_need_no_table_and_no_migration(site_project: Project) -> None:
    site_project.migrate()

    assert "No changes detected" in site_project.manage("makemigrations", "--check", "--dry-run")
    assert "taskqueue.dashboard" not in site_project.manage(
        "dumpdata", "taskqueue", "auth", "--all", "--natural-foreign"
    )
    found = (
        "from taskqueue.django.models import Dashboard; print(Dashboard.objects.count(), [*Dashboard.objects.all()])"
    )
    assert site_project.python(found).strip() == "0 []"


def test_the_admin_has_an_entry_if_the_site_has_the_dashboard_and_nothing_to_add(site_project: Project) -> None:
    site_project.write(
        "project/urls_without_dashboard.py",
        "from django.contrib import admin\nfrom django.urls import path\n\n"
        "urlpatterns = [path('admin/', admin.site.urls)]\n",
    )
    site_project.migrate()

    assert site_project.python(ADMIN).splitlines() == ["True False", "[302, 403]", "403"]
