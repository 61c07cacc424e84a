"""What users share: while the requests of one user hang, others are answered, and what is beyond a share is refused."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from taskqueue import Scheduler
from taskqueue.model.ids import JobId
from taskqueue.web import app, dashboard, event_hub
from taskqueue.web.api.route import ApiRoute, Call
from taskqueue.web.api_routes import ApiRoutes
from taskqueue.web.problems import Problem
from taskqueue.web.user_shares import SharedThreads, network_of
from taskqueue.web.users import Account, User, UsersFile
from taskqueue.web.viewers import MOST_OF_USER, Sessions, Viewer
from tests.nodes import LIMIT, eventually
from tests.scheduler.jobs import Echo
from tests.web.conftest import PASSWORD
from tests.web.servers import served
from tests.web.test_event_hub import in_thread, played
from tests.web.test_streams import stream

People = tuple[Path, dict[str, str]]


class Gate:
    """Holds calls up until it is opened, and counts them."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._lock = threading.Lock()
        self.calls = 0

    def pass_through(self) -> None:
        """Wait until the gate is open."""
        with self._lock:
            self.calls += 1
        assert self._opened.wait(2 * LIMIT)

    def open(self) -> None:
        """Let all through."""
        self._opened.set()


class Reply(NamedTuple):
    """What a request was answered."""

    status: int
    retry_after: str | None
    text: str


class GatedScheduler(Scheduler):
    """A scheduler with calls that hang."""

    gate: Gate

    def stack(self, id: JobId | str) -> str:
        """Hang as if the node of the job were stopped."""
        self.gate.pass_through()
        return super().stack(id)

    def count_jobs(self, query: Any = None) -> int:
        """Hang in the store, as a query that reads all jobs."""
        store: Any = self._connections.store
        store._engine.read(lambda _: self.gate.pass_through())
        return super().count_jobs(query)

    def audit(self, limit: int = 100, cursor: str | None = None) -> Any:
        """Hang as if the store took long."""
        self.gate.pass_through()
        return super().audit(limit, cursor)

    def history(self, since: Any = "1h", *given: Any, **options: Any) -> Any:
        """Hang as if there were many figures."""
        self.gate.pass_through()
        return super().history(since, *given, **options)


class GatedUsers(UsersFile):
    """A file of users whose passwords take long to be checked."""

    gate: Gate

    def by_password(self, name: str, password: str) -> Account | None:
        """Hang, and check the password."""
        self.gate.pass_through()
        return super().by_password(name, password)


def ask(port: int, path: str, token: str = "", login: str = "") -> Reply:
    """Send a request, and return what it was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    try:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if login:
            headers["content-type"] = "application/x-www-form-urlencoded"
        connection.request("POST" if login else "GET", path, login or None, headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.getheader("retry-after"), answer.read().decode())
    finally:
        connection.close()


@contextmanager
def hanging(gate: Gate, calls: list[Callable[[], Reply]]) -> Iterator[list[Future[Reply]]]:
    """Make calls at once, each in a thread, while the block runs, and open the gate behind it."""
    with ThreadPoolExecutor(len(calls)) as threads:
        try:
            yield [threads.submit(call) for call in calls]
        finally:
            gate.open()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return a closed gate, which opens at the end."""
    closed = Gate()
    yield closed
    closed.open()


@pytest.fixture
def scheduler(url: str, gate: Gate) -> Iterator[GatedScheduler]:
    """Return a scheduler with calls that hang at the gate."""
    made = GatedScheduler(url)
    made.gate = gate
    with made:
        yield made


@pytest.fixture
def made(scheduler: GatedScheduler, people: People, gate: Gate) -> Any:
    """Return a dashboard on it, whose passwords are checked behind the gate."""
    application = app(scheduler, users=people[0])
    users = GatedUsers(people[0])
    users.gate = gate
    application.state.dashboard.viewers.users = users
    return application


@pytest.fixture
def port(made: Any) -> Iterator[int]:
    """Serve the dashboard, and return its port."""
    with served(made) as address:
        yield int(address.rpartition(":")[2])


def refused(replies: list[Future[Reply]]) -> list[Reply]:
    """Return those that were refused so far."""
    return [one.result() for one in replies if one.done() and one.result().status == 429]


def test_a_user_whose_requests_hang_delays_no_other_user(port: int, people: People, gate: Gate) -> None:
    def slow() -> Reply:
        return ask(port, "/api/v1/audit", people[1]["rita"])

    with hanging(gate, [slow] * 20) as replies:
        eventually(lambda: gate.calls >= dashboard.OF_USER)

        assert ask(port, "/api/v1/schedules", people[1]["olaf"]).status == 200
        assert ask(port, "/jobs", people[1]["mia"]).status == 200

        assert (gate.calls, [one for one in replies if one.done()]) == (dashboard.OF_USER, [])
    assert {one.result().status for one in replies} == {200}


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_long_query_of_a_user_keeps_the_store_from_nobody_else(port: int, people: People, gate: Gate) -> None:
    def count() -> Reply:
        return ask(port, "/api/v1/jobs/count", people[1]["rita"])

    with hanging(gate, [count] * 3) as replies:
        eventually(lambda: gate.calls == 1)

        for path in ("/", "/jobs", "/api/v1/jobs", "/api/v1/stats"):
            assert ask(port, path, people[1]["olaf"]).status == 200

        assert gate.calls == 1  # the others of this user wait for the same connection
    assert {one.result().status for one in replies} == {200}


def test_figures_of_a_user_delay_neither_the_other_requests_of_this_user_nor_figures_of_others(
    port: int, people: People, gate: Gate
) -> None:
    def slow(path: str) -> Callable[[], Reply]:
        return lambda: ask(port, f"/api/v1/{path}", people[1]["rita"])

    with hanging(gate, [slow("history"), slow("failures")] * 5) as replies:
        eventually(lambda: gate.calls >= 1)
        assert ask(port, "/jobs", people[1]["rita"]).status == 200
        assert gate.calls == 1

        with ThreadPoolExecutor(1) as others:
            other = others.submit(ask, port, "/api/v1/history", people[1]["olaf"])
            eventually(lambda: gate.calls == 2)
            gate.open()
        assert other.result().status == 200
    assert {one.result().status for one in replies} == {200}


def test_the_answers_of_a_user_are_written_in_the_share_of_the_user(made: Any, people: People) -> None:
    class Written(dict[str, str]):
        def items(self) -> Any:
            return {"in": threading.current_thread().name}.items()

    def get_place(_: Call) -> Any:
        """Return the thread that writes the answer."""
        return Written(there="is something")

    async def answer(request: Request) -> Response:
        return await ApiRoutes(made.state.dashboard).answer(request, ApiRoute("GET /place", get_place, {}))

    made.router.routes.insert(0, Route("/api/v1/place", answer))
    with served(made) as address:
        said = json.loads(ask(int(address.rpartition(":")[2]), "/api/v1/place", people[1]["rita"]).text)
    assert said["in"].startswith("taskqueue-web_")


def test_an_address_without_a_login_has_a_share_and_sends_no_large_form(port: int, made: Any) -> None:
    assert ask(port, "/login").status == 200
    assert ask(port, "/login", login="name=rita&password=" + "%41" * 6000).status == 413

    made.state.dashboard._stranger_threads = SharedThreads("taskqueue-web-test", 1, 1, 0)
    reply = ask(port, "/login")
    assert (reply.status, reply.retry_after) == (429, "1")


def test_a_large_form_of_a_login_is_refused_before_all_of_it_is_there(port: int) -> None:
    head = "POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
        connection.sendall(head.encode() + b"x" * 20_000)

        assert b" 413 " in connection.recv(4096).partition(b"\r\n")[0]


def test_a_user_with_too_many_requests_at_once_is_refused_the_further_ones(
    port: int, people: People, gate: Gate, made: Any
) -> None:
    made.state.dashboard._threads = SharedThreads("taskqueue-web-test", 8, 3, 10)

    def slow() -> Reply:
        return ask(port, "/api/v1/audit", people[1]["rita"])

    with hanging(gate, [slow] * 14) as replies:
        eventually(lambda: len(refused(replies)) == 4)
        assert {one.retry_after for one in refused(replies)} == {"1"}
        assert "requests of rita are already waiting: send fewer at once" in refused(replies)[0].text
        assert ask(port, "/api/v1/schedules", people[1]["olaf"]).status == 200
    made.state.dashboard._threads.end()


def test_stacks_of_a_job_on_a_stopped_node_are_asked_for_one_at_a_time(
    port: int, people: People, gate: Gate, scheduler: Scheduler
) -> None:
    jobs = [str(scheduler.add_job(Echo, number).id) for number in range(4)]
    token = people[1]["rita"]

    def first() -> Reply:
        return ask(port, f"/jobs/{jobs[0]}/stack", token)

    with hanging(gate, [first] * 40) as replies:
        eventually(lambda: len(refused(replies)) == 39)
        reply = refused(replies)[0]
        assert (reply.retry_after, "is already being asked: try again in a second" in reply.text) == ("1", True)
        assert ask(port, f"/jobs/{jobs[0].upper()}/stack", people[1]["olaf"]).status == 429
        assert ask(port, "/jobs", people[1]["olaf"]).status == 200
        assert ask(port, "/jobs", token).status == 200  # the same user's other pages, too
    assert [one.result().status for one in replies if one.result().status != 429] == [200]
    assert ask(port, f"/jobs/{jobs[0]}/stack", token).status == 200


def test_a_user_asks_few_nodes_at_once(port: int, people: People, gate: Gate, scheduler: Scheduler) -> None:
    jobs = [str(scheduler.add_job(Echo, number).id) for number in range(6)]

    def of(job: str) -> Callable[[], Reply]:
        return lambda: ask(port, f"/jobs/{job}/stack", people[1]["rita"])

    with hanging(gate, [of(job) for job in jobs]) as replies:
        eventually(lambda: len(refused(replies)) == len(jobs) - dashboard.NODES_OF_USER)
        assert "requests of rita already wait for nodes" in refused(replies)[0].text


def test_a_flood_of_logins_delays_no_page(port: int, people: People, gate: Gate) -> None:
    login = f"name=rita&password={PASSWORD.replace(' ', '+')}"

    def log_in() -> Reply:
        return ask(port, "/login", login=login)

    with hanging(gate, [log_in] * 20) as replies:
        eventually(lambda: len(refused(replies)) == 20 - dashboard.LOGINS_OF_ADDRESS)

        assert ask(port, "/jobs", people[1]["rita"]).status == 200

        assert gate.calls == 1  # an address has one thread
        reply = refused(replies)[0]
        assert (reply.retry_after, "too many logins at once" in reply.text) == ("1", True)
    assert {one.result().status for one in replies} == {303, 429}


def test_one_user_takes_a_share_of_the_streams(port: int, people: People) -> None:
    with ExitStack() as opened:
        for _ in range(event_hub.MOST_OF_USER):
            one = opened.enter_context(stream(port, "/api/v1/events", authorization=f"Bearer {people[1]['rita']}"))
            assert one.answer.readline() == b"retry: 2000\n"

        def share_is_full() -> bool:
            return ask(port, "/live?of=/", people[1]["rita"]).status == 429

        eventually(share_is_full)
        reply = ask(port, "/api/v1/events", people[1]["rita"])
        assert (reply.status, reply.retry_after) == (429, "1")
        assert "rita has 50 pages and streams open: close some of them" in reply.text
        with stream(port, "/live?of=/", authorization=f"Bearer {people[1]['olaf']}") as other:
            assert other.answer.status == 200


def test_the_users_at_one_address_take_a_share_of_the_streams(scheduler: Scheduler) -> None:
    hub = event_hub.EventHub(scheduler, in_thread)

    def viewer(number: int, address: str) -> Viewer:
        return Viewer(user=User(name=f"user {number}"), address=address, proof="token")

    async def play() -> None:
        async with AsyncExitStack() as opened:
            for number in range(event_hub.MOST_OF_ADDRESS):
                await opened.enter_async_context(hub.open_page(None, viewer(number, f"2001:db8::{number:x}")))
            with pytest.raises(Problem, match="100 pages and streams are open from 2001:db8::/64: close some"):
                hub.check_room(viewer(1000, "2001:db8::ffff"))
            await opened.enter_async_context(hub.listen(viewer(1001, "2001:db8:0:1::1")))

    played(play)


def test_the_sessions_of_a_user_are_bounded_and_those_of_others_stay() -> None:
    sessions = Sessions()
    other = sessions.begin("olaf", None, None)

    ids = [sessions.begin("rita", None, None) for _ in range(MOST_OF_USER + 3)]

    assert [sessions.find(id) is None for id in ids] == [True] * 3 + [False] * MOST_OF_USER
    assert sessions.find(other) is not None


def test_a_call_that_nobody_waits_for_any_more_is_left_out_and_one_that_runs_keeps_its_share(gate: Gate) -> None:
    threads, made = SharedThreads("taskqueue-web-test", 2, 1, 3), []
    first = threads.submit("ana", gate.pass_through)
    given_up = threads.submit("ana", lambda: made.append("given up"))
    last = threads.submit("ana", lambda: made.append("last"))
    assert first is not None
    assert given_up is not None
    assert last is not None
    eventually(lambda: gate.calls == 1)

    assert (given_up.cancel(), first.cancel()) == (True, False)
    assert threads.submit("ana", lambda: None) is None
    other = threads.submit("bob", lambda: made.append("bob"))
    assert other is not None
    other.result(LIMIT)
    gate.open()
    last.result(LIMIT)

    assert made == ["bob", "last"]
    threads.end()


def test_an_error_of_a_call_is_that_of_its_future() -> None:
    threads = SharedThreads("taskqueue-web-test", 1, 1, 1, most_in_all=1)

    def fail() -> None:
        raise LookupError("nothing")

    future = threads.submit("ana", fail)
    assert future is not None
    with pytest.raises(LookupError, match="nothing"):
        future.result(LIMIT)
    threads.end()


def test_all_calls_together_are_bounded(gate: Gate) -> None:
    threads = SharedThreads("taskqueue-web-test", 1, 1, 1, most_in_all=2)
    futures = [threads.submit(key, gate.pass_through) for key in ("ana", "bob", "cid")]

    assert [future is not None for future in futures] == [True, True, False]
    gate.open()
    threads.end()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_an_address_has_the_share_of_its_host(address: str, network: str) -> None:
    assert network_of(address) == network
