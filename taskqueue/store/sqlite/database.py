"""The connection of Python's driver, on which the statements of the store run."""

import sqlite3

from taskqueue.store.relational.engine import AddCounts
from taskqueue.store.sqlite.add_counts import SqliteCounts


class SqliteDatabase(sqlite3.Connection):
    """A connection that knows how added jobs are counted in its database."""

    adds: AddCounts = SqliteCounts()
    evaluates_data = True
