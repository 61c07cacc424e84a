"""The connection of Python's driver, on which the statements of the store run."""

import sqlite3

from taskqueue.store.relational.engine import AddCounts
from taskqueue.store.sqlite import add_counts


class SqliteDatabase(sqlite3.Connection):
    """A connection that knows how added jobs are counted in its database."""

    adds: AddCounts = add_counts
    evaluates_data = True
