"""A mail server gets one mail for a message, with the message's id, and its refusal is told in its own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskqueue.errors import ConfigError
from taskqueue.notifications import receiver_of
from taskqueue.notifications.mail import Mail, mail_of
from taskqueue.notifications.receiver import NotDelivered
from tests.notifications.mail_server import certificate, mail_server
from tests.notifications.receivers import FINDING, MESSAGE
from tests.servers import free_port


def to(port: int, **parts: str) -> Any:
    """Return the receiver ops@example.org of a server on this host."""
    scheme, user = parts.get("scheme", "smtp"), parts.get("user", "")
    return receiver_of(f"mailto:ops@example.org?smtp={scheme}://{user}localhost:{port}&from=tq+a@example.net")


def test_a_mail_says_what_came_up_and_what_to_do() -> None:
    with mail_server() as got:
        to(got.port).send(MESSAGE, {})

    [mail] = got.mails
    assert (
        " ".join(mail["Subject"].split())
        == "[taskqueue] 1 new: queue mail: 12 jobs waiting. No node takes them – none at all"
    )
    assert (mail["To"], mail["From"], mail["Message-ID"]) == (
        "ops@example.org",
        "tq+a@example.net",
        "<msg_1@example.net>",
    )
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content().splitlines()[0] == f"error: {FINDING.says}"
    assert "    do: start one: `taskqueue-node --work-on mail`" in mail.get_content()


def test_the_subject_names_all_that_came_up() -> None:
    second = replace(FINDING, says="the disk is full")
    mail = to(25).mail_of(replace(MESSAGE, began=(FINDING, second)))

    assert mail["Subject"] == (
        "[taskqueue] 2 new: queue mail: 12 jobs waiting. No node takes them – none at all; the disk is full"
    )


def test_a_mail_says_what_is_over_and_how_long_it_lasted() -> None:
    over = replace(FINDING, gone_since=FINDING.since + 60_000, is_over=True, says="a\nlong " + "story " * 60)
    with mail_server() as got:
        to(got.port).send(replace(MESSAGE, began=(), over=(over,), open=0), {})

    [mail] = got.mails
    assert mail["Subject"].startswith("[taskqueue] 1 ended: a long story story")
    assert len(mail["Subject"]) == 150
    assert "0 findings open now" in mail.get_content()


def test_the_server_gets_the_address_as_it_was_written() -> None:
    with mail_server() as got:
        mail_of(f"mailto:ops@[192.0.2.1]?smtp=smtp://localhost:{got.port}&from=t@example.org").send(MESSAGE, {})

    assert got.recipients == ["ops@[192.0.2.1]"]


def test_the_refusal_of_a_server_is_told_in_its_words() -> None:
    with mail_server(["451 greylisted, try again"]) as got:
        with pytest.raises(NotDelivered, match=r"^the mail server answered 451 greylisted, try again$"):
            to(got.port).send(MESSAGE, {})
        to(got.port).send(MESSAGE, {})

    assert len(got.mails) == 1


def test_a_mail_that_was_taken_stays_taken_however_the_server_parts() -> None:
    with mail_server() as got:
        got.parting = "421 too busy to part"
        to(got.port).send(MESSAGE, {})

    assert len(got.mails) == 1


def test_halves_of_characters_are_sent_as_question_marks() -> None:
    broken = replace(MESSAGE, began=(replace(FINDING, says="a\udc80b"),))
    with mail_server() as got:
        to(got.port).send(broken, {})

    [mail] = got.mails
    assert mail["Subject"] == "[taskqueue] 1 new: a?b"
    assert "error: a?b" in mail.get_content()


def test_a_login_that_is_not_of_ascii_is_refused_without_the_password() -> None:
    with pytest.raises(ConfigError, match="TASKQUEUE_NOTIFY_PASSWORD has characters other than ASCII") as refused:
        to(25, user="ann@").check({"TASKQUEUE_NOTIFY_PASSWORD": "pässwort"})
    assert "ssw" not in str(refused.value).replace("TASKQUEUE_NOTIFY_PASSWORD", "").replace("password", "")
    with pytest.raises(ConfigError, match="user änn of smtp= has characters other than ASCII"):
        to(25, user="%C3%A4nn@")


def test_a_user_logs_in_with_the_password_of_the_variable() -> None:
    with mail_server() as got:
        to(got.port, user="ann@").send(MESSAGE, {"TASKQUEUE_NOTIFY_PASSWORD": "right"})
        with pytest.raises(NotDelivered, match=r"^the mail server answered 535"):
            to(got.port, user="ann@").send(MESSAGE, {"TASKQUEUE_NOTIFY_PASSWORD": "wrong"})

    assert set(got.users) == {(b"ann", b"right"), (b"ann", b"wrong")}  # the wrong one once for each way to log in


def test_a_password_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("right\n")
    with mail_server() as got:
        to(got.port, user="ann@").send(MESSAGE, {"TASKQUEUE_NOTIFY_PASSWORD_FILE": str(tmp_path / "password")})

    assert got.users == [(b"ann", b"right")]


def test_a_server_is_trusted_only_with_a_valid_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, context = certificate(tmp_path)
    with mail_server(context=context) as got:
        with pytest.raises(NotDelivered, match=r"^the certificate of localhost is not valid"):
            to(got.port, scheme="smtps").send(MESSAGE, {})
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        to(got.port, scheme="smtps").send(MESSAGE, {})

    assert len(got.mails) == 1


def test_a_server_elsewhere_that_offers_encryption_gets_no_mail_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = certificate(tmp_path)
    with mail_server(tls_context=context) as got:
        elsewhere = Mail("ops@example.org", "tq@example.org", "smtp", "LOCALHOST", got.port, "")
        with pytest.raises(NotDelivered, match=r"^the certificate of LOCALHOST is not valid"):
            elsewhere.send(MESSAGE, {})
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        elsewhere.send(MESSAGE, {})

    assert len(got.mails) == 1


def test_a_password_never_goes_elsewhere_in_the_clear() -> None:
    with mail_server() as got:
        elsewhere = Mail("ops@example.org", "tq@example.org", "smtp", "LOCALHOST", got.port, "ann")
        with pytest.raises(NotDelivered, match=r"^LOCALHOST offers no encryption for the password: use smtps://$"):
            elsewhere.send(MESSAGE, {"TASKQUEUE_NOTIFY_PASSWORD": "right"})

    assert got.users == []


def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port()
    with pytest.raises(NotDelivered, match=f"^localhost, port {port}: "):
        to(port).send(MESSAGE, {})


def test_an_address_alone_means_the_mail_server_of_this_host() -> None:
    mail = mail_of("mailto:ops@example.org")

    assert (mail.scheme, mail.host, mail.port, mail.user) == ("smtp", "localhost", 25, "")
    assert mail_of("mailto:o@example.org?smtp=smtp://ann@mail.example.org").port == 587
    assert mail_of("mailto:o@example.org?smtp=smtps://ann@mail.example.org").port == 465


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mailto:ops", "'ops' is not one address"),
        ("mailto:ops@example.org,dev@example.org", "is not one address"),
        ("mailto:ops@example.org?from=ann", "'ann' is not one address"),
        ("mailto:ops@dev@example.org", "is not one address"),
        ("mailto:ops:dev@example.org", "is not one address"),  # the address of dev, in the group ops
        ("mailto:ops@example..org", "is not one address"),
        ("mailto:ops@example.org(Ann)", "is not one address"),
        ("mailto:ops@example.org?subject=x", "has subject: it takes smtp and from, each once"),
        ("mailto:ops@example.org?from=a@b&from=c@d", "has an option twice"),
        ("mailto:ops@example.org?smtp=smtps://ann:secret@mail", "has a password: set TASKQUEUE_NOTIFY_PASSWORD"),
        ("mailto:ops@example.org?smtp=imap://mail", "smtp is not the address of a mail server"),
        ("mailto:ops@example.org?smtp=smtp://mail:x", "smtp is not the address of a mail server"),
    ],
)
def test_what_is_no_address_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        mail_of(text)
    assert "secret" not in str(refused.value)


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"user ann of mail.example.org needs a password"):
        mail_of("mailto:ops@example.org?smtp=smtps://ann@mail.example.org").check({})
