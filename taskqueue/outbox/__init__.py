"""An outbox: an application adds jobs in its own transaction, in any database, and a relay moves them to the store."""

from taskqueue.outbox.outbox import AsyncOutbox, Outbox

__all__ = ["AsyncOutbox", "Outbox"]
