"""What every test has: servers of MongoDB and PostgreSQL, and a process like that of a user at a terminal."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import distribution, fork_server, postgresql
from tests.keeper import Run, end_keepers, lost_servers, shared_server
from tests.postgresql import PostgreSQL
from tests.run_folder import run_folder
from tests.servers import Cluster

RUN = pytest.StashKey[Run]()
KEEPS_FOLDER = pytest.StashKey[bool]()
TESTS = Path(__file__).parent
PR_GET_CHILD_SUBREAPER = 37
RLIMIT_LOCKS = 10
THREADS_END_WITHIN = 30.0
"""Seconds: the threads of a closed MongoDB client look for their end from time to time."""

# The machine is shared: how long one example takes says nothing about the code.
settings.register_profile("long", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("everyday", settings.get_profile("long"), max_examples=30)


@pytest.hookimpl(tryfirst=True)  # before pytest notes where folders of tests shall be
def pytest_configure(config: pytest.Config) -> None:
    """Forget what the caller's shell left behind, and note which run this process belongs to."""
    settings.load_profile("everyday" if config.getoption("markexpr") == "not long" else "long")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a shell's background jobs inherit them ignored
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for name in [name for name in os.environ if name.startswith("TASKQUEUE_")]:
        del os.environ[name]
    if is_controller(config):
        run = Run(folder=run_folder(os.environ), controller=os.getpid())
        config.option.basetemp = config.option.basetemp or run.folder / "tests"
    else:
        given = cast(Any, config).workerinput
        run = Run(folder=Path(given["run_folder"]), controller=given["run_controller"])
        keep_from_forks(config)
    config.stash[RUN] = run
    fork_server.log = run.folder / "fork-servers.log"
    postgresql.template = run.folder / "postgresql-template"
    os.environ["XDG_STATE_HOME"] = str(run.folder / "state")  # nobody's own jobs are touched
    os.environ["TASKQUEUE_RUNTIME_DIR"] = str(run.folder / "nodes")  # and nobody's nodes are asked


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist which run it belongs to."""
    run = node.config.stash[RUN]
    node.workerinput["run_folder"] = str(run.folder)
    node.workerinput["run_controller"] = run.controller


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the errors of fork servers."""
    log = config.stash[RUN].folder / "fork-servers.log"
    if log.exists() and (text := log.read_text()):
        terminalreporter.write_line(f"Fork servers of this run had errors:\n{text}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note whether the folders of tests may say why some failed; the next run removes them."""
    session.config.stash[KEEPS_FOLDER] = exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers of this process and of the run; those of the run end by themselves if it does not come so far."""
    fork_server.end()
    if RUN in config.stash and is_controller(config):
        end_keepers(config.stash[RUN])
        if not config.stash.get(KEEPS_FOLDER, False):
            shutil.rmtree(config.stash[RUN].folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs without coverage or not every day, and begin with the files that take longest."""
    tests = {item.nodeid for item in items}
    files = {item: item.path.relative_to(TESTS).as_posix() for item in items}
    for item, file in files.items():
        cases = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        if distribution.is_uncounted(file, cases) or is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("uncounted")
        if any(distribution.is_repeated(item.nodeid, case, tests) for case in cases):
            item.add_marker("repeated")
    items.sort(key=lambda item: distribution.place(files[item]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name shared servers that have ended, and escape what cannot be encoded.

    A report that cannot be encoded could not be sent to the controller, and the whole run would end.
    """
    report = yield
    if report.failed and (lost := lost_servers(item.config.stash[RUN])):
        report.sections.append(("shared servers", lost))
    report.sections = [(_encodable(head), _encodable(text)) for head, text in report.sections]
    said = report.longreprtext
    if _encodable(said) != said:
        report.longrepr = _encodable(said)
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal the tests as ``tests.distribution`` says, unless pytest is asked for another way than by files."""
    if config.getoption("dist") != "loadfile":
        return None
    return distribution.ComputingBesideWaiting(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage among tests that are being collected: they stay, and to look takes a fifth of the time."""
    gc.disable()
    try:
        with contextlib.nullcontext() if is_controller(session.config) else compiled_once(session.config.stash[RUN]):
            return (yield)
    finally:
        gc.enable()


@contextlib.contextmanager
def compiled_once(run: Run) -> Iterator[None]:
    """Have the first process of a run collect the tests before the others, which find them compiled.

    To compile takes longer than to collect, and each process would do it.
    """
    with (run.folder / "compiled").open("a") as compiled:
        fcntl.flock(compiled, fcntl.LOCK_EX)
        if os.fstat(compiled.fileno()).st_size:
            fcntl.flock(compiled, fcntl.LOCK_UN)
        yield
        compiled.write("once\n")


def pytest_collection_finish() -> None:
    """Take the collected tests out of all garbage collections to come, in this process and in its many forks."""
    gc.collect()
    gc.freeze()


def is_controller(config: pytest.Config) -> bool:
    """Return whether this process controls the run, as opposed to a worker of pytest-xdist."""
    return not hasattr(config, "workerinput")


def keep_from_forks(config: pytest.Config) -> None:
    """Take the connection to the controller away from forks of this process.

    The controller notices the end of this process by the end of the connection, so a fork that outlives the process and
    has the connection would make the whole run wait.
    """
    plugins = config.pluginmanager.get_plugins()
    [channel] = [plugin.channel for plugin in plugins if type(plugin).__name__ == "WorkerInteractor"]
    files = channel.gateway._io
    descriptors = [files.infile.fileno(), files.outfile.fileno()]
    nothing = os.open(os.devnull, os.O_RDWR)

    def replace() -> None:
        while descriptors:  # in forks of forks these numbers may belong to other files
            os.dup2(nothing, descriptors.pop(), inheritable=False)

    os.register_at_fork(after_in_child=replace)


@pytest.fixture(scope="module", autouse=True)
def threads_end_with_their_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait until the threads that a file has started have ended, for the next one may fork; fail if one stays.

    Threads of a pool end with it, so that what nobody holds any more is collected; those of a closed MongoDB client
    look for their end from time to time.
    """
    before = set(threading.enumerate())
    yield
    ends_at = time.monotonic() + THREADS_END_WITHIN
    while left := set(threading.enumerate()) - before:
        if time.monotonic() > ends_at:
            names = ", ".join(sorted({thread.name for thread in left}))
            pytest.fail(f"{request.node.nodeid} leaves threads: close what has started them ({names})")
        gc.collect()
        left.pop().join(0.1)


@pytest.fixture(scope="module", autouse=True)
def process_stays_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a file leaves what makes tests of the daemon kill the shared servers that this process starts later.

    They would be children of a subreaper, or marked as processes of jobs.
    """
    mark = resource.getrlimit(RLIMIT_LOCKS)
    yield
    is_subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper), 0, 0, 0)
    assert not is_subreaper.value, f"{request.node.nodeid} leaves its process as the parent of orphans"
    assert resource.getrlimit(RLIMIT_LOCKS) == mark, f"{request.node.nodeid} leaves its process marked"


@pytest.fixture(scope="session")
def mongo_set(pytestconfig: pytest.Config) -> str:
    """Return the URL of a replica set of one member that the whole run shares: use a database of your own."""
    return shared_server(pytestconfig.stash[RUN], "replica-set")


@pytest.fixture(scope="session")
def mongo_standalone(pytestconfig: pytest.Config) -> str:
    """Return the URL of a server without replica set that the whole run shares: use a database of your own."""
    return shared_server(pytestconfig.stash[RUN], "standalone")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a replica set of three members for one test."""
    with Cluster(tmp_path / "cluster", size=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgresql_url(pytestconfig: pytest.Config) -> str:
    """Return the URL of a PostgreSQL server that the whole run shares: use a schema of your own."""
    return shared_server(pytestconfig.stash[RUN], "postgresql")


@pytest.fixture
def postgresql_server(tmp_path: Path) -> Iterator[PostgreSQL]:
    """Start a PostgreSQL server for one test."""
    with PostgreSQL(tmp_path / "postgresql") as server:
        yield server
