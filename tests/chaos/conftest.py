"""What chaos tests share: empty stores of each kind, and the hosts of the fault matrix."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from taskqueue.store.postgresql import remove
from tests.chaos.host import Host
from tests.chaos.moment import Moment
from tests.chaos.process_fault import ProcessFault
from tests.servers import PATIENCE, prepared

HostFor = Callable[[ProcessFault], Host]

PATIENT, BRIEF = 60.0, 6.0
"""Seconds of a lease that does not end in a test, and of one that does: only where a test stops the node for so long.

A machine that stands still for half of it ends a run, and rightly so.
"""


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cells of the fault matrix as long, but for every fault of a running job: on servers only SIGKILL."""
    for item in items:
        cell = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "moment" not in cell:
            continue
        is_other = (
            cell.get("new_url") in ("mongodb", "postgresql")
            and cell.get("fault", ProcessFault.SIGKILL) is not ProcessFault.SIGKILL
        )
        if is_other or cell["moment"] is not Moment.RUNNING:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mongodb"])
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Return what gives the URL of an empty store, another one each time."""

    def sqlite() -> str:
        return f"sqlite://{tmp_path_factory.mktemp('store')}/jobs.db"

    def mongodb() -> str:
        server: str = request.getfixturevalue("mongo_set")
        name = f"chaos_{secrets.token_hex(6)}"
        request.addfinalizer(lambda: _drop(server, name))
        return f"{prepared(server, name)}&timeoutMS={PATIENCE * 1000:.0f}"

    def postgresql() -> str:
        server: str = request.getfixturevalue("postgresql_url")
        url = f"{server}?taskqueue.schema=chaos_{secrets.token_hex(6)}"
        request.addfinalizer(lambda: remove(url))
        return url

    return {"sqlite": sqlite, "mongodb": mongodb, "postgresql": postgresql}[request.param]


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    """Return the URL of an empty store."""
    return new_url()


@pytest.fixture(scope="module")
def host_for(new_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostFor]:
    """Return what gives the host for a fault, the same for all cases of a file; its lease is brief for SIGSTOP."""
    with ExitStack() as stack:
        hosts: dict[float, Host] = {}

        def host_for(fault: ProcessFault) -> Host:
            lease = BRIEF if fault is ProcessFault.SIGSTOP else PATIENT
            if lease not in hosts:
                folder: Path = tmp_path_factory.mktemp("host")
                hosts[lease] = stack.enter_context(closing(Host(new_url(), folder, lease)))
            return hosts[lease]

        yield host_for


def _drop(server: str, name: str) -> None:
    with MongoClient[dict[str, Any]](server) as client:
        client.drop_database(name)
