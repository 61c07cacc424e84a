"""What a MongoDB URL means to us, and what of it is shown."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from pymongo import MongoClient

from taskqueue.errors import ConfigError
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import DEADLINE
from taskqueue.store.mongodb.url import PREFIX, MongoUrl, parse


@pytest.mark.parametrize(
    ("url", "client_url", "prefix"),
    [
        ("mongodb://a/jobs", "mongodb://a/jobs", PREFIX),
        ("mongodb://a,b:1,c/jobs?replicaSet=rs0", "mongodb://a,b:1,c/jobs?replicaSet=rs0", PREFIX),
        ("mongodb+srv://a.example.org/jobs?tls=true", "mongodb+srv://a.example.org/jobs?tls=true", PREFIX),
        ("mongodb://a/jobs?taskqueue.prefix=mail_", "mongodb://a/jobs", "mail_"),
        ("mongodb://a/?tls=true&taskqueue.prefix=mail%5F&w=1", "mongodb://a/?tls=true&w=1", "mail_"),
        ("mongodb://a?taskqueue.prefix=m.", "mongodb://a/", "m."),
    ],
)
def test_the_driver_gets_all_options_but_ours(url: str, client_url: str, prefix: str) -> None:
    address = parse(url)

    assert (address.client_url, address.prefix) == (client_url, prefix)


@pytest.mark.parametrize(
    ("url", "timeout"),
    [
        ("mongodb://a/jobs", DEADLINE),
        ("mongodb://a/jobs?timeoutMS=1500&w=1", 1.5),
        ("mongodb://a/jobs?timeoutms=20000", 20.0),
        ("mongodb://a/jobs?timeoutMS=0", DEADLINE),
    ],
)
def test_a_call_takes_as_long_as_the_option_of_the_driver_says(url: str, timeout: float) -> None:
    assert parse(url).timeout == timeout


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mongodb://a/jobs", "mongodb://a/jobs"),
        ("mongodb://ann:s3cret@a,b/jobs?w=1", "mongodb://ann@a,b/jobs?w=1"),
        ("mongodb://ann@a/jobs", "mongodb://ann@a/jobs"),
        (
            "mongodb://a/jobs?tlsCertificateKeyFilePassword=s3cret&w=1",
            "mongodb://a/jobs?tlsCertificateKeyFilePassword=***&w=1",
        ),
        ("mongodb://a/?authMechanismProperties=AWS_SESSION_TOKEN:s3cret", "mongodb://a/?authMechanismProperties=***"),
        ("mongodb://a/jobs?taskqueue.prefix=mail_&w=1", "mongodb://a/jobs?w=1&taskqueue.prefix=mail_"),
    ],
)
def test_secrets_are_never_shown(url: str, shown: str) -> None:
    assert parse(url).shown == shown


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("postgres://a/jobs", "use mongodb://"),
        ("mongodb://", "mongodb:// does not name a server: write mongodb://host/database"),
        ("mongodb:///jobs?proxyPassword=x", "mongodb:///jobs?proxyPassword=*** does not name a server"),
        ("mongodb://a/jobs?taskqueue.colour=red", "use taskqueue.prefix=NAME_"),
        ("mongodb://a/jobs?taskqueue.prefix=", "use up to 60 letters"),
        ("mongodb://a/jobs?taskqueue.prefix=$x", "use up to 60 letters"),
        ("mongodb://a/jobs?taskqueue.prefix=system.", "use up to 60 letters"),
        ("mongodb://a/jobs ", "begins or ends with a space: remove it"),
        ("mongodb://a/jobs'", "begins or ends with a quote: remove it"),
        ("mongodb://a/jobs # ours", "contains a comment"),
        ("mongodb:// a/jobs", "has a space"),
        ("mongodb://a ,b/jobs", "has a space"),
        ("mongodb://a/jobs?w=1& tls=true", "has a space"),
        ("mongodb://a/jobs#1", "'#1' of mongodb://a/jobs#1 is not read"),
        ("mongodb://a/jobs?replicaSet=", "the option replicaSet has no value"),
        ("mongodb://a/jobs?w=&tls=true", "the option w has no value"),
        ("mongodb://a/jobs?tls", "the option tls has no value"),
        ("mongodb://a/jobs?timeoutMS=5", "timeoutMS=5 is 5 milliseconds"),
        (
            "mongodb://a/jobs?TIMEOUTMS=99&w=1",
            "TIMEOUTMS=99 is 99 milliseconds, too short for any call",
        ),
    ],
)
def test_what_is_wrong_with_a_url_is_said_with_the_way_out(url: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)

    assert way_out in str(caught.value)


@pytest.mark.parametrize("name", ["admin", "local", "config"])
def test_a_database_of_the_server_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is a database of the server itself"):
        parse(f"mongodb://host/{name}")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("w=1&foo=bar", "the driver knows no option 'foo'"),
        ("maxPoolSize=many", "(?i)maxPoolSize"),
        ("maxPoolSize=1", "maxPoolSize=1 is one connection, which the change stream takes: pass 2 or more, or 0"),
        ("maxpoolsize=1&w=1", "maxPoolSize=1"),
    ],
)
def test_an_option_that_the_driver_does_not_understand_is_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*correct the URL"):
        Connection(parse(f"mongodb://host/db?{option}")).hello()


@pytest.mark.parametrize("size", [0, 2, 100])
def test_a_pool_of_two_connections_is_enough(size: int) -> None:
    with closing(Connection(parse(f"mongodb://host/db?maxPoolSize={size}"))) as connection:
        assert connection.database.name == "db"


def test_a_client_of_the_caller_with_one_connection_is_refused() -> None:
    with MongoClient[Any]("mongodb://host/db", connect=False, maxPoolSize=1) as client:
        address = MongoUrl.of_database(client["db"], PREFIX)
        with pytest.raises(ConfigError, match="maxPoolSize=1 is one connection"):
            Connection(address, client["db"]).hello()


def test_a_password_may_have_blanks_and_quotes() -> None:
    assert parse("mongodb://ann:it's a 'secret'@a/jobs").shown == "mongodb://ann@a/jobs"
