"""Connects to the server: one client per process, opened at its first use."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import pymongo
from bson.codec_options import CodecOptions
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import PyMongoError, WriteConcernError
from pymongo.read_concern import ReadConcern

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.store.mongodb.documents import CODEC, Document
from taskqueue.store.mongodb.url import DATABASE, MongoUrl, unknown_option
from taskqueue.store.redaction import reveals

Client: TypeAlias = MongoClient[Document]

CLOSE_TIMEOUT = 1.0
"""Maximum time in seconds to notify the server when a client closes; by default it would wait half a minute for one."""

LEAST_POOL = 2
"""The connections that a process needs: the change stream keeps one, and calls need another."""

OLDEST_WIRE_VERSION = 9
"""The wire version of MongoDB 4.4."""

DURABLE = WriteConcern(w="majority", j=True)
"""Acknowledged once a majority of the servers has it on disk: no failover and no power cut undoes it."""

ACKNOWLEDGED = WriteConcern(w=1)
"""Acknowledged by the primary alone: for writes that any node repeats if they are lost."""


@dataclass(frozen=True, kw_only=True)
class Collections:
    """The collections of one store, each with durable writes, and with reads that no failover undoes."""

    jobs: Collection[Document]
    latest: Collection[Document]
    """The jobs as the primary has them, which a failover may undo: for reads whose consequences may be repeated."""
    events: Collection[Document]
    leases: Collection[Document]
    slots: Collection[Document]
    facts: Collection[Document]
    plans: Collection[Document]
    controls: Collection[Document]
    audit: Collection[Document]
    logs: Collection[Document]
    history: Collection[Document]


class Connection:
    """A client for the process that uses it; after a fork the child opens its own and does not touch its parent's."""

    def __init__(self, address: MongoUrl, database: Database[Document] | None = None) -> None:
        self.address = address
        self._given = database
        self._given_in = os.getpid()
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._opened: Collections | None = None
        self._inherited: list[object] = []
        resets_after_fork(self)

    @property
    def database(self) -> Database[Document]:
        """The database, through this process's own client."""
        return self.collections.jobs.database

    @property
    def collections(self) -> Collections:
        """The collections, through this process's own client."""
        return self._opened or self._open()

    def close(self) -> None:
        """Close the client, if it is this process's and not the caller's; an absent server does not delay it."""
        if self._client is not None:
            with pymongo.timeout(CLOSE_TIMEOUT):
                self._client.close()
            self._client, self._opened = None, None

    def log_in_again(self) -> None:
        """Have the next call log in again: a server drops the logins of a removed user for good."""
        with self._lock:
            client, self._client, self._opened = self._client, None, None
        if client is not None:
            with pymongo.timeout(CLOSE_TIMEOUT):
                client.close()

    def hello(self) -> Document:
        """Ask the server for its version and its time in UTC, whatever the time zone of this host."""
        answer: Document = self.database.client.admin.command("hello", codec_options=CODEC)
        return answer

    def time(self) -> datetime:
        """Ask the server for its time."""
        time: datetime = self.hello()["localTime"]
        return time

    def check(self) -> Document:
        """Return the server's description, or raise ``StoreUnavailable`` if it is too old."""
        hello = self.hello()
        if hello["maxWireVersion"] < OLDEST_WIRE_VERSION:
            raise StoreUnavailable(self.address.shown, "the server is older than MongoDB 4.4", "upgrade the server")
        return hello

    def reset_after_fork(self) -> None:
        """Keep the parent's client and lock from being garbage-collected: the sockets belong to the parent."""
        self._inherited += [self._client, self._opened, self._lock]
        self._lock, self._client, self._opened = threading.Lock(), None, None

    def _open(self) -> Collections:
        with self._lock:
            if self._opened is None:
                self._opened = self._collections(self._own_database())
            return self._opened

    def _own_database(self) -> Database[Document]:
        database = self._connected()
        size = database.client.options.pool_options.max_pool_size
        if size is not None and 0 < size < LEAST_POOL:
            raise ConfigError(
                f"store {self.address.shown}: maxPoolSize={size} is one connection, which the change stream takes: "
                f"pass {LEAST_POOL} or more, or 0 for no limit; correct the URL"
            )
        return database

    def _connected(self) -> Database[Document]:
        if self._given is not None and self._given_in == os.getpid():
            return self._given
        if self._given is not None:
            # The driver has no public way to make another client with the same options and credentials.
            self._client = self._given.client._duplicate()  # noqa: SLF001
            return self._client[self._given.name]
        url = self.address.client_url
        named: dict[str, Any] = {} if "appname=" in url.lower() else {"appname": "taskqueue"}
        try:
            with warnings.catch_warnings():  # the driver only warns about options that it does not know or cannot parse
                warnings.simplefilter("error", UserWarning)
                self._client = MongoClient(url, connect=False, **named)
        except (ValueError, TypeError, UserWarning, PyMongoError) as error:
            if reveals(str(error), url):
                raise ConfigError(f"store {self.address.shown} has a URL that the driver rejects: correct it") from None
            reason = unknown_option(url) or str(error)
            raise ConfigError(f"store {self.address.shown}: {reason}: correct the URL") from error
        return self._client.get_default_database(DATABASE)

    def _collections(self, database: Database[Document]) -> Collections:
        codec: CodecOptions[Document] = CODEC
        own = database.with_options(
            codec_options=codec,
            read_preference=ReadPreference.PRIMARY,
            write_concern=DURABLE,
            read_concern=ReadConcern("majority"),
        )
        prefix = self.address.prefix
        jobs = own[f"{prefix}jobs"]
        return Collections(
            jobs=jobs,
            latest=jobs.with_options(write_concern=ACKNOWLEDGED, read_concern=ReadConcern("local")),
            events=own[f"{prefix}events"],
            leases=own[f"{prefix}leases"],
            slots=own[f"{prefix}slots"].with_options(read_concern=ReadConcern("local")),
            facts=own[f"{prefix}facts"],
            plans=own[f"{prefix}plans"],
            controls=own[f"{prefix}controls"],
            audit=own[f"{prefix}audit"],
            logs=own[f"{prefix}logs"],
            history=own[f"{prefix}history"],
        )


def find_and_modify(
    collection: Collection[Document], query: Document, update: Document, **options: Any
) -> Document | None:
    """Change one document, and return it as it was, or as it is with ``new=True``; None if there is none.

    The driver's own call is sent twice if the connection breaks, for which the server keeps a copy of each document.
    """
    command = {"findAndModify": collection.name, "query": query, "update": update, **options}
    command["writeConcern"] = collection.write_concern.document
    answer = collection.database.command(command, codec_options=CODEC)
    refused = answer.get("writeConcernError")
    if refused is not None:
        raise WriteConcernError(refused.get("errmsg", ""), refused.get("code"), refused)
    changed: Document | None = answer["value"]
    return changed


def is_cluster(hello: Document) -> bool:
    """Return whether the server has change streams."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


def guarantee(hello: Document) -> str:
    """Describe which faults an acknowledged job survives on such a server."""
    if not is_cluster(hello):
        return "an acknowledged job survives a power cut of the one server (journaled; no failover, no change streams)"
    members = len(hello.get("hosts", ()))
    if members == 1:
        return "an acknowledged job survives a power cut (journaled by the one server of its replica set)"
    return "an acknowledged job survives power cuts and the loss of a minority of the servers (majority, journaled)"


class Forked(Protocol):
    """An object that a forked child inherits and must reset."""

    def reset_after_fork(self) -> None:
        """Drop the parent's resources without touching them."""


_INHERITED: weakref.WeakSet[Forked] = weakref.WeakSet()


def resets_after_fork(one: Forked) -> None:
    """Reset this object in every child that is forked from now on."""
    _INHERITED.add(one)


def _reset_all() -> None:
    for inherited in list(_INHERITED):
        inherited.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all)
