"""Whatever is wrong with an address, its password is shown by nothing."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from taskqueue.errors import ConfigError
from taskqueue.store.migration import open_migration, pending_steps
from taskqueue.store.mongodb.url import parse
from taskqueue.store.open import open_store
from taskqueue.store.redaction import concealed, concealed_arguments, concealed_in

SECRET = "g3heim"

MISTYPED = (
    f"mysql://ann:{SECRET}@h/db",
    f"postgres://ann:{SECRET}@h/db?taskqueue.colour=red",
    f"MongoDB://ann:{SECRET}@h/db",
    f"MONGODB+SRV://ann:{SECRET}@h/db",
    f"mongo://ann:{SECRET}@h",
    f"mongodb:/ann:{SECRET}@h/db",
    f"mongodb:ann:{SECRET}@h/db",
    f"mongodb//ann:{SECRET}@h/db",
    f" mongodb://ann:{SECRET}@h/db",
    f"ann:{SECRET}@h/db",
    f"sqlite://ann:{SECRET}@h/jobs.db",
    f"sqlite://ann:{SECRET}@/jobs.db?mode=0660",
    f"sqlite:ann:{SECRET}@jobs.db",
    f"sqlite:///tmp/jobs.db?password={SECRET}",
    f"mysql://h/db?user=ann&password={SECRET}",
    f"postgres://h/db?user=ann&password={SECRET}&taskqueue.schema=$",
    f"mongodb://ann:{SECRET}/x@h/db",
    f"mongodb://ann:x/{SECRET}@h/db",
    f"mongodb://ann:x?{SECRET}@h/db",
    f"mongodb://ann:x#{SECRET}@h/db",
    f"mongodb://ann:x@{SECRET}@h/db",
    f"mongodb://ann@d:{SECRET}%@h/db",
    f"mongodb://ann:{SECRET}%zz@h/db",
    f"mongodb://ann:12/{SECRET}@h/db",
    f"mongodb://ann:{SECRET}",
    f"mongodb://ann:{SECRET}@",
    f"mongodb://:{SECRET}@h:x/db",
    f"mongodb://[ann:{SECRET}@h/db",
    f"mongodb://ann:{SECRET}@h/db?taskqueue.colour=red",
    f"mongodb://ann:{SECRET}@h/db?taskqueue.prefix=$",
    f"mongodb://ann:{SECRET}@h/d$b",
    f"mongodb://ann:{SECRET}\u2100@h/db",
    f"sqlite://ann:{SECRET}\u2100@h/db",
    f"postgresql://ann:x@{SECRET}@h/db",
    f"postgresql://ann:x#{SECRET}@h/db",
    f"postgresql://ann:x/{SECRET}@h/db",
    f"postgresql://ann:x?{SECRET}@h/db",
    f"postgresql://ann:{SECRET}%zz@h/db",
    f"postgresql://ann:{SECRET}/db",
    f"postgresql://h/db?taskqueue.direct=mysql://ann:{SECRET}@h",
    f"postgresql://h/db?taskqueue.direct=mysql%3A//ann%3A{SECRET}%40h",
    f"postgresql://:{SECRET}@h:x/db",
)
"""Every way to get the address of a store wrong that has a password in it."""


@pytest.mark.parametrize("use", [open_store, lambda url: pending_steps(open_migration(url))], ids=["open", "migrate"])
@pytest.mark.parametrize("url", MISTYPED)
def test_no_error_about_a_mistyped_address_says_the_password(url: str, use: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        use(url)

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in concealed(url)


@pytest.mark.parametrize(
    "option",
    [
        f"proxyPassword={SECRET}",
        f"authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{SECRET}:x",
        f"tlsCertificateKeyFilePassword={SECRET}&w=1",
    ],
)
def test_options_with_secrets_are_concealed(option: str) -> None:
    assert SECRET not in concealed(f"mongodb://h/db?{option}")
    assert SECRET not in parse(f"mongodb://h/db?{option}").shown


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///srv/jobs.db?mode=0660&timeout=5",
        "/srv/me@home/jobs.db",
        "mongodb://a:27017,b:27018/jobs?replicaSet=rs0&appname=x",
        "mongodb://[::1]:27017/jobs?tlsCertificateKeyFile=/etc/key.pem",
        "mongodb+srv://ann@cluster.example.org/jobs",
    ],
)
def test_an_address_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert concealed(url) == url


def test_the_user_and_the_server_are_shown() -> None:
    assert concealed("mongodb://ann:a:b@c@db-1,db-2/jobs?w=1") == "mongodb://ann:***@db-1,db-2/jobs?w=1"
    assert concealed_in("No such command 'mongodb://ann:x@h'.") == "No such command 'mongodb://ann:***@h'."
    assert concealed_arguments(["taskqueue", "--url", "mongodb://a:b@h", "--url=mongodb://a:b@h", "list"]) == [
        "taskqueue", "--url", "mongodb://a:***@h", "--url=mongodb://a:***@h", "list",
    ]  # fmt: skip


def test_a_long_word_is_looked_through_in_one_go() -> None:
    word = "a" * 1_000_000  # looked through from each of its letters, it takes an hour

    assert concealed_in(f"{word} {word}://ann:{SECRET}@h") == f"{word} {word}://ann:***@h"


@pytest.mark.parametrize("end", ["", f"mongodb://ann:{SECRET}@h"])
def test_a_long_word_of_addresses_is_looked_through_in_one_go(end: str) -> None:
    word = "mongodb://db:27017," * 100_000  # looked through from each address to its end, it takes half an hour

    assert concealed_in(word + end) == (f"mongodb://db:***{end[-2:]}" if end else word)


@pytest.mark.parametrize("piece", ["{", "pass", "a=", "mongodb://"])
def test_a_long_address_is_looked_through_in_one_go(piece: str) -> None:
    assert SECRET not in concealed(f"{piece * 100_000}?password={SECRET}")
