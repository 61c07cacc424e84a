"""Imports the catalogue: a CSV file with many rows, in batches."""

import csv

from bookshop import database
from bookshop.prices import PriceJob
from taskqueue import Job

BATCH = 1000


class ImportCatalogue(Job):
    """Imports the file ``path`` and returns the number of its books; an interrupted import goes on where it was."""

    options = {"crash_retries": 10, "on_crash": "retry"}

    def start(self) -> int:
        with open(self.data["path"], newline="", encoding="utf-8") as file:
            for rows in self.each(csv.DictReader(file), batch=BATCH):
                database.save_books(rows)
                self.scheduler.add_jobs(
                    (PriceJob, {"isbn": row["isbn"]}, {"unique": f"price of {row['isbn']}"}) for row in rows
                )
        with database.connected() as shop:
            return shop.execute("SELECT count(*) FROM books").fetchone()[0]
