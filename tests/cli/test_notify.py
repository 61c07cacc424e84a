"""``taskqueue notify``: what receivers have taken, and a trial of them with real ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.record import Holder
from taskqueue.notifications import id_of, receiver_of
from taskqueue.notifications.watch import Sender
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.cli.conftest import Answer
from tests.notifications.mail_server import mail_server
from tests.notifications.receivers import KEY, command, hook, signed_by


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the key of webhooks, and no receivers."""
    monkeypatch.setenv("TASKQUEUE_NOTIFY_KEY", KEY)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("TASKQUEUE_NOTIFY", raising=False)


def test_a_trial_message_reaches_every_receiver(
    taskqueue: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hook() as got, mail_server() as server:
        mail = f"mailto:ops@example.org?smtp=smtp://localhost:{server.port}"
        monkeypatch.setenv("TASKQUEUE_NOTIFY", f"{got.url} {mail} {command(tmp_path)}")
        answer = taskqueue("notify", "--test")

    assert answer.code == Exit.OK, answer
    assert [line.rpartition(": ")[2] for line in answer.out.splitlines()] == ["accepted it"] * 3
    [(headers, body)] = got.requests
    assert signed_by(headers, body, bytes(range(32)))
    assert got.said("began") == ["this is a test message"]
    assert len(server.mails) == 1


def test_a_trial_says_which_receiver_did_not_take_it_and_why(taskqueue: Callable[..., Answer], tmp_path: Path) -> None:
    with hook([500]) as got:
        receivers = ("--notify", got.url, "--notify", command(tmp_path))
        answer = taskqueue("notify", "--test", *receivers)
        document = taskqueue("notify", "--test", "--json", *receivers)

    assert answer.code == Exit.ERROR
    assert "did not accept the test message: answered 500" in answer.out
    assert [one["error"] for one in document.document] == [None, None]
    assert "secret-path" not in answer.out + document.out


def test_a_trial_without_receivers_says_how_to_name_them(taskqueue: Callable[..., Answer]) -> None:
    answer = taskqueue("notify", "--test")

    assert (answer.code, answer.complaint.partition(": ")[2]) == (
        Exit.CONFIG,
        "--test needs receivers: pass --notify, or set TASKQUEUE_NOTIFY, as for the node",
    )


def test_messages_that_wait_are_shown_with_the_last_error(
    taskqueue: Callable[..., Answer], store: Store, url: str, tmp_path: Path
) -> None:
    assert taskqueue("notify").out == "no node has sent notifications: start nodes with --notify\n"
    with Scheduler(url) as scheduler, hook([500]) as got, closing(open_store(url)) as node_store:
        scheduler.pause("mail")
        texts = (got.url, command(tmp_path))
        receivers = {id_of(text): receiver_of(text) for text in texts}
        sender = Sender(node_store, receivers, Holder(seat="web-1", incarnation="a1"))
        assert len(list(sender.deliveries(OverviewReader(store).read()))) == 3

    text, document = taskqueue("notify").out, taskqueue("notify", "--json").document
    assert "is waiting, tried 1×: answered 500" in text
    assert "page: accepted all messages; it knows of 2 findings" in text
    assert [(one["open"], one["tries"], one["error"]) for one in document] == [(0, 1, "answered 500"), (2, 0, None)]
