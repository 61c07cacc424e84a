"""The page of the API: every operation, who may ask for it, and commands that the API takes."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.web.api import ROUTES
from taskqueue.web.pages.api import shape
from tests.scheduler.jobs import Broken
from tests.web.conftest import HOST, MakeBrowser, log_in

STREAM = "follow_events"
"""The operation whose answer has no end."""


def commands(page: str) -> dict[str, str]:
    """Return the command of each operation."""
    return {name: html.unescape(text) for name, text in re.findall(r'<pre id="curl-(\w+)"[^>]*>(.*?)</pre>', page)}


def asked(browser: TestClient, command: str, known: dict[str, str]) -> Any:
    """Send the request of a command, its variables filled in, and return the answer."""
    for name, value in known.items():
        command = command.replace(f"${name}", value)
    words = iter(shlex.split(command)[2:])
    method, content, headers, address = "GET", None, {}, ""
    for word in words:
        match word:
            case "-X":
                method = next(words)
            case "-d":
                content = next(words)
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case _:
                address = word
    return browser.request(method, address, headers=headers, content=content)


def test_each_command_is_a_request_that_is_answered_to_those_who_may_ask(
    browser: MakeBrowser, scheduler: Scheduler, people: tuple[Path, dict[str, str]]
) -> None:
    users, tokens = people
    ended = scheduler.run_job(Broken, retry=0)
    scheduler.schedule("nightly", "shop:Report", cron="0 3 * * *", queue="reports")
    opened = browser(users=users, hosts=[HOST], addable=["shop.jobs:MailJob"])
    log_in(opened, "rita")
    found = commands(opened.get("/api").text)
    opened.cookies.clear()
    known = {"API": f"https://{HOST}/api/v1", "ID": str(ended.id), "NAME": "nightly"}

    assert found.keys() == {route.name for route in ROUTES}
    for route in ROUTES:
        if route.name == STREAM:
            continue
        statuses = {
            name: asked(opened, found[route.name], {**known, "TOKEN": token}).status_code
            for name, token in tokens.items()
        }
        assert statuses["olaf"] in (200, 201, *route.statuses), route.name
        assert (statuses["rita"] == 403) is (route.users != "all users"), route.name
        if route.users == "operators of all queues":
            assert statuses["mia"] == 403, route.name


def test_the_page_is_light_and_says_how_programs_log_in(browser: MakeBrowser, scheduler: Scheduler) -> None:
    opened = browser()
    log_in(opened, "rita")
    page = opened.get("/api").text

    assert len(page) < 50_000
    assert "taskqueue web user add NAME --role operator --no-password --token" in page
    assert f"API=https://{HOST}/api/v1" in page
    assert 'href="/api/v1/openapi.json"' in page
    assert "type</code> <code>urn:taskqueue:problem:NAME" in page

    alone = browser(client=("127.0.0.1", 5000), local=True, hosts=[HOST])
    page = alone.get("/api").text
    token = alone.get("/api/v1/session").json()["csrf_token"]
    known = {"API": f"https://{HOST}/api/v1", "CSRF": token, "NAME": "web-1"}
    assert "it has no tokens" in page
    scheduler.drain("web-1", by="ann")
    assert asked(alone, commands(page)["drain_node"], known).json()["by"] == "local"


def test_a_schema_is_written_as_the_keys_of_an_object() -> None:
    text = {"type": "string"}
    schema = {
        "properties": {
            "at": {"type": ["string", "null"], "format": "date-time"},
            "tags": {"type": "array", "items": text},
            "error": {"anyOf": [{"$ref": "#/components/schemas/Failure"}, {"type": "null"}]},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "order": {"enum": ["id", "rank"], "description": "What is sorted by."},
        },
        "required": ["at"],
    }

    assert shape(schema).splitlines() == [
        "{",
        "  at: time or null",
        "  tags?: [text, …]",
        "  error?: Failure or null",
        "  counts?: {NAME: whole number, …}",
        "  order?: id | rank  // What is sorted by.",
        "}",
    ]
