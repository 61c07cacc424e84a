"""A Django project that a test makes in a folder: settings, an application ``shop``, and ``manage.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from taskqueue import Scheduler
from tests.nodes import LIMIT

MANAGE = """
import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
"""

SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent.parent
SECRET_KEY = "of a test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["shop", "taskqueue.django"]
TASKQUEUE = {"URL": BASE_DIR / "jobs.db"}
"""

MODELS = """
from django.db import models


class Order(models.Model):
    number = models.IntegerField()
    invoiced = models.BooleanField(default=False)
"""

SITE = """
INSTALLED_APPS += [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "/static/"
ROOT_URLCONF = "project.urls"
ALLOWED_HOSTS = ["127.0.0.1"]
"""

_MIGRATED: dict[str, bytes] = {}
"""The databases of projects without rows, by their settings, models and migrations."""

SITE_URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("work/jobs/", include("taskqueue.django.urls"))]
"""


class Project:
    """A project in a folder; its store is ``jobs.db`` there, unless its settings name another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.working_folder = folder
        self.write("manage.py", MANAGE)
        self.write("project/__init__.py", "")
        self.write("project/settings.py", SETTINGS)
        self.write("shop/__init__.py", "")
        self.write("shop/models.py", MODELS)
        self.url = f"sqlite://{folder}/jobs.db"

    def write(self, path: str, text: str) -> None:
        """Write a file of the project."""
        file = self.folder / path
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(dedent(text))

    def set(self, text: str) -> None:
        """Add lines to the settings."""
        file = self.folder / "project/settings.py"
        file.write_text(f"{file.read_text()}{dedent(text)}\n")

    def add_site(self) -> None:
        """Make a site with users, the admin, and the dashboard at ``/work/jobs/``."""
        self.set(SITE)
        self.write("project/urls.py", SITE_URLS)

    def manage(self, *arguments: str, **variables: str) -> str:
        """Run ``manage.py`` in the working folder, and return what it printed; it must succeed."""
        done = self.managed(*arguments, **variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def managed(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` in the working folder, and return how it ended, with all that it printed."""
        return subprocess.run(
            [sys.executable, str(self.folder / "manage.py"), *arguments],
            cwd=self.working_folder,
            env={**os.environ, "PYTHONPATH": str(Path.cwd()), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )

    def migrate(self) -> None:
        """Make the tables of the project, or copy those that this process has made for another one."""
        lines = (self.folder / "project/settings.py").read_text().splitlines()
        tables = [self.folder / "shop/models.py", *sorted(self.folder.glob("shop/migrations/*.py"))]
        settings = [line for line in lines if not line.startswith("TASK")]
        about = "\n".join([*settings, *(file.read_text() for file in tables)])
        database = self.folder / "shop.sqlite3"
        if about in _MIGRATED:
            database.write_bytes(_MIGRATED[about])
            return
        self.manage("migrate", "--run-syncdb", "-v", "0")
        if database.exists():
            _MIGRATED[about] = database.read_bytes()

    def python(self, code: str, **variables: str) -> str:
        """Run code as a web process of the project would, with Django set up, and return what it printed."""
        return self.manage("shell", "-v", "0", "-c", dedent(code), **variables)

    @contextmanager
    def running(self, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run ``manage.py taskqueue …`` during the block; its output is in ``output.log``."""
        with (self.folder / "output.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(self.folder / "manage.py"), "taskqueue", *arguments],
                cwd=self.working_folder,
                env={**os.environ, "PYTHONPATH": str(Path.cwd()), **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(LIMIT)
            finally:
                process.kill()

    def output(self) -> str:
        """Return what nodes have printed."""
        return (self.folder / "output.log").read_text()

    def results(self, count: int) -> list[object]:
        """Wait until this number of jobs is in the store and all have ended as DONE; return their results in order."""
        with Scheduler(self.url) as scheduler:
            jobs = list(scheduler.get_jobs({}))
            assert len(jobs) == count
            try:
                scheduler.wait_for(jobs, timeout=LIMIT, raise_on_error=True)
            except Exception as error:
                raise AssertionError(self.output()) from error
            return [job.result for job in jobs]
