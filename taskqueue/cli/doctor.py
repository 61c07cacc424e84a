"""``taskqueue doctor``: checks store, nodes, waiting jobs and host, and says how to fix each problem."""

from __future__ import annotations

from collections.abc import Iterator

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.daemon.runtime import host_diagnosis
from taskqueue.errors import StoreUnavailable
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket, diagnosis, needs
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.finding import Finding, Level
from taskqueue.model.wording import count
from taskqueue.store import Store

BATCH = 500
"""How many jobs one call repairs."""

BATCHES = 10_000
"""The most batches of one repair."""

REPAIR = "repair"
"""The subject of the finding about a repair, which is always shown."""


@click.command("doctor", short_help="Find what is wrong, and say what to do.")
@click.option("--all", "shows_all", is_flag=True, help="Also print what is well, such as the size of the store.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list for programs, with what is well.")
@click.option("--repair", "repairs", is_flag=True, help="First rewrite derived fields that disagree.")
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
        yield from needs.of_work(OverviewReader(context.store).read().needs)
    except StoreUnavailable as error:
        says, _, do = str(error).rpartition(": ")
        yield Finding("store", says, Level.ERROR, do)


def _repair(store: Store) -> Finding:
    """Write derived fields that disagree again, a batch at a time."""
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
    yield from host_diagnosis.diagnose(nodes)


def _show(found: list[Finding], flaws: int) -> None:
    from taskqueue.cli import terminal

    for finding in found:
        terminal.sentences(f"{finding.level.value:<8} {finding.about}: {finding.says}")
        if finding.do:
            terminal.sentences(f"         do: {finding.do}")
    terminal.sentences(f"{count(flaws, 'thing')} to do" if flaws else "all is well")
