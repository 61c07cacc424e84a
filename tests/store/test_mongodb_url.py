"""What a MongoDB URL means to us, and what of it is shown."""

from __future__ import annotations

import pytest

from taskqueue.errors import ConfigError
from taskqueue.store.mongodb.connection import Connection
from taskqueue.store.mongodb.driver_errors import DEADLINE
from taskqueue.store.mongodb.url import PREFIX, parse


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
        ("mongodb://", "mongodb:// names no server: write mongodb://host/database"),
        ("mongodb:///jobs?proxyPassword=x", "mongodb:///jobs?proxyPassword=*** names no server"),
        ("mongodb://a/jobs?taskqueue.colour=red", "use taskqueue.prefix=NAME_"),
        ("mongodb://a/jobs?taskqueue.prefix=", "use up to 60 letters"),
        ("mongodb://a/jobs?taskqueue.prefix=$x", "use up to 60 letters"),
        ("mongodb://a/jobs?taskqueue.prefix=system.", "use up to 60 letters"),
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
    [("w=1&foo=bar", "the driver knows no option 'foo'"), ("maxPoolSize=many", "(?i)maxPoolSize")],
)
def test_an_option_that_the_driver_does_not_understand_is_refused(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*correct the URL"):
        Connection(parse(f"mongodb://host/db?{option}")).hello()
