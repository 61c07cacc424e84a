"""System checks and errors of the setting ``TASKQUEUE``: each names the value and the way out."""

from __future__ import annotations

import json

import pytest

from tests.django.projects import Project

CHECK = """
import json
from datetime import timedelta
from django.core.checks import run_checks
from django.test import override_settings

found = {}
for text in %r:
    with override_settings(TASKQUEUE=eval(text)):
        found[text] = [f"{message.id}: {message.msg}" for message in run_checks() if "taskqueue" in message.id]
print(json.dumps(found))
"""

GOOD = (
    "{'MAX_CHILDREN': 4, 'LEASE': timedelta(minutes=1), 'FINISH': '5m', 'CAPTURE_OUTPUT': True}",
    "{'WORK_ON': ['mail', 'reports=2'], 'PRELOAD': 'shop.models', 'URL': 'mongodb://db-1/shop'}",
)
BAD = {
    "4": "TASKQUEUE is 4: write a mapping",
    "{'url': '/tmp/jobs.db'}": "TASKQUEUE has no key 'url': did you mean 'URL'?",
    "{'COLOR_OF_NODE': 1}": "TASKQUEUE has no key 'COLOR_OF_NODE': use URL, NAME, LEAD, PM",
    "{'QUEUES': ['mail']}": "TASKQUEUE has no key 'QUEUES': did you mean 'WORK_ON'?",
    "{'CONCURRENCY': 4}": "TASKQUEUE has no key 'CONCURRENCY': did you mean 'MAX_CHILDREN'?",
    "{'URL': 'jobs.db'}": "TASKQUEUE['URL'] is 'jobs.db', which is a different file in each working folder: write",
    "{'URL': 5}": "TASKQUEUE['URL'] is 5: pass a path or a URL",
    "{'URL': 'redis://localhost/0'}": "TASKQUEUE['URL']: ",
    "{'MAX_CHILDREN': 'many'}": "TASKQUEUE['MAX_CHILDREN']: 'many' is not a valid integer",
    "{'MAX_CHILDREN': [1, 2]}": "TASKQUEUE['MAX_CHILDREN'] is [1, 2], but takes one value",
    "{'MIN_CHILDREN': 4, 'MAX_CHILDREN': 2}": "--min-children 4 is more than --max-children 2",
    "{'BOOTSTRAP': '/no/hooks.py'}": "TASKQUEUE['BOOTSTRAP']: ",
}


def test_the_system_check_names_what_is_wrong_and_the_way_out(project: Project) -> None:
    project.set("DEBUG = True")

    found = json.loads(project.python(CHECK % [*GOOD, *BAD]))

    assert [found[text] for text in GOOD] == [[], []]
    for text, message in BAD.items():
        [said] = found[text]
        assert said.startswith(f"taskqueue.E001: {message}"), said


def test_a_deployed_project_without_an_address_is_warned(project: Project) -> None:
    project.set("TASKQUEUE = {}")

    assert "(taskqueue.W001) TASKQUEUE does not name a store" in project.manage("check")
    assert "no issues" in project.manage("check", TASKQUEUE_URL="/tmp/jobs.db")


@pytest.mark.parametrize("value", ["'jobs.db'", "'sqlite://jobs.db'"])
def test_no_process_of_the_project_starts_with_an_address_that_leads_to_several_stores(
    project: Project, value: str
) -> None:
    project.set(f"TASKQUEUE = {{'URL': {value}}}")

    refused = project.managed("check")

    assert refused.returncode == 1
    assert "ImproperlyConfigured: TASKQUEUE['URL']" in refused.stdout
