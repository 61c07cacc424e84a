"""Adds jobs within a transaction of the application's own client session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymongo
from bson import ObjectId
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from taskqueue.errors import InvalidOption
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.record import Record
from taskqueue.store.arguments import existing
from taskqueue.store.mongodb.connection import Client, Connection
from taskqueue.store.mongodb.documents import CODEC, Document, document, record
from taskqueue.store.mongodb.driver_errors import DEADLINE, unavailable
from taskqueue.store.mongodb.effects import Effect
from taskqueue.store.mongodb.indexes import GIVEN
from taskqueue.store.mongodb.inserts import alike_in
from taskqueue.store.mongodb.unique_keys import holds, of_period
from taskqueue.store.session_kinds import refused


class SessionInserts:
    """Adds records inside a transaction; its commit makes them visible, and change streams ring."""

    def __init__(self, connection: Connection, session: Any) -> None:
        """Raise ``InvalidOption`` for no session, one without a transaction, or one of another cluster's client."""
        if not isinstance(session, ClientSession):
            raise refused(session, "pass what start_session() of a MongoClient returns, in asyncio as well")
        if session.has_ended or not session.in_transaction:
            raise InvalidOption("session: no transaction is open on it: call this inside session.start_transaction()")
        database = connection.database
        self._shown = connection.address.shown
        self._session = session
        if _members(session.client) != _members(database.client):
            raise InvalidOption(f"session: its client is not one of the servers of {self._shown}: use one that is")
        self._jobs = session.client.get_database(database.name, codec_options=CODEC)[connection.collections.jobs.name]

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Insert all records and return the stored record for each, in order, as the transaction sees it.

        Raises ``DuplicateId`` and ``StoreUnavailable``, and the driver's own errors if they say that the whole
        transaction may be repeated, for ``session.with_transaction`` does so.
        """
        try:
            with pymongo.timeout(DEADLINE):
                return self._kept(records)
        except PyMongoError as error:
            raise self._of_the_store(error) from error

    def alike(self, new: Record, ignore_data: bool) -> list[Record]:
        """Return the pending records for which a new one is the same job, as the transaction sees them."""
        try:
            with pymongo.timeout(DEADLINE):
                return alike_in(self._jobs, new, ignore_data, self._session)
        except PyMongoError as error:
            raise self._of_the_store(error) from error

    def _of_the_store(self, error: PyMongoError) -> Exception:
        return error if error.has_error_label("TransientTransactionError") else unavailable(self._shown, error)

    def _kept(self, records: Sequence[Record]) -> list[Record]:
        # Searched first, because a refused insert would abort the transaction.
        ids = {"_id": {"$in": [new.id for new in records]}}
        by_id = {document["_id"]: record(document) for document in self._jobs.find(ids, session=self._session)}
        by_key: dict[str, Record] = {}
        stored, documents = [], []
        for new in records:
            present = by_id.get(new.id)
            if present is not None:
                present = existing(new, present)
            elif new.unique is not None:
                present = by_key.get(new.unique) or self._holder(new)
            if present is None:
                present = self._placed(new)
                by_id[new.id] = present
                if new.unique is not None:
                    by_key[new.unique] = present
                documents.append(_inserted(present))
            stored.append(present)
        if documents:
            self._jobs.insert_many(documents, session=self._session)
        return stored

    def _holder(self, new: Record) -> Record | None:
        """Return the job that keeps the new one out by its unique key, or by the period of that key."""
        assert new.unique is not None
        holder = self._jobs.find_one(holds(new.unique), session=self._session)
        return record(holder) if holder is not None else of_period(self._jobs, new, self._session)

    def _placed(self, new: Record) -> Record:
        """Return the record to insert; it waits for a running job that has released its key to a successor."""
        if new.unique is None:
            return new
        given = self._jobs.find({"after.successor.unique": new.unique}, {"_id": True}, session=self._session)
        for giver in given.hint(GIVEN).limit(1):  # it runs, and its successor is not inserted yet
            return behind(new, giver["_id"])
        return new


def _inserted(new: Record) -> Document:
    """Return the record; one with a parent or dependencies gets an entry of effects for a recheck of them."""
    if not new.waiting_for and new.parent is None:
        return document(new)
    recheck = Effect(token=ObjectId(), at=new.created_at, job_id=new.id, needs_recheck=True)
    return document(new) | {"after": [recheck.entry()]}


def _members(client: Client) -> tuple[str, frozenset[str]]:
    """Return the identity of the client's servers."""
    hello: Document = client.admin.command("hello")
    return hello.get("setName", ""), frozenset(hello.get("hosts", ()))
