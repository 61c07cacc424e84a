"""``taskqueue nodes``: the nodes of this store, and with ``--leader``, which of them leads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import click

from taskqueue.cli import output, watch
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.exit_codes import Exit
from taskqueue.insight import host
from taskqueue.insight.nodes import LEAD, Node, nodes
from taskqueue.insight.nodes import leader as leader_of
from taskqueue.model.wording import local, span
from taskqueue.scheduler import json_shapes
from taskqueue.store import Lease

SHOWN = 8
"""How many characters of an incarnation are enough to distinguish it from others."""


BESIDE_IDLE = 6
"""The position of the column of concurrent workers, which is shown if there are any."""


@click.command("nodes")
@click.option("--leader", "is_leader", is_flag=True, help="Print the node that leads the cluster instead.")
@click.option("--resign", is_flag=True, help="With --leader: take the lead away from it; any node may become leader.")
@watch.watch_option
@output.json_option("JSON", ": a list, or with --leader one object")
@pass_store
def nodes_command(context: StoreContext, is_leader: bool, resign: bool, every: float | None, as_json: bool) -> int:
    """List the nodes that work on the store.

    A silent node, whose lease has expired, and a killed node are listed until their seats are taken again. Workers of
    classes with concurrency are not among the busy and idle workers; if there are any, they are counted separately.

    The leader does work for the whole cluster, such as retention. Nothing is lost while there is no leader.
    """
    if resign and (every is not None or not is_leader):
        raise click.UsageError("--resign takes the lead away once: pass it with --leader and without --watch")
    if every is not None:
        show = _show_leader if is_leader else _list
        watch.repeat(lambda: show(context, as_json=False), every, as_json=as_json)
    elif is_leader:
        return _show_leader(context, as_json=as_json, resign=resign)
    else:
        _list(context, as_json=as_json)
    return Exit.OK


def _list(context: StoreContext, *, as_json: bool) -> None:
    states = nodes(context.store)
    if as_json:
        output.write_all(
            json_shapes.lease(
                node.lease, jobs=node.jobs, is_leader=node.is_leader, is_live=node.is_live, drain=node.drain
            )
            for node in states
        )
        return
    if not states:
        output.line("no node works on this store")
        return
    from taskqueue.cli import terminal

    columns = [
        terminal.Column(head="node", cut="end", least=24),
        terminal.Column(head="lead"),
        terminal.Column(head="state", cut="end", least=9),
        terminal.Column(head="jobs", side="right"),
        terminal.Column(head="busy", side="right"),
        terminal.Column(head="idle", side="right"),
        terminal.Column(head="renewed", side="right"),
        terminal.Column(head="pool", is_spare=True),
        terminal.Column(head="version", is_spare=True),
        terminal.Column(head="incarnation", is_spare=True),
        terminal.Column(head="up", side="right", is_spare=True),
        terminal.Column(head="pid", side="right", is_spare=True),
        terminal.Column(head="host", is_spare=True),
    ]
    now = context.store.now()
    rows = [_row(node, now) for node in states]
    if any(node.about.get("concurrent") for node in states):
        columns.insert(BESIDE_IDLE, terminal.Column(head="concurrent", side="right"))
        for node, row in zip(states, rows, strict=True):
            row.insert(BESIDE_IDLE, str(node.about.get("concurrent", "?")))
    terminal.table(columns, rows)


def _show_leader(context: StoreContext, *, as_json: bool, resign: bool = False) -> int:
    """Print which node leads, after taking the lead from it if asked; return ``Exit.NOT_FOUND`` if none leads."""
    now = context.store.now()
    leader = leader_of(context.store.leases(), now)
    if leader is not None and resign:
        context.store.resign(LEAD, leader.holder)
    if as_json:
        output.write(_document(leader, resigned=resign and leader is not None))
    elif leader is None:
        output.line("no node leads")
    elif resign:
        output.line(f"{leader.holder.seat} no longer leads")
    else:
        output.line(f"{leader.holder.seat} leads since {local(leader.since)}")
    return Exit.NOT_FOUND if leader is None else Exit.OK


def _document(leader: Lease | None, *, resigned: bool) -> Mapping[str, object]:
    if leader is None:
        return {"leader": None, "resigned": False}
    return {
        "leader": leader.holder.seat,
        "incarnation": leader.holder.incarnation,
        "since": leader.since.isoformat(timespec="milliseconds"),
        "resigned": resigned,
    }


def _row(node: Node, now: datetime) -> list[str]:
    about, seat = node.about, node.lease
    bounds = f"{about.get('pm', '?')} {about.get('min_children', '?')}-{about.get('max_children', '?')}"
    return [
        node.name,
        "yes" if node.is_leader else "",
        node.state,
        str(node.jobs),
        str(about.get("busy", "?")),
        str(about.get("idle", "?")),
        _renewed(seat, now),
        bounds,
        str(about.get("version", "?")),
        seat.holder.incarnation[:SHOWN],
        span((now - seat.since).total_seconds()),
        str(about.get("pid", "?")),
        str(about.get("host", "?")),
    ]


def _renewed(seat: Lease, now: datetime) -> str:
    """Return how long ago the node was last heard from."""
    lease = seat.about.get("lease")
    if not isinstance(lease, int | float):
        return "?"
    if seat.until <= now and host.is_gone(seat):  # its lease ended when the seat was taken over
        return "-"
    return span(max(lease - (seat.until - now).total_seconds(), 0.001))
