"""``taskqueue health`` and ``reload``: ask the nodes of this host whether they are live, or to load new code.

It is imported without the other commands, because a probe starts it every few seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import click

from taskqueue.cli import output
from taskqueue.exit_codes import Exit
from taskqueue.insight import control_socket
from taskqueue.insight.control_socket import Silence
from taskqueue.model.environment import node_command
from taskqueue.model.raw_value import flaw_of
from taskqueue.model.wording import count, span

Health = Mapping[str, Any]

_WORST_LAST = (Exit.OK, Exit.UNREADY, Exit.NOT_LIVE)


@click.command("health", short_help="Check the health of the nodes on this host.")
@click.option(
    "--node", "name", envvar="TASKQUEUE_NAME", show_envvar=True, metavar="NAME",
    help="Check only this node; default: all nodes of this user on this host.",
)  # fmt: skip
@click.option("--live", "only_live", is_flag=True, help="Check only whether it is live, not whether it takes jobs.")
@output.json_option("a JSON list")
def health_command(name: str | None, only_live: bool, as_json: bool) -> int:
    """Ask the nodes of this host whether they are live and take jobs.

    A node is live while its loop runs, even if its store is down; it is ready while it takes jobs. Exits with 0 if
    every node is live and ready, or with --live if every node is live.
    """
    answers = list(_asked(name))
    if as_json:
        output.write(answers)
    else:
        for health in answers:
            _show(health)
    if not answers:
        output.line(f"taskqueue health: {_no_node(name)}", err=True)
        return Exit.NOT_FOUND
    return _worst(answers, only_live)


def main() -> int:
    """Run ``taskqueue health``; leave errors and help to ``taskqueue``, which prints them."""
    output.accept_every_character()
    if sys.stdout is not None and sys.argv[1:2] == ["health"] and _is_known(os.environ.get(control_socket.VARIABLE)):
        try:
            code = health_command.main(sys.argv[2:], prog_name="taskqueue health", standalone_mode=False)
            sys.stdout.flush()
            return code if isinstance(code, int) else Exit.OK
        except (click.ClickException, click.Abort, OSError):
            pass
    from taskqueue.cli.main import main

    return main()


def _is_known(folder: str | None) -> bool:
    """Return whether the folder of the sockets can be read; if not, ``taskqueue`` says why."""
    return not folder or (os.path.isabs(folder) and not flaw_of(folder))


def _asked(name: str | None) -> Iterator[Health]:
    """Yield the health of each node, or the reason why it does not answer.

    A killed node counts if it was named, or if no node is alive: otherwise its name may have been retired.
    """
    answers = [(path, control_socket.ask(path)) for path in control_socket.sockets(name)]
    is_there = any(answer.silence is not Silence.KILLED for _, answer in answers)
    for path, answer in answers:
        if answer.health is not None:
            yield answer.health
        elif answer.silence is not None and not (is_there and answer.silence is Silence.KILLED):
            yield {"node": name, "live": False, "ready": False, "reason": answer.silence.value, "socket": str(path)}


def _worst(answers: Sequence[Health], only_live: bool) -> Exit:
    """Return the code of the worst node; of two nodes with one name, one of which is standby, the better one counts."""
    codes: dict[object, Exit] = {}
    for health in answers:
        live = Exit.OK if health["live"] else Exit.NOT_LIVE
        code = live if health["ready"] or only_live or not health["live"] else Exit.UNREADY
        key = health["node"]
        codes[key] = min(code, codes.get(key, code), key=_WORST_LAST.index)
    return max(codes.values(), key=_WORST_LAST.index)


def _show(health: Health) -> None:
    """Print one node: the answer first, then its reasons."""
    state = "live" if health["live"] else "not live"
    ready = "" if not health["live"] else ", ready" if health["ready"] else ", not ready"
    reason = f": {health['reason']}" if health["reason"] else ""
    _fact(health["node"] or "a node", f"{state}{ready}{reason}", indent="")
    if "socket" in health:
        _fact("socket", health["socket"])
        return
    leads = ", leads the cluster" if health["leads"] else ""
    _fact("seat", f"{health['state']}{leads} (pid {health['pid']}, incarnation {health['incarnation'][:8]})")
    store, pool = health["store"], health["pool"]
    _fact("store", f"{'answers' if store['answers'] else 'does not answer'}: {store['url']}")
    forced = f", {count(pool['forced'], 'worker')} beside the pool" if pool["forced"] else ""
    shared = f", {count(pool['concurrent'], 'concurrent worker')}" if pool["concurrent"] else ""
    _fact("pool", f"{pool['busy']} busy, {pool['idle']} idle, at most {pool['slots']} ({pool['mode']}){forced}{shared}")
    _fact("backlog", _backlog(health["backlog"]))
    for problem in health.get("problems", ()):  # a node of an older version reports none
        _fact("problem", problem)


def _backlog(backlog: Mapping[str, Any] | None) -> str:
    if backlog is None:
        return "not read yet"
    oldest = backlog["oldest"]
    since = "" if oldest is None else f", the oldest for {span(oldest['age'])} in queue {oldest['queue']}"
    return f"{count(backlog['waiting'], 'job')} waiting{since}"


def _fact(name: str, text: str, indent: str = "  ") -> None:
    """Print a name and its value; on a terminal a long one is wrapped beside the name."""
    head = f"{indent}{name}: " if not indent else f"{indent}{name:<9}"
    if not sys.stdout.isatty():
        output.line(f"{head}{text}")
        return
    width = shutil.get_terminal_size().columns
    gap = " " * (11 if indent else 2)
    for line in textwrap.wrap(text, width, initial_indent=head, subsequent_indent=gap, break_on_hyphens=False):
        output.line(line)


def _no_node(name: str | None) -> str:
    whose = "no node of this user runs on this host" if name is None else f"no node {name!r} of this user runs here"
    return f"{whose}: start one with `{node_command()}`, or run this as its user (sudo -u) or as root"


@click.command("reload", short_help="Make the nodes of this host load new code.")
@click.argument("nodes", metavar="[NODE…]", nargs=-1)
@output.json_option("a JSON list")
@click.pass_context
def reload_command(ctx: click.Context, nodes: tuple[str, ...], as_json: bool) -> int:
    """Make these nodes, or all nodes of this host, load new code: each worker is replaced after its current job.

    It sends SIGHUP, as `systemctl reload` does. With --preload, a node restarts when its running jobs have ended. If
    --url or TASKQUEUE_URL names a store, "all nodes" leaves out those of other stores.
    """
    url: str | None = None if nodes else ctx.find_root().obj
    flaws = {name: flaw for node in nodes or (None,) for name, flaw in _reloaded(node, url).items()}
    if as_json:
        shown = [{"node": name, "reloaded": not flaw, "reason": flaw or None} for name, flaw in flaws.items()]
        output.write(shown)
    for name, flaw in flaws.items() if not as_json else ():
        line = f"was not reloaded: {flaw}" if flaw else "loads new code: each worker is replaced after its current job"
        output.line(f"{name} {line}", err=bool(flaw))
    missing = [name for name in nodes if name not in flaws]
    if missing or not flaws:
        from taskqueue.store.redaction import concealed  # a probe does not need it

        of_store = f" and store {concealed(url)}" if url else ""
        which = f"node {missing[0]!r} runs" if missing else f"node of this user{of_store} runs"
        output.line(f"taskqueue reload: no {which} on this host: `taskqueue nodes` lists nodes and hosts", err=True)
        return Exit.NOT_FOUND
    return Exit.NOT_LIVE if any(flaws.values()) else Exit.OK


def _reloaded(node: str | None, url: str | None) -> dict[str, str]:
    """Return the nodes of this name, or all of the store, each with the reason why it could not be reloaded."""
    flaws = {}
    for path in control_socket.sockets(node):
        answer = control_socket.ask(path)
        if answer.health is not None:
            if not url or not _is_another(answer.health["store"]["url"], url):
                flaws[str(answer.health["node"])] = _flaw(answer.pid)
        elif answer.silence not in (None, control_socket.Silence.KILLED):
            flaws[node or str(path)] = answer.silence.value
    return flaws


def _is_another(store: str, url: str) -> bool:
    """Return whether the addresses certainly name two stores: a server may have several names."""
    from taskqueue.store.open import MONGODB_SCHEMES, database_of  # a probe does not need it

    files = database_of(store), database_of(url)
    if files != (None, None):
        return files[0] != files[1]
    if store.startswith(MONGODB_SCHEMES) != url.startswith(MONGODB_SCHEMES):
        return True
    databases = [urlsplit(address).path.strip("/") for address in (store, url)]
    return all(databases) and databases[0] != databases[1]


def _flaw(pid: int) -> str:
    """Send SIGHUP to the process of a node, and return why it could not be sent."""
    if not pid:
        return "it runs in another container: run the command there"
    try:
        os.kill(pid, signal.SIGHUP)
    except (ProcessLookupError, PermissionError) as error:
        return f"pid {pid}: {error.strerror}"
    return ""
