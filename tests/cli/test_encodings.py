"""Terminals and files whose encoding lacks characters that jobs use: no command fails, and JSON means the same."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from taskqueue import Job, Scheduler
from taskqueue.cli import log_setup, main
from taskqueue.cli.terminal import Column, fit, padded
from taskqueue.daemon.node.monitor import ControlServer
from taskqueue.exit_codes import Exit
from taskqueue.model.record import CancelRequest, Failure, Record, Status
from taskqueue.store import Store
from tests.cli import records
from tests.nodes import LIMIT, node

TEXT = "Привет, São Paulo 🙂 – 日本"
"""Text with characters that Latin-1, KOI8-R and ASCII lack, one of them beyond 16 bits."""

ENCODINGS = ("ascii", "latin-1", "cp1252", "koi8-r", "utf-16", "utf-8")

FAILURE = Failure(type="shop.errors.Bad", message=TEXT, traceback=f"Traceback …\nBad: {TEXT}")


class Outputs(NamedTuple):
    out: str
    err: str


class Prints(Job):
    def start(self) -> None:
        print(TEXT)
        print(TEXT, file=sys.stderr)


@pytest.fixture
def stored(store: Store, url: str) -> list[Record]:
    """Return what the store was filled with: the text wherever users and jobs can put some."""
    changed = []
    for plain in records.in_every_status().values():
        attempts = tuple(one._replace(error=FAILURE, exit=TEXT) for one in records.in_full().attempts)
        record = replace(
            plain,
            data=json.dumps({"to": TEXT}),
            error=None if plain.error is None else FAILURE,
            attempts=attempts,
            tags=(TEXT,),
            progress_message=TEXT,
            progress_at=plain.created_at,
            cancel=CancelRequest(requested_at=records.NOW, reason=TEXT) if plain.status is Status.PROCESSING else None,
        )
        changed.append(record)
    kept = store.add(changed)
    with Scheduler(url) as scheduler:
        scheduler.pause("Почта", TEXT, by=TEXT)
        scheduler.drain("web-1", TEXT, by=TEXT)
        scheduler.set_limit("shop.mail:MailJob", "8", TEXT, by=TEXT)
        scheduler.schedule("Ночью", "shop.mail:MailJob", {"to": TEXT}, every="1h").pause(TEXT)
        scheduler.record_action("pause", by=TEXT, target=TEXT)
    return kept


def commands(stored: list[Record]) -> Iterator[list[str]]:
    """Yield every command that shows something, as JSON where there is any."""
    for record in stored:
        yield from (["show", str(record.id)], ["why", str(record.id)], ["logs", str(record.id)])
        yield from (["show", str(record.id), "--json"], ["why", str(record.id), "--json"])
    for name in ("list", "stats", "nodes", "limit", "events", "audit", "doctor", "config"):
        yield from ([name], [name, "--json"])
    for command in (
        ["nodes", "--leader"],
        ["analytics", "--by", "tag"],
        ["schedule", "list"],
        ["schedule", "show", "Ночью"],
    ):
        yield from (command, [*command, "--json"])
    yield from (["show", TEXT], ["pause", TEXT], ["resume", "Почта"], [TEXT], ["add", TEXT], ["list", "--query", TEXT])
    yield from (["--help"], ["add", "--help"], ["update", str(stored[0].id), "--data", json.dumps(TEXT)])
    yield from (["cancel", str(stored[0].id), "--reason", TEXT], ["recover", str(stored[-1].id)])


def called(encoding: str, call: Callable[[], int]) -> tuple[int, Outputs]:
    """Call with outputs of the encoding, strict ones; return the exit code and what was written."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = call()
    for stream in (out, err):
        stream.flush()
    return code, Outputs(*(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))


def program(encoding: str, arguments: list[str], url: str = "") -> subprocess.CompletedProcess[bytes]:
    """Run the command as a program whose outputs have the encoding."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, **({"TASKQUEUE_URL": url} if url else {})}
    command = [sys.executable, "-m", "taskqueue", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_says_what_it_has_to_say_in_any_encoding(stored: list[Record], url: str, encoding: str) -> None:
    for arguments in commands(stored):
        code, said = called(encoding, lambda: main.main(["--url", url, *arguments]))  # noqa: B023

        assert code != Exit.ERROR, (arguments, said)
        assert said.out + said.err, arguments
        if arguments[-1] == "--json" and code == Exit.OK:
            for document in said.out.splitlines() if arguments[0] == "events" else [said.out]:
                json.loads(document)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_means_what_was_stored_in_any_encoding(stored: list[Record], url: str, encoding: str) -> None:
    arguments = ["--url", url, "show", str(stored[0].id), "--json"]
    _, said = called(encoding, lambda: main.main(arguments))

    assert json.loads(said.out)["data"] == {"to": TEXT}


def test_a_terminal_shows_what_it_can_and_writes_out_the_rest(stored: list[Record], url: str) -> None:
    arguments = ["--url", url, "show", str(stored[0].id)]
    _, said = called("latin-1", lambda: main.main(arguments))

    assert r"São Paulo \U0001f642 \u2013 \u65e5\u672c" in said.out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_table_keeps_its_columns(encoding: str) -> None:
    columns = [Column(head="name", cut="end"), Column(head="id", cut="start"), Column(head="n")]
    lines = []

    def show() -> int:
        fitted = fit(columns, [["Привет всем, мир", "Привет", "x"], ["abc", "d", "x"]], 30)
        for row in fitted.rows:
            cells = zip(fitted.columns, row, fitted.widths, strict=True)
            lines.append(" ".join(padded(column, text, size) for column, text, size in cells))
        print("\n".join(lines))
        return 0

    _, said = called(encoding, show)

    assert said.out.splitlines() == lines
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 30


@pytest.mark.parametrize("arguments", [["health"], ["health", "--json"]], ids=["health", "json"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_probe_says_what_its_node_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path))
    pool = {"mode": "static", "busy": 0, "idle": 1, "forced": 0, "concurrent": 0, "slots": 1}
    store = {"url": TEXT, "answers": True, "error": ""}
    document = {"node": "web-1", "live": True, "ready": False, "reason": TEXT, "state": TEXT, "leads": False, "pid": 1}
    document.update(incarnation="a", store=store, pool=pool, backlog=None)
    server = ControlServer("web-1", "1234567890", lambda: document)
    server.start()
    try:
        done = program(encoding, arguments)
    finally:
        server.close()

    assert (done.returncode, done.stderr) == (Exit.UNREADY, b"")
    if arguments[-1] == "--json":
        assert json.loads(done.stdout.decode(encoding)) == [document]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_line_of_the_json_log_means_what_was_said(logging_as_before: None, encoding: str) -> None:
    def log() -> int:
        log_setup.configure("info", "json")
        logging.getLogger("taskqueue.test").warning("a job said %s", TEXT)
        return 0

    _, said = called(encoding, log)

    assert json.loads(said.err)["message"] == f"a job said {TEXT}"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [["list"], ["list", "--json"]], ids=["list", "json"])
def test_a_real_program_ends_with_no_traceback(
    stored: list[Record], url: str, encoding: str, command: list[str]
) -> None:
    done = program(encoding, command, url)

    assert (done.returncode, done.stderr) == (Exit.OK, b"")
    assert done.stdout.decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_job_prints_whatever_the_encoding_of_its_node_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    with node(url, tmp_path, "--pm", "static", "--min-children", "1"), Scheduler(url) as scheduler:
        process = scheduler.add_job(Prints)
        scheduler.wait_for([process], timeout=LIMIT)

        assert (process.refresh().status, process.error) == (Status.DONE, None)
