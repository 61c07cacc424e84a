"""Bells of PostgreSQL: one listening connection for a process, which is opened again when it is lost."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from taskqueue.store import Store
from taskqueue.store.bell import ENDS, NEWS, PLANS, WORK
from taskqueue.store.fan_out import LISTEN_PAUSE, RungBell
from taskqueue.store.open import open_store
from taskqueue.store.postgresql import bells
from taskqueue.store.postgresql.url import parse
from tests.forking import fork
from tests.nodes import eventually
from tests.postgresql import PostgreSQL
from tests.store.records import a_record, rings

LISTENING = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


@pytest.fixture
def store(postgresql_server: PostgreSQL) -> Iterator[Store]:
    """Open a store on a server that the test may hurt."""
    with closing(open_store(postgresql_server.url)) as opened:
        yield opened


def listening(server: PostgreSQL) -> list[int]:
    """Return the sessions that listen."""
    with psycopg.connect(server.url) as operator:
        return [pid for (pid,) in operator.execute(LISTENING).fetchall()]


def test_the_bells_of_a_process_share_one_connection(store: Store, postgresql_server: PostgreSQL) -> None:
    assert listening(postgresql_server) == []

    bells = [store.bell(topic) for topic in (WORK, NEWS, ENDS)]
    assert len(listening(postgresql_server)) == 1

    for bell in bells:
        bell.close()
    eventually(lambda: not listening(postgresql_server))
    with closing(store.bell(WORK)) as bell:
        store.add([a_record()])
        assert rings(bell)


def test_the_thread_of_the_bells_ends_with_the_store(postgresql_server: PostgreSQL) -> None:
    before = threading.active_count()
    with closing(open_store(postgresql_server.url)) as store:
        store.bell(WORK)
        assert threading.active_count() == before + 1

    eventually(lambda: threading.active_count() == before)


def test_a_bell_is_closed_while_its_thread_ends_by_itself(store: Store, postgresql_server: PostgreSQL) -> None:
    class Late(bells.Listener):
        def _wake(self) -> None:
            store.add([a_record()])  # the thread hears it, and ends since the last bell is closed
            eventually(lambda: "taskqueue-bell" not in [thread.name for thread in threading.enumerate()])
            super()._wake()

    listener, bell = Late(parse(postgresql_server.url), str), RungBell(WORK)
    assert listener.admit(bell)

    bell.close()

    assert bell.is_over


def test_a_bell_rings_for_its_own_topic_and_store(store: Store, postgresql_server: PostgreSQL) -> None:
    other_url = f"{postgresql_server.url}?taskqueue.schema=other"
    with closing(open_store(other_url)) as other:
        plans, work, elsewhere = store.bell(PLANS), store.bell(WORK), other.bell(WORK)

        store.add([a_record()])

        assert rings(work)
        assert not select.select([plans, elsewhere], [], [], 0)[0]


def test_a_lost_connection_rings_and_listens_again(store: Store, postgresql_server: PostgreSQL) -> None:
    bell = store.bell(WORK)

    postgresql_server.kill()
    assert rings(bell)
    postgresql_server.start()

    eventually(lambda: bell.pause == LISTEN_PAUSE)
    assert rings(bell)
    with closing(open_store(postgresql_server.url)) as other:
        other.add([a_record()])
    assert rings(bell)


def test_an_ended_session_is_replaced(store: Store, postgresql_server: PostgreSQL) -> None:
    bell = store.bell(WORK)
    [pid] = listening(postgresql_server)

    with psycopg.connect(postgresql_server.url) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))

    assert rings(bell)
    [again] = eventually(lambda: listening(postgresql_server))
    assert again != pid


def test_a_session_that_does_not_answer_is_given_up(postgresql_server: PostgreSQL) -> None:
    """As that of a server that stands still, whose sockets stay open."""
    with closing(bells.listening(parse(postgresql_server.url), str)) as raw:
        raw.answers_within = 0.5
        pid = raw.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.5 s"):
                raw.execute("SELECT 1")
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_forked_child_listens_for_itself(store: Store, postgresql_server: PostgreSQL) -> None:
    bell = store.bell(WORK)

    child = fork()
    if not child:
        with closing(store.bell(WORK)) as own:
            store.add([a_record()])
            heard = rings(own)
        store.close()
        os._exit(0 if heard else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rings(bell)
    store.add([a_record()])
    assert rings(bell)
