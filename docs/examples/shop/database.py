"""The shop's own tables, books and orders, in the file of the store: an order and its jobs need one transaction."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from shop.settings import Settings

TABLES = """
CREATE TABLE IF NOT EXISTS books (isbn TEXT PRIMARY KEY, title TEXT NOT NULL, cents INTEGER);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, isbn TEXT NOT NULL, email TEXT NOT NULL, day TEXT NOT NULL);
"""

UPSERT = "INSERT INTO books (isbn, title) VALUES (:isbn, :title) ON CONFLICT DO UPDATE SET title = excluded.title"

SALES = """
SELECT title, count(*) AS sold, sum(cents) AS cents FROM orders JOIN books USING (isbn) WHERE day = ?
GROUP BY isbn ORDER BY sold DESC, title
"""


def connect() -> sqlite3.Connection:
    """Return a connection to the file, which must be a store already."""
    connection = sqlite3.connect(Settings().database, isolation_level="IMMEDIATE")
    connection.row_factory = sqlite3.Row
    connection.executescript(TABLES)
    return connection


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """Yield a connection in a transaction, which is committed unless the block raises."""
    with closing(connect()) as connection, connection:
        yield connection


def save_books(rows: Iterable[dict[str, str]]) -> None:
    """Insert or update books; to do it twice does no harm."""
    with connected() as database:
        database.executemany(UPSERT, rows)


def set_price(isbn: str, cents: int) -> None:
    with connected() as database:
        database.execute("UPDATE books SET cents = ? WHERE isbn = ?", (cents, isbn))


def find_book(isbn: str) -> sqlite3.Row | None:
    with connected() as database:
        book: sqlite3.Row | None = database.execute("SELECT * FROM books WHERE isbn = ?", (isbn,)).fetchone()
        return book


def save_order(database: sqlite3.Connection, isbn: str, email: str, day: str) -> int:
    """Insert an order in the open transaction, and return its number."""
    insert = "INSERT INTO orders (isbn, email, day) VALUES (?, ?, ?) RETURNING id"
    return int(database.execute(insert, (isbn, email, day)).fetchone()["id"])


def order_title(order: int) -> str:
    """Return the title of the book of an order."""
    query = "SELECT title FROM books JOIN orders USING (isbn) WHERE id = ?"
    with connected() as database:
        return str(database.execute(query, (order,)).fetchone()["title"])


def sales(day: str) -> list[sqlite3.Row]:
    """Return titles, numbers and sums of the orders of a day, the best-selling first."""
    with connected() as database:
        return database.execute(SALES, (day,)).fetchall()
