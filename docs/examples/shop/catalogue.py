"""Imports the catalogue: a CSV file with many rows, in batches."""

import csv
import time

from shop import database
from shop.settings import Settings
from shop.wholesaler import PriceJob
from taskqueue import Job

BATCH = 20


class ImportCatalogue(Job):
    """Imports the file ``path`` and returns the number of its books."""

    # "retry" runs it again if its worker dies, up to ten times at the same batch: the batch may be what kills workers.
    options = {"queue": "imports", "crash_retries": 10, "on_crash": "retry"}

    def start(self) -> int:
        with open(self.data["path"], newline="", encoding="utf-8") as file:
            numbered = list(enumerate(csv.DictReader(file), start=1))
        # A batch is finished when the loop asks for the next one. After a crash, the job runs from its start, and this
        # loop continues with the batch that was not finished: to save the same rows again does no harm.
        for batch in self.each(numbered, batch=BATCH):
            rows = [row for _, row in batch]
            database.save_books(rows)
            # The key keeps out a second job for a book whose price is already to be asked for.
            self.scheduler.add_jobs(
                (PriceJob, {"isbn": row["isbn"]}, {"unique": f"price of {row['isbn']}"}) for row in rows
            )
            last = batch[-1][0]
            self.progress(100 * last / len(numbered), f"{last} of {len(numbered)} books")
            time.sleep(float(Settings().import_pause))
        return len(numbered)
