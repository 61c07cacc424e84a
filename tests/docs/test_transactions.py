"""The code of the page on jobs in one's own transaction does what the page says, in a database of each kind."""

from __future__ import annotations

import asyncio
import runpy
import secrets
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pymongo
import pytest
from bson import ObjectId
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from taskqueue import AsyncScheduler, Scheduler
from tests.docs import pages
from tests.nodes import LIMIT
from tests.postgresql import USER, PostgreSQL

PAGE = Path(__file__).parents[2] / "docs/how-to/applications/transactions.md"
SHOP, DRIVER = "postgresql://shop@db-1/shop", "postgresql+psycopg:"
DJANGO = """
import django
from django.conf import settings

settings.configure(DATABASES={{"default": {database!r}}})
django.setup()
from django.db import models

from taskqueue import Scheduler

class Order(models.Model):
    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "orders"

scheduler = Scheduler({url!r})
{code}
"""


class Base(DeclarativeBase):
    """The tables of the application."""


class Order(Base):
    """An order of the application."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def shop(postgresql_server: PostgreSQL) -> PostgreSQL:
    """Return a server whose database has the store and a table of orders."""
    with Scheduler(postgresql_server.url) as scheduler:
        scheduler.stats()  # creates the store
    with psycopg.connect(postgresql_server.url) as operator:
        operator.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
    return postgresql_server


def code(heading: str) -> list[str]:
    """Return the Python code of a section of the page, block by block."""
    [section] = [part for part in PAGE.read_text().split("\n#") if part.lstrip("#").startswith(f" {heading}\n")]
    return [block.text for block in pages.blocks_of(section) if block.language == "python"]


def run(folder: Path, text: str, **names: Any) -> dict[str, Any]:
    """Run code of the page with names that it does not define, and return all names."""
    file = folder / f"{secrets.token_hex(4)}.py"
    file.write_text(text)
    return runpy.run_path(str(file), init_globals=names)


def check_job(url: str, order: int = 4711) -> None:
    """Check that the store has one job, of this order."""
    with Scheduler(url) as scheduler:
        [job] = scheduler.get_jobs()
        assert (job.job, job.data) == ("shop.jobs:InvoiceJob", {"order": order})


def check_order(shop: PostgreSQL) -> None:
    """Check that the order is committed, and its job."""
    with psycopg.connect(shop.url) as operator:
        assert operator.execute("SELECT number FROM orders").fetchall() == [(4711,)]
    check_job(shop.url)


def test_the_code_for_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Scheduler("shop.db") as scheduler:
        scheduler.stats()
    with closing(sqlite3.connect("shop.db")) as operator:
        operator.execute("CREATE TABLE orders (number INTEGER)")
    [text] = code("On SQLite")

    run(tmp_path, text)["database"].close()

    with closing(sqlite3.connect("shop.db")) as operator:
        assert operator.execute("SELECT number FROM orders").fetchall() == [(4711,)]
    check_job("shop.db")


def test_the_code_for_mongodb(tmp_path: Path, mongo_set: str) -> None:
    name = f"shop_{secrets.token_hex(6)}"
    [text] = code("On MongoDB")
    text = text.replace("mongodb://db-1,db-2,db-3/?replicaSet=rs0", mongo_set).replace("client.shop", f"client.{name}")

    with pymongo.MongoClient[dict[str, Any]](mongo_set) as operator:
        try:
            names = run(tmp_path, text)
            assert [order["number"] for order in operator[name].orders.find()] == [4711]
            [job] = names["scheduler"].get_jobs()
            assert job.data == {"order": 4711}
            names["scheduler"].close()
            names["client"].close()
        finally:
            operator.drop_database(name)


def test_the_code_for_psycopg(tmp_path: Path, shop: PostgreSQL) -> None:
    [text] = code("psycopg")

    run(tmp_path, text.replace(SHOP, shop.url))["scheduler"].close()

    check_order(shop)


def test_the_code_for_sqlalchemy(tmp_path: Path, shop: PostgreSQL) -> None:
    text, _ = code("SQLAlchemy")
    url = shop.url.replace("postgresql:", "postgresql+psycopg:")

    with Scheduler(shop.url) as scheduler:
        names = run(
            tmp_path, text.replace("postgresql+psycopg://shop@db-1/shop", url), scheduler=scheduler, Order=Order
        )
    names["engine"].dispose()

    check_order(shop)


def test_the_code_for_asynchronous_sqlalchemy(tmp_path: Path, shop: PostgreSQL) -> None:
    _, text = code("SQLAlchemy")
    function = "async def add(engine, scheduler):\n" + textwrap.indent(text, "    ")
    add = run(tmp_path, function, AsyncSession=AsyncSession, Order=Order)["add"]

    async def work() -> None:
        engine = create_async_engine(shop.url.replace("postgresql:", DRIVER))
        async with AsyncScheduler(shop.url) as scheduler:
            await add(engine, scheduler)
        await engine.dispose()

    asyncio.run(work())

    check_order(shop)


def test_the_code_for_fastapi(tmp_path: Path, shop: PostgreSQL) -> None:
    [text] = code("FastAPI")
    text = text.replace(f"{DRIVER}//shop@db-1/shop", shop.url.replace("postgresql:", DRIVER)).replace(SHOP, shop.url)

    with TestClient(run(tmp_path, text, Order=Order)["app"], raise_server_exceptions=False) as client:
        assert client.post("/orders/4711").status_code == 202
        assert client.post("/orders/4711").status_code == 500  # the number is there: neither an order nor a job

    check_order(shop)


def test_the_code_for_django(tmp_path: Path, shop: PostgreSQL) -> None:
    [text] = code("Django")
    address = {"NAME": "postgres", "USER": USER, "PASSWORD": shop.password, "HOST": "127.0.0.1", "PORT": shop.port}
    database = {"ENGINE": "django.db.backends.postgresql", **address}
    (tmp_path / "order.py").write_text(DJANGO.format(database=database, url=shop.url, code=text))

    subprocess.run([sys.executable, tmp_path / "order.py"], check=True, timeout=LIMIT)

    check_order(shop)


def test_the_code_for_another_database(tmp_path: Path) -> None:
    [text] = code("In another database")
    saved: list[ObjectId] = []
    order = SimpleNamespace(number=4711)
    order.save = lambda: saved.append(order.job_id)
    url = f"sqlite://{tmp_path}/jobs.db"

    with Scheduler(url) as scheduler, closing(sqlite3.connect(":memory:")) as database:
        names = {"scheduler": scheduler, "database": database, "order": order, "InvoiceJob": "shop.jobs:InvoiceJob"}
        run(tmp_path, text, **names)
        assert saved == [scheduler.get_job(order.job_id).id]

    check_job(url)
