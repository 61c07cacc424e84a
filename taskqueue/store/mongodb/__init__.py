"""The store for clusters: a MongoDB replica set, or a single server."""

from taskqueue.store.mongodb.store import open_mongodb

__all__ = ["open_mongodb"]
