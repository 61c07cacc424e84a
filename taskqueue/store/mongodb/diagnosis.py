"""Examines a store on MongoDB: server, replica set, write concern, indexes, and how far the oplog reaches back."""

from __future__ import annotations

from collections.abc import Iterator

from pymongo.errors import OperationFailure

from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.wording import count, size, span
from taskqueue.store.mongodb.connection import Connection, is_cluster
from taskqueue.store.mongodb.documents import Document

DAY = 86_400.0
MIB = 2**20

WELL = ("PRIMARY", "SECONDARY", "ARBITER")
"""The states of members that work."""


def diagnose(connection: Connection) -> list[Finding]:
    """Return the findings; reads only."""
    hello = connection.check()
    lasting = [*_server(connection, hello), *_members(hello), _indexes(connection), *_oplog(connection, hello)]
    return [*lasting, *strains(connection)]


def strains(connection: Connection) -> list[Finding]:
    """Return those findings that change by themselves."""
    return [*_members_down(connection), *_room(connection)]


def _server(connection: Connection, hello: Document) -> Iterator[Finding]:
    version = connection.database.command("buildInfo").get("version", "unknown")
    yield Finding("MongoDB", f"version {version}")
    jobs = connection.collections.jobs
    concern = jobs.write_concern.document
    words = f"w={concern.get('w')}, j={concern.get('j')}; reads {jobs.read_concern.level}"
    yield Finding("write concern", words)
    if is_cluster(hello):
        return
    yield Finding(
        "replica set",
        "the server belongs to none: there is no failover, and nodes poll the store for jobs",
        Level.WARNING,
        "start mongod with --replSet and call rs.initiate(), also for one server",
    )


def _members(hello: Document) -> Iterator[Finding]:
    if "setName" not in hello:
        return
    members, arbiters = len(hello.get("hosts", ())), len(hello.get("arbiters", ()))
    words = f"{hello['setName']}, {count(members, 'server')}"
    if arbiters:
        words += f" and {count(arbiters, 'arbiter')}"
    if members >= 3:
        yield Finding("replica set", words)
        return
    do = "use three servers that hold data: with fewer, the loss of one stops writes of a majority, or loses jobs"
    yield Finding("replica set", words, Level.WARNING, do)


def _members_down(connection: Connection) -> Iterator[Finding]:
    """Yield the members of the replica set that do not work, as the server in use sees them, if the user may ask."""
    try:
        status = connection.database.client.admin.command("replSetGetStatus")
    except OperationFailure:  # the server belongs to no set, or the user lacks the role `clusterMonitor`
        return
    for member in status["members"]:
        if member["stateStr"] not in WELL:
            name, words = member["name"], member["stateStr"].strip("()")
            do = "start this member again, and see its log: if another one is lost, the store may stop"
            yield Finding("member of the replica set", f"{name} is {words}", Level.WARNING, do, name)


def _room(connection: Connection) -> Iterator[Finding]:
    """Yield how much room the server has, as far as it reports that."""
    stats = connection.database.command("dbStats")
    if "fsTotalSize" in stats:
        total, free = stats["fsTotalSize"], stats["fsTotalSize"] - stats["fsUsedSize"]
        do = "make room on the disk of the server, or shorten the retention (--keep-done, --keep-failed)"
        words = f"{size(free)} of {size(total)} are free on the server"
        yield below("free space", words, free, warning=1024 * MIB, error=128 * MIB, do=do)


def _indexes(connection: Connection) -> Finding:
    names = [str(index["name"]) for index in connection.collections.jobs.list_indexes()]
    return Finding("indexes", f"{len(names)} of the jobs; opening the store creates missing ones, if the user may")


def _oplog(connection: Connection, hello: Document) -> Iterator[Finding]:
    if "setName" not in hello:
        return
    oplog = connection.database.client.local["oplog.rs"]
    try:
        ends = [oplog.find_one({}, {"ts": True}, sort=[("$natural", order)]) for order in (1, -1)]
    except OperationFailure:
        yield Finding("oplog", "this user may not read it; the role `clusterMonitor` may")
        return
    times = [entry["ts"].as_datetime() for entry in ends if entry is not None]
    if len(times) == 2:
        reach = (times[1] - times[0]).total_seconds()
        used = connection.database.client.local.command("collStats", "oplog.rs")
        is_full = used.get("size", 0) > used.get("maxSize", 1) / 2  # a young one reaches back only to its creation
        do = "enlarge the oplog (replSetResizeOplog): a server, or a listener, that is away for longer starts again"
        words = f"it reaches back for {span(reach)}"
        yield below("oplog", words, reach if is_full else DAY, warning=DAY, error=3600.0, do=do)
