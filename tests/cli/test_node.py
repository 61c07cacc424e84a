"""``taskqueue-node`` and ``taskqueue run`` lead options, variables and files to the settings of a node."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.cli import log_setup, main, node, node_options
from taskqueue.daemon.settings import Lead, Order, PoolMode, Settings
from taskqueue.exit_codes import Exit
from taskqueue.store import Store
from tests import nodes
from tests.cli.conftest import Answer
from tests.nodes import LIMIT
from tests.scheduler.playing import seat

Taskqueue = Callable[..., Answer]
ELSEWHERE = ("--config", "--log-level", "--log-format", "--log-config", "--version")


def settings(*arguments: str) -> Settings:
    """Return the settings that a command line leads to."""
    with node.command.make_context("taskqueue-node", list(arguments)) as ctx:
        given = {
            name: value for name, value in ctx.params.items() if not name.startswith(("config", "log_", "version"))
        }
        return node_options.settings_from(given)


@pytest.fixture
def taskqueue_node(capsys: pytest.CaptureFixture[str]) -> Taskqueue:
    """Call ``taskqueue-node``."""

    def call(*arguments: str) -> Answer:
        code = node.main(arguments)
        said = capsys.readouterr()
        return Answer(code=code, out=said.out, err=said.err)

    return call


def test_without_options_the_settings_are_their_own_defaults() -> None:
    assert settings() == Settings()


def test_a_log_level_may_be_written_as_in_python(taskqueue_node: Taskqueue) -> None:
    assert taskqueue_node("--log-level", "INFO", "--max-children", "0").err == (
        "taskqueue-node: --max-children 0 is out of range: pass 1 or more\n"
    )
    assert taskqueue_node("--log-level", "WARN").err == (
        "taskqueue-node: --log-level: 'WARN' is not one of 'debug', 'info', 'warning', 'error'; did you mean warning?\n"
    )


def test_every_setting_has_an_option() -> None:
    named = {param.name for param in node.command.params if param.opts[0] not in ELSEWHERE}

    assert named == {field.name for field in fields(Settings)} - {"queues"} | {"work_on"}


def test_options_lead_to_settings(tmp_path: Path) -> None:
    bootstrap = tmp_path / "start.py"
    bootstrap.touch()

    found = settings(
        *("--url", "sqlite:///jobs.db", "--name", "web-1", "--pm", "static", "--min-children", "8"),
        *("--work-on", "mail", "--work-on", "reports=2", "--preload", "shop,json", "--preload", "csv"),
        *("--lead", "cluster", "--order", "strict", "--allow", "shop,json", "--allow", "csv"),
        *("--bootstrap", str(bootstrap), "--chdir", str(tmp_path), "--finish", "1m", "--grace", "1.5"),
        *("--lease", "500s", "--max-memory", "512M", "--keep-done", "2h", "--max-jobs-per-child", "100"),
    )

    assert (found.url, found.name, found.pm) == ("sqlite:///jobs.db", "web-1", PoolMode.STATIC)
    assert (found.min_children, found.max_children) == (8, 8)
    assert found.queues == {"mail": None, "reports": 2}
    assert found.preload == found.allow == ("shop", "json", "csv")
    assert (found.lead, found.order) == (Lead.CLUSTER, Order.STRICT)
    assert (found.bootstrap, found.chdir) == (bootstrap, tmp_path)
    assert (found.finish, found.grace, found.lease, found.keep_done) == (60.0, 1.5, 500.0, 7200.0)
    assert (found.max_memory, found.max_jobs_per_child) == (512 * 1024**2, 100)


@pytest.mark.parametrize(
    ("written", "size"),
    [("0", 0), ("1048576", 1024**2), ("1.5k", 1536), ("2G", 2 * 1024**3), ("3MiB", 3 * 1024**2), ("4 MB", 4 * 1024**2)],
)
def test_sizes_are_multiples_of_1024(written: str, size: int) -> None:
    assert settings("--max-memory", written).max_memory == size


def test_the_option_wins_over_the_variable_and_the_variable_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('lease = 11\ngrace = 12\nfinish = "13s"\nwork-on = ["mail", "reports=2"]\nmax_children = 9\n')
    monkeypatch.setenv("TASKQUEUE_CONFIG", str(file))
    monkeypatch.setenv("TASKQUEUE_GRACE", "22")
    monkeypatch.setenv("TASKQUEUE_FINISH", "23")

    found = settings("--finish", "33")

    assert (found.lease, found.grace, found.finish) == (11.0, 22.0, 33.0)
    assert found.queues == {"mail": None, "reports": 2}
    assert found.max_children == 9


def test_a_variable_holds_several_values_with_spaces_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_WORK_ON", "mail reports=2")

    assert settings().queues == {"mail": None, "reports": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--lease", "soon"], Exit.CONFIG, "--lease: 'soon' is not a duration: write seconds (30) or 500ms, 30s, "),
        (["--lease", "1"], Exit.CONFIG, "--lease 1 is out of range: pass 2 or more"),
        (["--max-memory", "9" * 400], Exit.CONFIG, "--max-memory: '99999"),
        (["--max-memory", "much"], Exit.CONFIG, "--max-memory: 'much' is not a size: write bytes (1048576), 512K"),
        (["--max-memory", "0%"], Exit.CONFIG, "--max-memory: '0%' is out of range: write a share above 0%"),
        (["--max-memory", "101%"], Exit.CONFIG, "--max-memory: '101%' is out of range: write a share above 0%"),
        (
            ["--work-on", "mail=many"],
            Exit.CONFIG,
            "--work-on: 'mail=many' is not a queue with a bound: write ",
        ),
        (["--work-on", "mail=0"], Exit.CONFIG, "--work-on mail=0 is out of range: pass 1 or more"),
        (
            ["--work-on", "mail,reports"],
            Exit.CONFIG,
            "--work-on: 'mail,reports' names several queues: write --work-on mail --work-on reports",
        ),
        (
            ["--work-on", "mail reports"],
            Exit.CONFIG,
            "--work-on: queue='mail reports': pass a name of 1 to 100 ",
        ),
        (["--work-on", "=2"], Exit.CONFIG, "--work-on: queue='': pass a name of 1 to 100 characters"),
        (["--work-on", "mail", "--work-on", "mail=2"], Exit.CONFIG, "--work-on names queue mail more than once: "),
        (["--preload", ""], Exit.CONFIG, "--preload '' is not the name of a module: pass one such as shop or "),
        (
            ["--preload", "shop,"],
            Exit.CONFIG,
            "--preload '' is not the name of a module: pass one such as shop or shop.mail",
        ),
        (
            ["--allow", "shop."],
            Exit.CONFIG,
            "--allow 'shop.' is not the name of a module: pass one such as shop or shop.mail",
        ),
        (
            ["--min-children", "5", "--max-children", "4"],
            Exit.CONFIG,
            "--min-children 5 is more than --max-children 4",  # PTS-27
        ),
        (
            ["--pm", "static", "--min-children", "0"],
            Exit.CONFIG,
            "--pm static with --min-children 0 runs no job: pass --min-children 1 or more",
        ),
        (["--config", "/no/such.toml"], Exit.CONFIG, "/no/such.toml cannot be read (No such file or directory): "),
    ],
)
def test_what_is_wrong_is_one_line(taskqueue_node: Taskqueue, arguments: list[str], code: Exit, complaint: str) -> None:
    answer = taskqueue_node(*arguments)

    assert (answer.code, answer.out) == (code, "")
    assert answer.complaint.startswith(f"taskqueue-node: {complaint}")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--nope"], Exit.USAGE, ("--nope", " (see taskqueue-node --help)")),
        (["more"], Exit.USAGE, ("(more)", " (see taskqueue-node --help)")),
        (["--lease"], Exit.USAGE, ("--lease",)),
        (["--lead", "world"], Exit.CONFIG, ("--lead: ", "world", "host", "cluster")),
        (["--order", "random"], Exit.CONFIG, ("--order: ", "random", "fair", "strict")),
        (["--pm", "prefork"], Exit.CONFIG, ("--pm: ", "prefork", "static", "dynamic", "ondemand")),
        (["--chdir", "/no/such"], Exit.CONFIG, ("--chdir: ", "/no/such")),
    ],
)
def test_what_click_finds_wrong_is_one_line_in_its_words(
    taskqueue_node: Taskqueue, arguments: list[str], code: Exit, named: tuple[str, ...]
) -> None:
    answer = taskqueue_node(*arguments)

    assert (answer.code, answer.out) == (code, "")
    assert answer.complaint.startswith("taskqueue-node: ")
    assert [one for one in named if one not in answer.complaint] == []


def test_a_wrong_variable_is_named(taskqueue_node: Taskqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_LEASE", "soon")

    answer = taskqueue_node()

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith("taskqueue-node: --lease (from the variable TASKQUEUE_LEASE): 'soon' is not")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('lease = "soon"', "--lease (from {file}): 'soon' is not a duration: "),
        ("colour = 1", "{file}: there is no setting 'colour': use allow, bootstrap, burst, "),
        ("config = 1", "{file}: there is no setting 'config': "),
        ("lease = [1]", "{file}: lease is a list, but takes one value"),
        ('work-on = ["mail", "mail"]', "--work-on names queue mail more than once: "),
        ('work-on = ["mail reports"]', "--work-on: queue='mail reports': pass a name of 1 to 100 "),
        ("lease = true", "{file}: lease = true is a boolean: write a value as on the command line"),
        ("concurrency = 4", "{file}: there is no setting 'concurrency': use allow, "),
        (
            'work-on = "mail,reports=2"',
            "--work-on (from {file}): 'mail,reports=2' names several queues: write --work-on mail --work-on reports=2,",
        ),
        (
            f"work-on = 'mail={'9' * 10}'",
            "--work-on (from {file}): 'mail=9999999999' is not a queue with a bound: write mail, or reports=2 ",
        ),
        ("[lease]", "{file}: lease is a table: write key = value, without [sections]"),
        ("lease: 1", "{file} is not TOML: "),
    ],
)
def test_a_wrong_file_is_named(taskqueue_node: Taskqueue, tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)

    answer = taskqueue_node("--config", str(file))

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(f"taskqueue-node: {complaint.format(file=file)}")


def test_a_setting_of_another_name_is_named(taskqueue_node: Taskqueue, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    for setting, ours in (("concurrency", "max-children"), ("max_childs", "max-children"), ("queues", "work-on")):
        file.write_text(f"{setting} = 4")

        assert taskqueue_node("--config", str(file)).complaint.endswith(f"; did you mean {ours}?")


@pytest.mark.parametrize(("text", "captures"), [("true", True), ("false", False), ('"true"', True)])
def test_a_flag_in_a_file_is_a_boolean(tmp_path: Path, text: str, captures: bool) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f"capture-output = {text}")

    assert settings("--config", str(file)).capture_output is captures


def test_one_value_in_a_file_does_for_an_option_that_may_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('work-on = "mail"')

    assert settings("--config", str(file)).queues == {"mail": None}


def test_one_text_in_a_file_holds_several_values_as_a_variable_does(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('work-on = "mail reports=2"\npreload = "shop json"')

    found = settings("--config", str(file))

    assert found.queues == {"mail": None, "reports": 2}
    assert found.preload == ("shop", "json")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_are_answered(taskqueue_node: Taskqueue, option: str) -> None:
    answer = taskqueue_node(option)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(("Usage: taskqueue-node", "taskqueue-node, version"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [(None, "there is no file "), ("def", "does not compile: "), ("\0", "does not compile: ")],
)
def test_a_file_that_cannot_be_an_application_is_one_line(
    taskqueue: Taskqueue, tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "app.py"
    if text is not None:
        file.write_text(text)

    answer = taskqueue("run", str(file))

    assert answer.code == Exit.CONFIG
    assert complaint in answer.complaint


def test_a_command_that_does_not_exist_is_one_line(taskqueue: Taskqueue) -> None:
    answer = taskqueue("lsit")

    assert answer.code == Exit.USAGE
    assert answer.complaint == "taskqueue: No such command 'lsit': did you mean list? (see taskqueue --help)"


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == Exit.USAGE
    assert all(f"\n  {name} " in capsys.readouterr().out for name in list(main.COMMANDS)[:1])


def test_flush_removes_nothing_unless_somebody_agrees(taskqueue: Taskqueue, store: Store) -> None:
    taskqueue("add", "shop:Job")

    answer = taskqueue("flush")

    assert answer.code == Exit.CONFIG
    assert answer.complaint.endswith("pass --yes")
    assert taskqueue("flush", "--yes").out == "removed 1 job\n"
    assert taskqueue("flush", "--yes", "--json").document == {"removed": 0}


def test_output_that_nobody_reads_is_no_error(url: str, taskqueue: Taskqueue) -> None:
    taskqueue("add", "shop:Job")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "list"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=LIMIT,
        )
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["add", "shop:Job"], ["--help"]])
@pytest.mark.parametrize(("to", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_output_that_cannot_be_written_is_said_in_one_line(
    url: str, taskqueue: Taskqueue, arguments: list[str], to: str, why: str
) -> None:
    taskqueue("add", "shop:Job")
    called = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {to}', "sh", *called], stderr=subprocess.PIPE, text=True, timeout=LIMIT
    )

    [line] = done.stderr.splitlines()
    assert line.startswith(f"taskqueue: the output cannot be written ({why})")
    assert done.returncode == Exit.OUTPUT


def test_a_node_under_a_low_limit_of_open_files_names_it_and_the_way_out(tmp_path: Path) -> None:
    started = [sys.executable, "-m", "taskqueue.cli.node", "--url", f"sqlite://{tmp_path}/jobs.db"]
    limited = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", *started]

    answer = subprocess.run(limited, capture_output=True, text=True, timeout=LIMIT)

    assert answer.returncode == Exit.CONFIG
    assert answer.stdout == ""
    assert answer.stderr == (
        "taskqueue-node: the limit of open files is 16, and a node needs 64 at least: "
        "raise the limit: LimitNOFILE=16384 in the unit, or ulimit -n\n"
    )


def test_a_store_that_cannot_be_opened_is_one_line() -> None:
    started = [sys.executable, "-m", "taskqueue.cli.node", "--url", "/"]
    answer = subprocess.run(started, capture_output=True, text=True, timeout=LIMIT)

    assert (answer.returncode, answer.stdout) == (Exit.STORE, "")
    assert answer.stderr == "taskqueue-node: store /: is not a regular file: name a database file\n"


@pytest.mark.parametrize("to", ["", ">/dev/full", ">&-"], ids=["nobody reads", "full", "closed"])
def test_a_banner_that_nobody_can_read_does_not_end_the_node(url: str, taskqueue: Taskqueue, to: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    called = [sys.executable, "-m", "taskqueue.cli.node", "--url", url, "--log-level", "error"]
    node = subprocess.Popen(["sh", "-c", f'exec "$@" {to}', "sh", *called], stdout=writer)
    os.close(writer)
    try:
        id = taskqueue("add", "tests.daemon.jobs:Empty").out.strip()
        assert taskqueue("wait", id, "--timeout", str(LIMIT)).code == Exit.OK
    finally:
        node.terminate()

    assert node.wait(LIMIT) == Exit.OK


def test_ctrl_c_while_waiting_leaves_at_once(url: str, store: Store, taskqueue: Taskqueue) -> None:
    seat(store, "web-1")  # or the command would say after a while that no node takes the job
    id = taskqueue("add", "shop:Job").out.strip()
    waiting = subprocess.Popen(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "add", "shop:Other", "--once", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    told = waiting.stderr.readline().strip()
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=LIMIT)

    assert told != id
    assert (waiting.returncode, out, err) == (Exit.INTERRUPTED, "", "\ntaskqueue: interrupted\n")


LOGGING = """
[formatters.plain]
format = "%(processName)s|%(name)s|%(message)s"

[handlers.file]
class = "logging.handlers.WatchedFileHandler"
filename = "node.log"
formatter = "plain"

[root]
level = "INFO"
handlers = ["file"]
"""


def test_the_log_goes_where_a_file_says_from_all_processes(url: str, tmp_path: Path) -> None:
    (tmp_path / "logging.toml").write_text(LOGGING)
    with nodes.node(url, tmp_path, "--log-config", "logging.toml") as running, closing(Scheduler(url)) as scheduler:
        scheduler.wait_for([scheduler.add_job("tests.daemon.jobs:Logging")], timeout=LIMIT)
        assert running.stop() == Exit.OK

        told = (tmp_path / "node.log").read_text()
        assert "|taskqueue.daemon.node.node|node " in told
        assert "|tests.daemon.jobs|it is so\n" in told
        assert "has taken its seat" not in running.log.read_text()


@pytest.mark.usefixtures("logging_as_before")
def test_a_json_file_says_what_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = {"err": {"class": "logging.StreamHandler", "formatter": "json"}}
    formatters = {"json": {"()": "taskqueue.cli.log_setup.JsonFormatter"}}
    root = {"level": "WARNING", "handlers": ["err"]}
    written = json.dumps({"version": 1, "handlers": handlers, "formatters": formatters, "root": root})
    (tmp_path / "logging.json").write_text(written)
    before = logging.getLogger("taskqueue.daemon.node.node")

    log_setup.configure("debug", "text", tmp_path / "logging.json")
    before.warning("told")
    before.info("not told")

    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == ["told"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("logging.json", "{", "logging.json is not JSON"),
        ("logging.json", "[]", "logging.json is not a JSON object"),
        ("logging.toml", "= 1", "logging.toml is not TOML"),
        ("logging.toml", 'root = {handlers = ["nowhere"]}', "Unable to configure root logger"),
        (
            "logging.toml",
            'handlers = {a = {class = "logging.FileHandler", filename = "/nowhere/x"}}',
            "Unable to configure handler 'a' (FileNotFoundError",
        ),
        ("logging.toml", "version = 2", "Unsupported version: 2"),
    ],
)
@pytest.mark.usefixtures("logging_as_before")
def test_a_file_that_is_no_configuration_of_logging_is_named(
    taskqueue_node: Taskqueue, tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)

    answer = taskqueue_node("--url", f"{tmp_path}/jobs.db", "--log-config", f"{tmp_path}/{name}")

    assert answer.code == Exit.CONFIG
    assert says in answer.err
    assert name in answer.err


def test_a_handler_that_starts_a_thread_is_refused_with_words(url: str, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text("""
import logging, threading
class Threaded(logging.StreamHandler):
    def __init__(self):
        super().__init__()
        threading.Thread(target=threading.Event().wait, name="log-writer", daemon=True).start()
""")
    (tmp_path / "logging.toml").write_text('handlers = {a = {"()" = "threaded.Threaded"}}')
    command = [sys.executable, "-m", "taskqueue.cli.node", "--url", url, "--log-config", f"{tmp_path}/logging.toml"]
    where = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}

    said = subprocess.run(command, env=where, capture_output=True, text=True, check=False)

    assert said.returncode == Exit.CONFIG
    assert "a handler has started threads (log-writer)" in said.stderr
    assert "Traceback" not in said.stderr


def test_an_application_that_uses_the_library_keeps_its_logging(tmp_path: Path) -> None:
    code = """
import logging, sys
from taskqueue import Scheduler
with Scheduler(sys.argv[1]) as scheduler:
    scheduler.add_job("tests.daemon.jobs:Empty")
names = ["", *logging.root.manager.loggerDict]
found = [logging.getLogger(name) for name in names if name.partition(".")[0] in ("", "taskqueue")]
print([(one.name, one.handlers, one.level) for one in found if one.handlers or one.level not in (0, 30)])
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "jobs.db")], capture_output=True, text=True, check=False
    )

    assert (said.returncode, said.stdout.strip(), said.stderr) == (0, "[]", "")


def test_a_node_that_does_not_start_leaves_the_signals_of_its_process_as_they_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    assert node.main(["--url", "mysql://h/db"]) == Exit.CONFIG

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert "postgres" in capsys.readouterr().err
