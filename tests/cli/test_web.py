"""``taskqueue web``: its users, its refusals, and the server itself."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.web import app
from taskqueue.web.server import MOST_UNREAD, Connection, Server, listen
from taskqueue.web.users import User, UsersFile, account
from tests.chaos.outputs import full_pipe
from tests.cli.conftest import Answer
from tests.nodes import LIMIT, eventually

Command = Callable[..., Answer]
NOBODY = 65534


@pytest.fixture
def users(tmp_path: Path) -> str:
    """Return the path of a file of users that is not there yet."""
    return str(tmp_path / "users.json")


def test_users_are_added_listed_changed_and_removed(taskqueue: Command, users: str) -> None:
    file = ("--users", users)
    operator = ("--role", "operator", "--queue", "mail", "--unmask")
    assert taskqueue("web", "user", "add", "ana", *file, "--no-password", *operator).code == Exit.OK
    assert "token, shown this once: " in taskqueue("web", "user", "add", "bob", *file, "--no-password", "--token").out
    assert stat.S_IMODE(os.stat(users).st_mode) == 0o600

    assert taskqueue("web", "user", "list", *file, "--json").document == [
        {"name": "ana", "role": "operator", "queues": ["mail"], "unmask": True, "password": False, "tokens": 0},
        {"name": "bob", "role": "reader", "queues": None, "unmask": False, "password": False, "tokens": 1},
    ]
    changed = taskqueue("web", "user", "add", "bob", *file, "--no-password", "--role", "operator")
    assert changed.out == f"changed operator bob in {users}\n"
    assert taskqueue("web", "user", "remove", "ana", *file).out == "removed ana\n"
    assert taskqueue("web", "user", "remove", "ana", *file).code == Exit.NOT_FOUND
    assert taskqueue("web", "user", "list", *file).out == "bob  operator  (through a proxy)\n"


def test_a_file_of_users_that_others_can_read_later_is_refused_from_then_on(users: str) -> None:
    file = UsersFile(Path(users))
    file.change({"ana": account(User(name="ana"), None)})
    assert "ana" in file.accounts()

    for _ in range(2):
        os.chmod(users, 0o640)
        for _ in range(2):
            with pytest.raises(ConfigError, match="can be read or written by others"):
                file.accounts()
        os.chmod(users, 0o600)
        assert "ana" in file.accounts()


def test_who_changes_the_file_of_users_waits_for_another_who_does(users: str) -> None:
    names = [f"user-{number}" for number in range(8)]

    def add(name: str) -> None:
        with UsersFile(Path(users)).changing() as accounts:
            accounts[name] = account(User(name=name), None)

    with UsersFile(Path(users)).changing() as accounts:
        waiting = [threading.Thread(target=add, args=(name,)) for name in names]
        for thread in waiting:
            thread.start()
        folder = os.open(Path(users).parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)
        accounts["first"] = account(User(name="first"), None)
    for thread in waiting:
        thread.join(LIMIT)

    assert sorted(UsersFile(Path(users)).accounts()) == ["first", *names]


def test_a_symbolic_link_to_the_file_of_users_stays_when_users_change(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "users.json", tmp_path / "users.json"
    real.parent.mkdir()
    link.symlink_to(real)

    with UsersFile(link).changing() as accounts:
        accounts["ana"] = account(User(name="ana"), None)
    with UsersFile(link).changing() as accounts:
        del accounts["ana"]
        accounts["bob"] = account(User(name="bob"), None)

    assert link.is_symlink()
    assert set(UsersFile(real).accounts()) == {"bob"}
    assert list(real.parent.iterdir()) == [real]


def test_the_file_of_users_stays_that_of_its_owner_when_root_changes_it(users: str) -> None:
    file = UsersFile(Path(users))
    file.change({"ana": account(User(name="ana"), None)})
    os.chown(users, NOBODY, NOBODY)

    file.change({"bob": account(User(name="bob"), None)})

    status = os.stat(users)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (NOBODY, NOBODY, 0o600)


def test_a_file_of_users_in_no_folder_cannot_be_made(taskqueue: Command, tmp_path: Path) -> None:
    answer = taskqueue("web", "user", "add", "ana", "--users", f"{tmp_path}/nowhere/users.json", "--no-password")

    assert answer.code == Exit.CONFIG
    assert "(No such file or directory): create its folder first" in answer.complaint


@pytest.mark.parametrize(("typed", "code"), [("correct horse\n", Exit.OK), ("short\n", Exit.CONFIG), ("", Exit.CONFIG)])
def test_a_password_is_read_from_standard_input(users: str, typed: str, code: Exit) -> None:
    command = [sys.executable, "-m", "taskqueue", "web", "user", "add", "ana", "--users", users]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=LIMIT)

    assert done.returncode == code, done.stderr
    if code == Exit.OK:
        user = UsersFile(Path(users)).by_password("ana", "correct horse")
        assert user is not None
        assert "correct horse" not in Path(users).read_text()
    else:
        assert "use 8 to 1000" in done.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_password_of_another_encoding_is_refused_in_one_line(users: str, locale: str) -> None:
    command = [sys.executable, "-m", "taskqueue", "web", "user", "add", "ana", "--users", users]
    typed = "stra\u00dfenbahn\n".encode("latin-1")
    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": locale}, input=typed, capture_output=True, timeout=LIMIT
    )

    assert done.returncode == Exit.CONFIG
    assert done.stderr.startswith(b"taskqueue: the password is not UTF-8, in which browsers send it")
    assert done.stderr.count(b"\n") == 1
    assert not Path(users).exists()


@pytest.mark.parametrize("queue", ["", "a\nb"])
def test_an_operator_has_no_queue_of_a_name_that_no_queue_has(taskqueue: Command, users: str, queue: str) -> None:
    answer = taskqueue(
        "web", "user", "add", "ana", "--users", users, "--no-password", "--role", "operator", "--queue", queue
    )

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(f"taskqueue: queue={queue!r}: pass ")
    assert not Path(users).exists()


@pytest.mark.parametrize("name", ["", "a b", "-a", "../a", "a\nb", "x" * 101])
def test_a_name_that_cannot_be_kept_is_refused(taskqueue: Command, users: str, name: str) -> None:
    answer = taskqueue("web", "user", "add", "--users", users, "--no-password", "--", name)

    assert answer.code == Exit.CONFIG
    assert "a name has 1 to 100 letters" in answer.complaint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o601])
def test_a_file_of_users_that_others_can_read_is_refused(taskqueue: Command, users: str, mode: int) -> None:
    taskqueue("web", "user", "add", "ana", "--users", users, "--no-password")
    os.chmod(users, mode)

    assert "can be read or written by others: chmod 600" in taskqueue("web", "user", "list", "--users", users).complaint


def test_queues_are_for_operators(taskqueue: Command, users: str) -> None:
    refused = taskqueue("web", "user", "add", "ana", "--users", users, "--no-password", "--queue", "mail")

    assert refused.code == Exit.CONFIG
    assert "pass --role operator too" in refused.complaint


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--listen", "0.0.0.0:0"), "every user would be an operator: pass --users or --header"),
        (("--listen", "[::]:0"), "every user would be an operator"),
        (("--listen", "here"), "is not an address: pass a port such as 8030"),
        (("--header", "X-User"), "could be sent by anybody: name the proxies that set it (--proxy ADDRESS"),
        (("--header", "X User", "--proxy", "127.0.0.1"), "is not the name of an HTTP header"),
        (("--header", "X-User", "--proxy", "proxy"), "proxy 'proxy' is not an address"),
        (
            ("--proxy", "127.0.0.1"),
            "proxies such as 127.0.0.1 admit others: pass users or a header (--users, --header)",
        ),
        (("--host-name", "https://jobs"), "is not a host name"),
        (("--path", "jobs"), "path 'jobs' is not a URL path: pass one such as /jobs"),
        (("--path", "//example.org"), "path '//example.org' is not a URL path"),
        (("--path", "/jobs/../admin"), "path '/jobs/../admin' is not a URL path"),
        (("--path", "/jobs?a=1"), "path '/jobs?a=1' is not a URL path"),
        (("--path", "/" + 200 * "j"), "200 characters at most"),
        (("--mask", "("), "not a regular expression"),
        (("--users", "/nowhere/users.json"), "): create it with `taskqueue web user add NAME`"),
    ],
)
def test_what_would_be_open_or_cannot_work(taskqueue: Command, options: tuple[str, ...], reason: str) -> None:
    answer = taskqueue("web", *options)

    assert answer.code == Exit.CONFIG
    assert reason in answer.complaint


@contextmanager
def served(url: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve a dashboard; return its process and port."""
    command = [sys.executable, "-m", "taskqueue", "web", "--listen", "127.0.0.1:0", *options]
    environment = {**os.environ, "TASKQUEUE_URL": url}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield process, int(line.partition("127.0.0.1:")[2].partition("/")[0])
        finally:
            process.kill()


def test_it_serves_this_host_until_it_is_stopped(url: str) -> None:
    with served(url) as (process, port), closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as client:
        client.request("GET", "/")
        answer = client.getresponse()
        assert (answer.status, answer.getheader("server")) == (200, None)
        assert "Overview – taskqueue</title>".encode() in answer.read()  # after the number of things to do
        client.request("GET", "/", headers={"Host": "evil.example"})
        refused = client.getresponse()
        assert (refused.status, b"unknown-host" in refused.read()) == (400, True)

        client.request("GET", "/", headers={"X-Forwarded-For": "203.0.113.9"})
        refused = client.getresponse()
        assert (refused.status, b"serve it with --users or --header" in refused.read()) == (403, True)

        client.request("GET", "/live")
        with client.getresponse() as stream:
            assert stream.readline() == b"retry: 2000\n"
            process.send_signal(signal.SIGINT)
            assert stream.read() == b"\n"  # it ends as a stream does, not with a broken connection
        assert process.wait(LIMIT) == Exit.OK


def test_it_serves_though_nobody_reads_its_output(url: str) -> None:
    with closing(listen("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "TASKQUEUE_URL": url}
    command = [sys.executable, "-m", "taskqueue", "web", "--listen", address]
    with full_pipe() as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            [client] = eventually(lambda: connected(address))
            with closing(client):
                client.sendall(b"no request\r\n\r\n")  # which is logged
                assert client.recv(100).startswith(b"HTTP/1.1 400")
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT) == Exit.OK
        finally:
            process.kill()


def connected(address: str) -> list[socket.socket]:
    """Return a connection, if somebody listens there."""
    host, _, port = address.partition(":")
    with suppress(ConnectionRefusedError):
        return [socket.create_connection((host, int(port)), LIMIT)]
    return []


LIBRARY = """
import asyncio
from uvicorn.protocols.websockets import auto

class AutoWebSocketsProtocol(asyncio.Protocol):
    def __init__(self, config, server_state, app_state):
        self.connections = server_state.connections

    def connection_made(self, transport):
        self.connections.add(self)

auto.AutoWebSocketsProtocol = AutoWebSocketsProtocol
"""
"""Stands for a library for WebSockets: a connection that was upgraded stays open."""


def test_a_websocket_is_refused_though_a_library_for_them_is_installed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with served(url) as (_, port), socket.create_connection(("127.0.0.1", port), LIMIT) as client:
        client.sendall(
            b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert client.recv(100).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 303 ", b"HTTP/1.1 4"))


def test_it_is_served_below_a_path_alone(url: str) -> None:
    with (
        served(url, "--path", "/tools/jobs/") as (_, port),
        closing(HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as client,
    ):
        client.request("GET", "/tools/jobs/")
        page = client.getresponse()
        assert (page.status, b'href="/tools/jobs/queues"' in page.read()) == (200, True)
        for path in ("/", "/jobs", "/tools/jobs2", "/queues"):
            client.request("GET", path)
            refused = client.getresponse()
            assert (refused.status, b"the dashboard is below /tools/jobs/" in refused.read()) == (404, True), path


def test_it_leaves_with_the_process_that_started_it(url: str) -> None:
    with served(url, "--until-closed") as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT) == Exit.OK


def test_connections_of_clients_that_do_not_send_their_request_are_closed(url: str) -> None:
    with Scheduler(url) as scheduler, closing(listen("127.0.0.1", 0)) as listening:
        server = Server(app(scheduler, local=True), sent_within=0.5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = ("127.0.0.1", listening.getsockname()[1])
        with closing(HTTPConnection(address[0], address[1], timeout=LIMIT)) as client:
            client.request("GET", "/live")
            with client.getresponse() as stream:
                half_body = b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
                slow = [socket.create_connection(address, timeout=LIMIT) for _ in range(3)]
                for connection, sent in zip(slow, (b"", b"GET / HT", half_body), strict=True):
                    connection.sendall(sent)
                for connection in slow:
                    with connection, suppress(ConnectionResetError):
                        assert connection.recv(1) == b""
                server.should_exit = True
                assert stream.read().endswith(b"\n\n")  # it was open until the server stopped
        thread.join(LIMIT)


STATUS = b"HTTP/1.1 200 OK"
PIPELINED = b"GET /static/0/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 400


def test_a_client_that_does_not_read_its_answers_is_cut_off(url: str) -> None:
    with Scheduler(url) as scheduler, closing(listen("127.0.0.1", 0)) as listening:
        server = Server(app(scheduler, local=True), read_within=0.5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        address = ("127.0.0.1", listening.getsockname()[1])
        clients = [unread(address) for _ in range(3)]
        eventually(lambda: len(server.server_state.connections) == 3)
        clients[0].shutdown(socket.SHUT_WR)  # its connection is closing, and has answers left

        eventually(lambda: not server.server_state.connections)

        for client in clients:
            client.close()
        with closing(HTTPConnection(*address, timeout=LIMIT)) as reader:
            reader.request("GET", "/login")
            assert reader.getresponse().status == 200
        server.should_exit = True
        thread.join(LIMIT)


def test_a_client_that_reads_slowly_gets_all_answers(url: str) -> None:
    with Scheduler(url) as scheduler, closing(listen("127.0.0.1", 0)) as listening:
        server = Server(app(scheduler, local=True), read_within=LIMIT)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with closing(unread(("127.0.0.1", listening.getsockname()[1]))) as client:
            eventually(lambda: any(one.unread for one in map(as_connection, server.server_state.connections)))
            answers, end = 0, b""
            while answers < 400:
                part = client.recv(65536)
                assert part, "the connection was closed"
                answers += (end + part).count(STATUS)
                end = (end + part)[1 - len(STATUS) :]
        server.should_exit = True
        thread.join(LIMIT)


def test_clients_that_read_nothing_leave_a_bounded_size_of_answers(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with bounded(url, 40, 200_000, local=True) as (server, address), ExitStack() as clients:
        for _ in range(8):
            clients.enter_context(unread(address))

        def sizes() -> list[int]:
            return [as_connection(one).transport.get_write_buffer_size() for one in [*server.server_state.connections]]

        eventually(lambda: "of responses are unread: the largest one for 127.0.0.1 ends" in caplog.text)
        eventually(lambda: sum(sizes()) <= 200_000)
        other = socket.create_connection(address, timeout=LIMIT, source_address=("127.0.0.2", 0))
        assert status_of(clients.enter_context(other)) == b"HTTP/1.1 200 OK"


def test_a_client_that_breaks_the_protocol_after_its_answer_is_disconnected(url: str) -> None:
    with bounded(url, 40, local=True) as (_, address), socket.create_connection(address, timeout=LIMIT / 2) as client:
        client.sendall(CHUNKED.replace(b"127.0.0.1", b"elsewhere"))
        assert client.recv(65536).startswith(b"HTTP/1.1 4")
        client.sendall(b"zz\r\n")

        with suppress(ConnectionResetError):
            while client.recv(65536):
                pass


def test_the_time_to_send_a_request_begins_with_each_request(url: str) -> None:
    halves = b"GET /static/0/none HTTP/1.1\r\nHost: 127.", b"0.0.1\r\n\r\n"
    with (
        bounded(url, 40, local=True) as (server, address),
        socket.create_connection(address, timeout=LIMIT) as client,
    ):
        client.sendall(halves[0])
        eventually(lambda: len(server.server_state.connections) == 1)
        connection = as_connection(next(iter(server.server_state.connections)))
        began_at = connection.began_at
        for _ in range(3):
            client.sendall(halves[1] + halves[0])  # it always waits for the rest of a request
            with HTTPResponse(client) as answer:
                answer.begin()
                assert (answer.status, len(answer.read()) > 0) == (404, True)
            eventually(partial(has_begun_after, connection, began_at))
            began_at = connection.began_at


CHUNKED = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_requests_that_take_long_to_read_delay_nobody_at_another_address(url: str) -> None:
    with bounded(url, 40, local=True) as (_, address), ExitStack() as clients:
        slow = [clients.enter_context(socket.create_connection(address, timeout=LIMIT)) for _ in range(10)]
        for client in slow:
            client.sendall(CHUNKED + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n")
        other = socket.create_connection(address, timeout=LIMIT, source_address=("127.0.0.2", 0))

        assert status_of(clients.enter_context(other)) == b"HTTP/1.1 200 OK"

        answered, _, _ = select.select(slow, [], [], 0)
        assert answered == []


def test_a_long_request_is_read_whole_and_those_after_it_too(url: str) -> None:
    body = b"x" * 300_000
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with bounded(url, 40, local=True) as (_, address), socket.create_connection(address, timeout=LIMIT) as client:
        for _ in range(2):
            client.sendall(head + body + CHUNKED + b"1\r\na\r\n" * 500 + b"0\r\n\r\n")
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 4:
            part = client.recv(65536)
            assert part, "the connection was closed"
            answers += part
        assert answers.count(b"HTTP/1.1 413 ") == 2


def as_connection(connection: object) -> Connection:
    assert isinstance(connection, Connection)
    return connection


def unread(address: tuple[str, int], source_address: tuple[str, int] = ("127.0.0.1", 0)) -> socket.socket:
    """Return a client that has sent 400 requests for a large answer each."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(LIMIT)
    client.bind(source_address)
    client.connect(address)
    client.sendall(PIPELINED)
    return client


def test_more_connections_than_descriptors_keep_nobody_out_and_fill_no_log(url: str, tmp_path: Path) -> None:
    with few_descriptors(url, tmp_path / "log") as port:
        address = ("127.0.0.1", port)
        for _ in range(2):
            with ExitStack() as clients:
                for number in range(200):
                    source = f"127.0.0.{1 + number % 20}"  # each has less than its share
                    make: Callable[..., socket.socket] = unread if number < 20 else socket.create_connection
                    clients.enter_context(make(address, source_address=(source, 0)))
                client = clients.enter_context(closing(HTTPConnection(*address, timeout=LIMIT)))
                client.request("GET", "/")
                assert client.getresponse().status == 200
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if "connections are open: the one from 127.0.0." in line]
    assert len(lines) < 30
    assert "Traceback" not in "".join(lines)


@contextmanager
def bounded(
    url: str, most: int, most_unread: int = MOST_UNREAD, **settings: Any
) -> Iterator[tuple[Server, tuple[str, int]]]:
    """Serve a dashboard with these bounds of connections and of unread answers; return the server and its address."""
    with Scheduler(url) as scheduler, closing(listen("127.0.0.1", 0)) as listening:
        server = Server(app(scheduler, **settings), sent_within=LIMIT)
        server.config.http = type(
            "FewConnections", (as_class(server.config.http),), {"most": most, "most_unread": most_unread}
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield server, ("127.0.0.1", listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(LIMIT)


def as_class(connection: object) -> type[Connection]:
    assert isinstance(connection, type)
    assert issubclass(connection, Connection)
    return connection


def has_begun_after(connection: Connection, moment: float) -> bool:
    """Return whether the last request of a connection began later."""
    return connection.began_at > moment


def status_of(client: socket.socket) -> bytes:
    """Return the first line of what a client is answered that has waited with its request until now."""
    client.sendall(b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    with client.makefile("rb") as answer:
        return answer.readline().rstrip()


def test_one_address_takes_a_share_of_the_connections_and_pushes_out_its_own_alone(url: str) -> None:
    with bounded(url, 40, local=True) as (server, address), ExitStack() as clients:
        other = socket.create_connection(address, timeout=LIMIT, source_address=("127.0.0.2", 0))
        clients.enter_context(other)
        eventually(lambda: len(server.server_state.connections) == 1)
        many = [clients.enter_context(socket.create_connection(address, timeout=LIMIT)) for _ in range(80)]
        eventually(lambda: len(server.server_state.connections) == 11)

        assert status_of(other) == b"HTTP/1.1 200 OK"
        assert status_of(many[-1]) == b"HTTP/1.1 200 OK"  # the oldest of the others made way
        with suppress(ConnectionResetError):
            assert many[0].recv(1) == b""


def test_the_address_of_a_trusted_proxy_has_no_share_of_its_own(url: str, users: str) -> None:
    UsersFile(Path(users)).change({"ana": account(User(name="ana"), None)})
    with bounded(url, 40, users=users, proxies=["127.0.0.1"]) as (server, address), ExitStack() as clients:
        many = [clients.enter_context(socket.create_connection(address, timeout=LIMIT)) for _ in range(30)]
        eventually(lambda: len(server.server_state.connections) == 30)

        assert {status_of(client) for client in many} == {b"HTTP/1.1 200 OK"}


@contextmanager
def few_descriptors(url: str, log: Path) -> Iterator[int]:
    """Serve a dashboard that may open 128 descriptors, and return its port."""
    command = [sys.executable, "-m", "taskqueue", "web", "--listen", "127.0.0.1:0"]
    limited = ["prlimit", "--nofile=128:128", *command]
    environment = {**os.environ, "TASKQUEUE_URL": url}
    with (
        log.open("w") as errors,
        subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        finally:
            process.kill()
