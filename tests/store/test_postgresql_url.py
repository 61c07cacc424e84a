"""The URL of a PostgreSQL store: options of the driver and those of the store itself."""

from __future__ import annotations

import pytest

from taskqueue.errors import ConfigError
from taskqueue.store.open import database_of, resolved
from taskqueue.store.postgresql.url import SCHEMA, LockUse, parse
from taskqueue.store.redaction import concealed

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


def test_the_use_of_the_lock_can_be_chosen() -> None:
    assert parse(URL).lock is LockUse.ADAPTIVE
    assert parse(f"{URL}?taskqueue.lock=shared").lock is LockUse.SHARED


def test_the_password_is_never_shown() -> None:
    shown = parse(f"{URL}?taskqueue.schema=jobs").shown

    assert "secret" not in shown
    assert shown.endswith("db.example:5433/shop?taskqueue.schema=jobs")


def test_a_url_of_a_socket_names_no_server() -> None:
    address = parse("postgresql:///shop?host=/run/postgresql&taskqueue.schema=jobs")

    assert (address.options["host"], address.options["dbname"]) == ("/run/postgresql", "shop")
    assert address.shown == "postgresql:///shop?host=/run/postgresql&taskqueue.schema=jobs"


def test_the_server_behind_a_pooler_has_all_that_its_url_leaves_out() -> None:
    address = parse(f"{URL}?sslmode=require&taskqueue.direct=postgresql://db-1")

    assert address.options["host"] == "db.example"
    direct = address.direct_options
    assert (direct["host"], direct["user"], direct["password"], direct["dbname"]) == ("db-1", "ann", "secret", "shop")
    assert direct["sslmode"] == "require"
    assert "port" not in direct  # that of the pooler is another one
    assert parse(URL).direct_options == parse(URL).options


def test_the_url_behind_a_pooler_may_differ_in_all_options() -> None:
    address = parse(
        f"{URL}?taskqueue.direct=postgresql://bob:hidden@db-1:6000/other%3Fsslmode=disable%26gssencmode=disable"
    )

    direct = address.direct_options
    assert (direct["port"], direct["user"], direct["password"], direct["dbname"]) == ("6000", "bob", "hidden", "other")
    assert (direct["sslmode"], direct["gssencmode"]) == ("disable", "disable")
    for shown in (address.shown, address.direct_shown):
        assert "secret" not in shown
        assert "hidden" not in shown


@pytest.mark.parametrize("direct", ["postgresql://bob:secret@db-1", "postgresql%3A%2F%2Fbob%3Asecret%40db-1"])
def test_the_password_of_the_server_behind_a_pooler_is_concealed(direct: str) -> None:
    assert "secret" not in concealed(f"postgresql://pool/shop?taskqueue.direct={direct}")
    assert "secret" not in concealed(f"postgresql://ann:x@pool:6432/shop?taskqueue.direct={direct}")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://db/shop", "'mysql' is not a PostgreSQL scheme"),
        (f"{URL}?taskqueue.schema=Jobs", "is not the name of a schema"),
        (f"{URL}?taskqueue.schema=pg_jobs", "is not the name of a schema"),
        (f"{URL}?taskqueue.schema={'x' * 42}", "is not the name of a schema"),
        (f"{URL}?taskqueue.prefix=x", "has the option 'taskqueue.prefix', which does not exist"),
        (f"{URL}?taskqueue.lock=mine", "taskqueue.lock='mine' does not exist: use adaptive, shared or exclusive"),
        (f"{URL}?taskqueue.direct=db-1:5432", "^taskqueue.direct: 'db-1' is not a PostgreSQL scheme"),
        (f"{URL}?taskqueue.direct=", "^taskqueue.direct: '' is not a PostgreSQL scheme"),
        (f"{URL}?taskqueue.direct=postgresql://db-1:x", "^taskqueue.direct: .* cannot be read"),
        (f"{URL}?taskqueue.direct=postgresql:///shop", "does not name only the server: use taskqueue.direct="),
        (f"{URL}?taskqueue.direct={URL}%3Ftaskqueue.schema=x", "does not name only the server: use taskqueue.direct="),
        (f"{URL}?taskqueue.direct=postgresql://db-1%3Fcolour=red", "^taskqueue.direct: .*correct the URL"),
        (f"{URL}?colour=red", "correct the URL"),
        (f"{URL}?sslmod=require", r"correct the URL; did you mean sslmode\?$"),
        (f"{URL}?schema=jobs", r"correct the URL; did you mean taskqueue\.schema\?$"),
        (f"{URL}?sslmode", "correct the URL$"),
        (f"{URL}#here", "is not read"),
        ("postgresql://db/sh op", "has a space"),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_a_url_of_a_server_is_no_file() -> None:
    assert database_of(URL) is None
    assert resolved(URL) == URL
