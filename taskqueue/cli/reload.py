"""``taskqueue reload``: make the nodes of this host load new code, each worker after its current job."""

from __future__ import annotations

import os
import signal

import click

from taskqueue.cli import output
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket


@click.command("reload", short_help="Make the nodes of this host load new code.")
@click.argument("nodes", metavar="[NODE…]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON list for programs.")
def reload_command(nodes: tuple[str, ...], as_json: bool) -> int:
    """Make these nodes, or all nodes of this host, load new code: each worker is replaced after its current job.

    It sends SIGHUP, as `systemctl reload` does. With --preload, a node restarts when its running jobs have ended.
    """
    flaws = {name: flaw for node in nodes or (None,) for name, flaw in _reloaded(node).items()}
    if as_json:
        shown = [{"node": name, "reloaded": not flaw, "reason": flaw or None} for name, flaw in flaws.items()]
        output.json_line(output.json_text(shown, 2))
    for name, flaw in flaws.items() if not as_json else ():
        line = f"was not reloaded: {flaw}" if flaw else "loads new code: each worker is replaced after its current job"
        output.line(f"{name} {line}", err=bool(flaw))
    missing = [name for name in nodes if name not in flaws]
    if missing or not flaws:
        which = f"node {missing[0]!r} runs" if missing else "node of this user runs"
        output.line(f"taskqueue reload: no {which} on this host: `taskqueue nodes` lists nodes and hosts", err=True)
        return Exit.NOT_FOUND
    return Exit.NOT_LIVE if any(flaws.values()) else Exit.OK


def _reloaded(node: str | None) -> dict[str, str]:
    """Return the nodes that have this name, or all, each with the reason why it could not be reloaded."""
    flaws = {}
    for path in control_socket.sockets(node):
        answer = control_socket.ask(path)
        if answer.health is not None:
            flaws[str(answer.health["node"])] = _flaw(answer.pid)
        elif answer.silence not in (None, control_socket.Silence.KILLED):
            flaws[node or str(path)] = answer.silence.value
    return flaws


def _flaw(pid: int) -> str:
    """Send SIGHUP to the process of a node, and return why it could not be sent."""
    if not pid:
        return "it runs in another container: run the command there"
    try:
        os.kill(pid, signal.SIGHUP)
    except (ProcessLookupError, PermissionError) as error:
        return f"pid {pid}: {error.strerror}"
    return ""
