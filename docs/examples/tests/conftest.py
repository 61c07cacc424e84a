"""The services that the shop talks to, real ones on this host, and the shop itself on the store of the test."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from shop import database, web
from shop.services import MailServer, Wholesaler

from taskqueue import Scheduler

pytest_plugins = ["taskqueue.testing"]

MOMO = "9783522202602"


@pytest.fixture(scope="session")
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


@pytest.fixture(scope="session")
def web_server() -> Iterator[Wholesaler]:
    with Wholesaler() as server:
        yield server


@pytest.fixture
def taskqueue_url(tmp_path: Path) -> str:
    """Return the address of the test's store, in whose file the shop makes its tables."""
    url = f"sqlite://{tmp_path}/shop.db?synchronous=normal"
    with Scheduler(url) as scheduler:
        scheduler.stats()  # makes the store
    return url


@pytest.fixture(autouse=True)
def folder(taskqueue_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a shop with empty folders."""
    monkeypatch.setenv("SHOP_FOLDER", str(tmp_path))
    return tmp_path


@pytest.fixture
def mails(mail_server: MailServer, monkeypatch: pytest.MonkeyPatch) -> MailServer:
    """Return the mail server, with an empty box."""
    mail_server.empty()
    monkeypatch.setenv("SHOP_SMTP", mail_server.address)
    return mail_server


@pytest.fixture
def wholesaler(web_server: Wholesaler, monkeypatch: pytest.MonkeyPatch) -> Wholesaler:
    """Return the wholesaler, with no answers."""
    web_server.answers.clear()
    web_server.references.clear()
    monkeypatch.setenv("SHOP_WHOLESALER", web_server.address)
    return web_server


@pytest.fixture
def momo(folder: Path) -> sqlite3.Row:
    """Return a book that the shop has."""
    database.save_books([{"isbn": MOMO, "title": "Momo"}])
    book = database.find_book(MOMO)
    assert book is not None
    return book


@pytest.fixture
def client(scheduler: Scheduler) -> Iterator[TestClient]:
    """Return a client of the web application, whose scheduler uses the store of the test."""
    with TestClient(web.app) as client:
        yield client
