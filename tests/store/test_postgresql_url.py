"""The URL of a PostgreSQL store: options of the driver and one of the store's own."""

from __future__ import annotations

import pytest

from taskqueue.errors import ConfigError
from taskqueue.store.open import database_of, resolved
from taskqueue.store.postgresql.url import SCHEMA, parse

URL = "postgresql://ann:secret@db.example:5433/shop"


def test_a_url_names_server_database_and_schema() -> None:
    address = parse(f"{URL}?taskqueue.schema=jobs&sslmode=require")

    assert address.schema == "jobs"
    assert address.client_url == f"{URL}?sslmode=require"
    assert address.options["application_name"] == "taskqueue"
    assert address.options["sslmode"] == "require"
    assert parse(URL).schema == SCHEMA


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_mean_the_same(scheme: str) -> None:
    assert parse(f"{scheme}://db/shop").options["dbname"] == "shop"


def test_an_option_of_the_url_goes_before_the_usual_one() -> None:
    assert parse(f"{URL}?connect_timeout=9").options["connect_timeout"] == "9"
    assert parse(URL).options["target_session_attrs"] == "read-write"


def test_the_password_is_never_shown() -> None:
    shown = parse(f"{URL}?taskqueue.schema=jobs").shown

    assert "secret" not in shown
    assert shown.endswith("db.example:5433/shop?taskqueue.schema=jobs")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://db/shop", "'mysql' is not a PostgreSQL scheme"),
        (f"{URL}?taskqueue.schema=Jobs", "is not the name of a schema"),
        (f"{URL}?taskqueue.schema=pg_jobs", "is not the name of a schema"),
        (f"{URL}?taskqueue.schema={'x' * 42}", "is not the name of a schema"),
        (f"{URL}?taskqueue.prefix=x", "has the option 'taskqueue.prefix', which does not exist"),
        (f"{URL}?colour=red", "correct the URL"),
        (f"{URL}?sslmod=require", r"correct the URL; did you mean sslmode\?$"),
        (f"{URL}?schema=jobs", r"correct the URL; did you mean taskqueue\.schema\?$"),
        (f"{URL}?sslmode", "correct the URL$"),
        (f"{URL}#here", "is not read"),
        ("postgresql://db/sh op", "has a blank"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_a_url_of_a_server_is_no_file() -> None:
    assert database_of(URL) is None
    assert resolved(URL) == URL
