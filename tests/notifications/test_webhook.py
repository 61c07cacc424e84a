"""A webhook gets each message signed, and only an answer of success counts as taken."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from taskqueue.errors import ConfigError
from taskqueue.notifications import receiver, receiver_of
from taskqueue.notifications.receiver import NotDelivered
from taskqueue.notifications.webhook import keys_of, signature
from tests.nodes import LIMIT
from tests.notifications.receivers import FINDING, KEY, MESSAGE, hook, signed_by

OTHER = "whsec_" + "QUJD" * 8


def test_a_message_is_posted_with_its_id_and_the_signature_of_its_key() -> None:
    with hook() as got:
        receiver_of(got.url).send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": KEY})

    [(headers, body)] = got.requests
    assert headers["webhook-id"] == "msg_1"
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert signed_by(headers, body, bytes(range(32)))
    assert not signed_by(headers, body + b" ", bytes(range(32)))
    [message] = got.messages
    assert message["type"] == "taskqueue.findings"
    assert message["data"]["open"] == 1
    assert message["data"]["began"][0] == {
        "id": "fnd_1",
        "level": "error",
        "subject": "queue",
        "name": "mail",
        "says": "queue mail: 12 jobs waiting. No node takes them – none at all",
        "do": "start one: `taskqueue-node --work-on mail`",
        "since": "2026-11-29T10:06:22.529000+00:00",
        "until": None,
    }


def test_the_signature_is_that_of_the_example_of_standard_webhooks() -> None:
    [key] = keys_of({"TASKQUEUE_NOTIFY_KEY": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})

    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_key_is_replaced_both_sign() -> None:
    with hook() as got:
        receiver_of(got.url).send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": f"{OTHER} {KEY}"})

    [(headers, body)] = got.requests
    assert signed_by(headers, body, bytes(range(32)))
    assert signed_by(headers, body, b"ABC" * 8)


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_an_answer_that_is_no_success_means_not_taken(status: int) -> None:
    with hook([status]) as got, pytest.raises(NotDelivered, match=f"^answered {status}$"):
        receiver_of(got.url).send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": KEY})

    assert len(got.requests) == 1  # it was posted nowhere else


def test_a_redirect_to_what_is_no_address_means_not_taken() -> None:
    with hook([308]) as got:
        got.location = "http://[::1"
        with pytest.raises(NotDelivered, match=r"^answered 308$"):
            receiver_of(got.url).send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": KEY})


def test_halves_of_characters_are_sent_as_question_marks() -> None:
    broken = replace(MESSAGE, began=(replace(FINDING, says="a\udc80b"),))
    with hook() as got:
        receiver_of(got.url).send(broken, {"TASKQUEUE_NOTIFY_KEY": KEY})

    assert got.said("began") == ["a?b"]


def test_a_delivery_ends_however_slow_the_receiver_is() -> None:
    is_over = threading.Event()

    def stand_still() -> None:
        is_over.wait()

    with pytest.raises(NotDelivered, match=r"^did not accept it within 0.1 s$"):
        receiver.in_time(stand_still, 0.1)
    is_over.set()


def test_what_nobody_expects_of_a_delivery_means_not_taken_and_is_not_quoted() -> None:
    def fail() -> None:
        raise LookupError("the password is s3cret")

    with pytest.raises(NotDelivered, match=r"^failed with LookupError$"):
        receiver.in_time(fail)


def test_a_server_that_is_not_there_and_one_that_hangs_up_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
    with pytest.raises(NotDelivered, match=r"^Connection refused$"):
        receiver_of(url).send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": KEY})


def test_an_answer_that_is_no_http_is_not_quoted() -> None:
    def answer() -> None:
        with server.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(b"\x00\x1b[31m\xff\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        answered = threads.submit(answer)
        with pytest.raises(NotDelivered, match=r"^sent an answer that is not HTTP$"):
            receiver_of(f"http://127.0.0.1:{server.getsockname()[1]}/x").send(MESSAGE, {"TASKQUEUE_NOTIFY_KEY": KEY})
        answered.result(LIMIT)


def test_the_name_of_a_webhook_does_not_have_its_path() -> None:
    assert receiver_of("https://hooks.example.org/services/T0/secret?x=1").name == "https://hooks.example.org/…"
    assert receiver_of("https://hooks.example.org").name == "https://hooks.example.org/"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("https://ann:secret@ops.example.org/x", "https://ops.example.org/… has a user or a password"),
        ("https://ops.example.org/x#secret", "https://ops.example.org/… has a part after #"),
        ("https:///secret", "https:… is not a URL"),
        ("http://ops.example.org:port/secret", "http:… is not a URL"),
        ("http://ops.example.org/se cret", "http:… is not a URL"),
        ("http://ops..example.org/secret", "http:… is not a URL"),
        ("http://" + "a" * 64 + ".example.org/secret", "http:… is not a URL"),
    ],
)
def test_what_is_no_webhook_is_refused_without_its_secret_parts(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        receiver_of(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["", "   ", "secret-text", "whsec_c2VjcmV0", "whsec_" + "QUJD" * 40, "whsec_!"])
def test_a_webhook_needs_a_key_of_a_safe_length(key: str) -> None:
    with pytest.raises(ConfigError, match="make one with `echo") as refused:
        receiver_of("https://ops.example.org").check({"TASKQUEUE_NOTIFY_KEY": key})
    assert not key.strip() or key not in str(refused.value)
