"""A dashboard on an empty store, and browsers and programs that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.web import app
from taskqueue.web.users import Account, Role, User, UsersFile, account, with_new_token
from tests.nodes import LIMIT
from tests.servers import PATIENCE, emptied

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

PASSWORD = "correct horse"
HOST = "jobs.example.org"
Browser = TestClient
MakeBrowser = Callable[..., TestClient]


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a file of users, and the token of each: a reader, an operator, one of the queue mail alone."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    users = (
        User(name="rita"),
        User(name="olaf", role=Role.OPERATOR, unmask=True),
        User(name="mia", role=Role.OPERATOR, queues=("mail",)),
    )
    accounts: dict[str, Account] = {}
    tokens: dict[str, str] = {}
    for user in users:
        accounts[user.name], tokens[user.name] = with_new_token(account(user, PASSWORD))
    UsersFile(path).change(accounts)
    return path, tokens


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """Return Debian's browser without all that draws windows, which takes half of the time of a test."""
    from playwright.sync_api import expect, sync_playwright  # few tests have a browser

    expect.set_options(timeout=LIMIT * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"])
        yield browser
        browser.close()


def logged_in(page: Page, address: str, name: str) -> None:
    """Log in, which leads to the audit."""
    from playwright.sync_api import expect

    page.goto(f"{address}/audit")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")


@pytest.fixture(scope="module")
def cookies(chromium: Chromium, shop: Any) -> dict[str, Any]:
    """Return what the browser keeps of each user who has logged in to the ``shop`` of the file."""
    kept = {}
    for name in ("olaf", "rita", "mia"):
        context = chromium.new_context()
        logged_in(context.new_page(), shop.address, name)
        kept[name] = context.storage_state()
        context.close()
    return kept


@pytest.fixture
def visit(chromium: Chromium, shop: Any, cookies: dict[str, Any]) -> Iterator[Callable[..., Page]]:
    """Return what opens a page; a page that reports an error to its console fails the test."""
    contexts, errors = [], []

    def opened(path: str, name: str = "olaf", *, is_refused: bool = False, **settings: Any) -> Page:
        context = chromium.new_context(storage_state=cookies[name], **settings)
        contexts.append(context)
        page = context.new_page()
        if not is_refused:  # which the console of the browser calls an error
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{shop.address}{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors, "\n".join(errors)


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param == "mongodb":
        emptied_one = emptied(request.getfixturevalue("mongo_set"), f"web_{tmp_path.name}"[:60])
        return f"{emptied_one}&timeoutMS={PATIENCE * 1000:.0f}"
    if request.param == "postgresql":
        return f"{request.getfixturevalue('postgresql_url')}?taskqueue.schema=web_{os.getpid()}"
    return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"


@pytest.fixture
def scheduler(url: str) -> Iterator[Scheduler]:
    """Return a scheduler on an empty store."""
    with Scheduler(url) as scheduler:
        yield scheduler


@pytest.fixture
def browser(scheduler: Scheduler, people: tuple[Path, dict[str, str]]) -> Iterator[MakeBrowser]:
    """Return what opens a browser on a dashboard; arguments are those of ``app``."""
    with ExitStack() as opened:

        def make(client: tuple[str, int] = ("203.0.113.9", 5000), **settings: Any) -> TestClient:
            known = settings or {"users": people[0], "hosts": [HOST]}
            made = TestClient(
                app(scheduler, **known), base_url=f"https://{HOST}", client=client, follow_redirects=False
            )
            opened.enter_context(made)
            return made

        yield make


def log_in(browser: TestClient, name: str = "olaf") -> str:
    """Log in with the password, and return the token for changes."""
    answer = browser.post("/login", data={"name": name, "password": PASSWORD})
    assert answer.status_code == 303, answer.text
    return csrf_of(browser)


def csrf_of(browser: TestClient) -> str:
    """Return the token for changes that the first page carries."""
    page = browser.get("/").text
    return page.partition('<meta name="csrf-token" content="')[2].partition('"')[0]
