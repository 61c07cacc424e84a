"""``taskqueue doctor``: checks store, nodes, waiting jobs and host, and says how to fix each problem."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.daemon.runtime import cgroup
from taskqueue.errors import StoreUnavailable
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket, diagnosis, needs, promises
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.wording import count, size
from taskqueue.store import Store

BATCH = 500
"""How many jobs one call repairs."""

BATCHES = 10_000
"""Maximum number of batches of one repair."""

REPAIR = "repair"
"""The subject of the finding about a repair, which is always shown."""

UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))

FEW_DESCRIPTORS = 1024
"""A limit of open files that is too low for many workers: the usual default of a shell."""

_WANTED = (
    ("Type", ("notify", "notify-reload"), "systemd does not know when it is ready"),
    ("KillMode", ("mixed", "process"), "a stop sends SIGTERM to running jobs at once"),
    ("WatchdogSec", (), "a node that hangs is not restarted"),
    ("Restart", ("always", "on-failure"), "a node that dies is not started again"),
)
"""The settings of a unit, the values that are fine (none: any), and the consequence of others."""


@click.command("doctor", short_help="Find problems, and say how to fix them.")
@click.option("--all", "shows_all", is_flag=True, help="Also print what is in order, such as the size of the store.")
@output.json_option("a JSON list", ", including what is in order")
@click.option("--repair", "repairs", is_flag=True, help="First rewrite derived fields that are wrong.")
@pass_store
def doctor_command(context: StoreContext, shows_all: bool, as_json: bool, repairs: bool) -> int:
    """Check the store, its nodes, waiting jobs and this host, and say how to fix each problem.

    It prints problems, and what --repair has done. Without --repair it only reads. The check of an embedded store
    reads its file, for up to 20 seconds. Exits with 0 if all is well.
    """
    findings = [*_of_store(context, repairs), *_of_host()]
    flaws = [finding for finding in findings if finding.level is not Level.OK]
    if as_json:
        output.write_all(
            {"level": finding.level.value, "about": finding.about, "finding": finding.says, "do": finding.do or None}
            for finding in findings
        )
    else:
        needed = [finding for finding in findings if finding in flaws or finding.about == REPAIR]
        _show(findings if shows_all else needed, len(flaws))
    if any(finding.about == "store" and finding.level is Level.ERROR for finding in findings):
        return Exit.STORE
    return Exit.FLAWS if flaws else Exit.OK


def _of_store(context: StoreContext, repairs: bool) -> Iterator[Finding]:
    try:
        yield Finding("store", f"{context.store.url}: {context.store.guarantee}")
        if repairs:
            with context.acting("repair", "derived fields"):
                yield _repair(context.store)
        yield from context.store.diagnose()
        yield from diagnosis.diagnose(context.store)
        overview = OverviewReader(context.store).read()
        yield from needs.of_work(overview.needs)
        yield from promises.findings_of(overview.promises, overview.at)
    except StoreUnavailable as error:
        says, _, do = str(error).rpartition(": ")
        yield Finding("store", says, Level.ERROR, do)


def _repair(store: Store) -> Finding:
    """Rewrite derived fields that are wrong, a batch at a time."""
    written = 0
    for _ in range(BATCHES):
        disagreements = store.disagreeing(BATCH).found
        in_batch = store.write_again(disagreements) if disagreements else 0
        written += in_batch
        if in_batch == 0:
            break
    wrong = f"the derived fields of {count(written, 'record')} were wrong"
    return Finding(REPAIR, wrong if written else "there was nothing to repair")


def _of_host() -> Iterator[Finding]:
    nodes = []
    for path in control_socket.sockets():
        answer = control_socket.ask(path)
        if answer.health is not None:
            nodes.append((str(answer.health["node"]), int(answer.health["pid"])))
            if not answer.health["ready"]:
                name, reason = answer.health["node"], answer.health["reason"]
                yield Finding("node", f"{name} is not ready: {reason}", Level.WARNING, "see `taskqueue health`")
            for problem in answer.health.get("problems", ()):
                do = "correct the code and reload the node (`taskqueue reload`), or the option and restart it"
                yield Finding("node", f"{answer.health['node']}: {problem}", Level.ERROR, do)
        elif answer.silence is control_socket.Silence.HUNG:
            do = "restart the node that has this socket"
            yield Finding("node", f"{path}: {answer.silence.value}", Level.ERROR, do)
    yield from [*_memory(), *_cgroup(), *_units(UNITS)]
    for name, pid in nodes:
        yield from _descriptors(name, pid)


def _show(findings: list[Finding], flaws: int) -> None:
    from taskqueue.cli import terminal

    for finding in findings:
        terminal.sentences(f"{finding.level.value:<8} {finding.about}: {finding.says}")
        if finding.do:
            terminal.sentences(f"         do: {finding.do}")
    terminal.sentences(f"{count(flaws, 'thing')} to do" if flaws else "all is well")


def _descriptors(name: str, pid: int) -> Iterator[Finding]:
    with suppress(OSError, ValueError, IndexError):
        limits = Path(f"/proc/{pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        most, used = int(line.split()[3]), len(os.listdir(f"/proc/{pid}/fd"))
        do = "raise the limit: LimitNOFILE=16384 in the unit, or ulimit -n"
        words = f"node {name}: {used} of {most} are in use"
        level = Level.ERROR if used > 0.9 * most else Level.WARNING if most < FEW_DESCRIPTORS else Level.OK
        yield Finding("descriptors", words, level, do if level is not Level.OK else "")


def _memory() -> Iterator[Finding]:
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = (int(sizes.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    if total:
        words = f"{size(free)} of {size(total)} are available"
        do = "lower --max-children, set --max-memory, or add memory: without any, the kernel kills workers"
        yield below("memory", words, free / total, warning=0.1, error=0.03, do=do)


def _cgroup() -> Iterator[Finding]:
    """Yield how much of the memory of this cgroup is used, if it has a limit."""
    use = cgroup.memory_use()
    if use is not None:
        used, most = use
        words = f"{size(used)} of {size(most)} are used"
        do = "raise the limit (MemoryMax), or lower --max-children"
        yield below("memory of the cgroup", words, 1 - used / max(most, 1), warning=0.1, error=0.02, do=do)


def _units(folders: Sequence[Path]) -> Iterator[Finding]:
    units = [unit for folder in folders if folder.is_dir() for unit in sorted(folder.glob("taskqueue-node*.service"))]
    for unit in units:
        set_to = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(errors="replace"), re.MULTILINE))
        missing = [
            f"without {name}={'…' if not values else values[0]} {harm}"
            for name, values, harm in _WANTED
            if name not in set_to or (values and set_to[name] not in values)
        ]
        program = _program(set_to.get("ExecStart", ""))
        if not os.access(program, os.X_OK):
            missing.append(f"its ExecStart {program!r} is not a program")
        level = Level.WARNING if missing else Level.OK
        do = "compare it with `taskqueue systemd`, then `systemctl daemon-reload`" if missing else ""
        yield Finding("unit file", f"{unit}: {'; '.join(missing) or 'as it should be'}", level, do)
    if not units:
        yield Finding("unit file", "none is installed on this host")


def _program(command: str) -> str:
    """Return the path of the program in a command line of systemd; it stands in quotes if it has spaces."""
    with suppress(ValueError, IndexError):
        return shlex.split(command.lstrip("@-:+!"))[0].replace("%%", "%").replace("$$", "$")
    return command
