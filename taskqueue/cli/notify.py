"""``taskqueue notify``: what the receivers of notifications have accepted, and a test message to each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.insight.needs import Subject
from taskqueue.insight.notifications import Delivery, KnownFinding, Message, state_of
from taskqueue.model.finding import Level
from taskqueue.model.timestamps import host_time, milliseconds, moment
from taskqueue.model.wording import count, minute
from taskqueue.notifications import receiver_of
from taskqueue.notifications.receiver import NotDelivered


@click.command("notify", short_help="Show the receivers of notifications, or test them.")
@click.option("--test", "tests", is_flag=True, help="Send a test message to each receiver, from this process.")
@click.option(
    "--notify",
    "receivers",
    multiple=True,
    envvar="TASKQUEUE_NOTIFY",
    show_envvar=True,
    metavar="RECEIVER",
    help="A receiver to test, written as for taskqueue-node; may be repeated.",
)
@output.json_option("a JSON list")
@pass_store
def notify_command(context: StoreContext, tests: bool, receivers: Sequence[str], as_json: bool) -> int:
    """Show which messages the receivers of notifications have not accepted yet, and why.

    With --test, send each of them a test message, and exit with 1 if one does not accept it. The test needs the
    variables that the node has (TASKQUEUE_NOTIFY_KEY, TASKQUEUE_NOTIFY_PASSWORD), and no store.
    """
    if tests:
        return _try(receivers, as_json)
    now = context.store.now()
    deliveries = list(state_of(context.store.leases()).receivers.values())
    if as_json:
        output.write_all(
            {
                "receiver": delivery.name,
                "open": len(delivery.known),
                "waiting": None if delivery.message is None else delivery.message.id,
                "tries": delivery.tries,
                "error": delivery.error or None,
            }
            for delivery in deliveries
        )
        return Exit.OK
    from taskqueue.cli import terminal

    for delivery in deliveries:
        terminal.sentences(f"{delivery.name}: {_says(delivery, now)}")
    if not deliveries:
        terminal.sentences("no node has sent notifications: start nodes with --notify")
    return Exit.OK


def _says(delivery: Delivery, now: datetime) -> str:
    if delivery.message is None:
        return f"accepted all messages; it knows of {count(len(delivery.known), 'finding')}"
    error = f": {delivery.error}" if delivery.error else ""
    return f"a message from {minute(moment(delivery.message.at), now)} is waiting, tried {delivery.tries}×{error}"


def _try(receivers: Sequence[str], as_json: bool) -> int:
    """Send a test message to each, and return the exit code."""
    if not receivers:
        raise ConfigError("--test needs receivers: pass --notify, or set TASKQUEUE_NOTIFY, as for the node")
    results = list(_tried(receivers))
    if as_json:
        output.write_all({"receiver": name, "error": error or None} for name, error in results)
    else:
        from taskqueue.cli import terminal

        for name, error in results:
            terminal.sentences(f"{name}: {f'did not accept the test message: {error}' if error else 'accepted it'}")
    return Exit.ERROR if any(error for _, error in results) else Exit.OK


def _tried(receivers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each receiver and why it did not accept its message; an empty text if it did."""
    trial = _trial()
    for text in receivers:
        receiver = receiver_of(text)
        try:
            receiver.send(trial, os.environ)
        except (NotDelivered, ConfigError) as error:
            yield receiver.name, str(error)
        else:
            yield receiver.name, ""


def _trial() -> Message:
    now = milliseconds(host_time())
    finding = KnownFinding(
        id=f"fnd_{secrets.token_hex(12)}",
        key="",
        subject=Subject.NOTIFICATIONS.value,
        name="",
        level=Level.WARNING.value,
        says="this is a test message",
        do="nothing",
        since=now,
    )
    return Message(id=f"msg_{secrets.token_hex(12)}", at=now, began=(finding,))
