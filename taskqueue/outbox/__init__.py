"""An outbox: an application adds jobs in its own transaction, in any database, and a relay moves them to the store."""

from taskqueue.outbox.outbox import Outbox

__all__ = ["Outbox"]
