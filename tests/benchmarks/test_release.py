"""The measurement of large workflows says what it measured, on both stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import ObjectId

from benchmarks.release import fan_in, fan_out
from tests.servers import with_database

pytestmark = pytest.mark.long


@pytest.fixture(params=["sqlite", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    return with_database(request.getfixturevalue("mongo_set"), f"release_{ObjectId()}")


def test_members_are_added_released_and_canceled(url: str) -> None:
    figures = fan_out(url, 5)

    assert figures.keys() == {"added", "released", "canceled"}
    assert min(figures.values()) > 0


def test_members_end_before_one(url: str) -> None:
    assert fan_in(url, 5)["ended"] > 0
