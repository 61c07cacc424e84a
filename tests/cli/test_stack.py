"""``taskqueue stack`` prints what the node answers, or why there is nothing to print."""

from __future__ import annotations

import threading
from collections.abc import Callable

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Status
from taskqueue.model.stack import ANSWER, REQUEST
from taskqueue.store import Lease, Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.nodes import eventually
from tests.scheduler.playing import WEB_1, seat, take

Taskqueue = Callable[..., Answer]
STACK = 'Main thread (most recent call first):\n  File "/app/shop.py", line 12 in charge'


def answer(store: Store, about: dict[str, str]) -> None:
    """Answer the next request as a node would."""
    [request] = eventually(lambda: [lease for lease in store.leases() if lease.name.startswith(REQUEST)])
    name = request.name.replace(REQUEST, ANSWER)
    store.acquire(Lease(name=name, holder=WEB_1, since=request.since, until=request.until, about=about), store.now())


def asked(taskqueue: Taskqueue, store: Store, about: dict[str, str], *options: str) -> Answer:
    """Return what the command says when the node answers so."""
    added = records.record(status=Status.WAITING)
    store.add([added])
    take(store)
    seat(store, "web-1")
    node = threading.Thread(target=answer, args=(store, about))
    node.start()
    said = taskqueue("stack", *options, str(added.id))
    node.join()
    assert {lease.name for lease in store.leases()} == {"seat:web-1"}
    return said


def test_the_stack_is_printed(taskqueue: Taskqueue, store: Store) -> None:
    said = asked(taskqueue, store, {"stack": f"{STACK}\x1b", "why_not": ""})

    assert (said.code, said.out) == (Exit.OK, f"{STACK}\\x1b\n")


def test_for_programs_it_is_an_object_with_the_job(taskqueue: Taskqueue, store: Store) -> None:
    document = asked(taskqueue, store, {"stack": STACK, "why_not": ""}, "--json").document

    assert (document["status"], document["node"], document["stack"]) == ("PROCESSING", "web-1", STACK)


def test_why_there_is_none_is_said(taskqueue: Taskqueue, store: Store) -> None:
    said = asked(taskqueue, store, {"stack": "", "why_not": "its worker is stopped (SIGSTOP)"})

    assert said.code == Exit.ERROR
    assert "cannot be read: its worker is stopped (SIGSTOP): ask again" in said.complaint


def test_a_job_that_has_ended_has_none(taskqueue: Taskqueue, store: Store) -> None:
    failed = records.in_full()
    store.add([failed])

    said = taskqueue("stack", str(failed.id))

    assert said.code == Exit.ERROR
    assert "is FAILED: a job can show its stack while it is PROCESSING" in said.complaint
