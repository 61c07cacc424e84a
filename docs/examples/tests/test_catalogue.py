"""The catalogue is imported in batches."""

from pathlib import Path

import pytest
from shop import catalogue, database
from shop.catalogue import ImportCatalogue
from shop.wholesaler import PriceJob

from taskqueue import Scheduler
from taskqueue.testing import Jobs


def written(folder: Path, *rows: str) -> dict[str, str]:
    """Write a catalogue and return the data of its import."""
    path = folder / "catalogue.csv"
    path.write_text("\n".join(("isbn,title", *rows)))
    return {"path": str(path)}


def test_books_are_imported(jobs: Jobs, folder: Path) -> None:
    assert jobs.perform(ImportCatalogue, written(folder, "1,One", "2,Two")) == 2
    assert database.find_book("2")["title"] == "Two"


def test_titles_are_updated(jobs: Jobs, folder: Path) -> None:
    jobs.perform(ImportCatalogue, written(folder, "1,One"))

    assert jobs.perform(ImportCatalogue, written(folder, "1,Uno")) == 1
    assert database.find_book("1")["title"] == "Uno"


def test_more_than_one_batch_is_imported(jobs: Jobs, folder: Path) -> None:
    rows = [f"{number},Book {number}" for number in range(catalogue.BATCH + 1)]

    assert jobs.perform(ImportCatalogue, written(folder, *rows)) == catalogue.BATCH + 1


def test_an_import_continues_after_its_worker_was_killed(scheduler: Scheduler, jobs: Jobs, folder: Path) -> None:
    rows = [f"{number},Book {number}" for number in range(3 * catalogue.BATCH)]
    process = scheduler.add_job(ImportCatalogue, written(folder, *rows))

    jobs.crash(process, at="position 2")  # in a worker of a real node, after the second batch

    assert process.is_done
    assert [attempt.outcome for attempt in process.attempts] == ["Crashed", "Done"]
    jobs.assert_added(PriceJob, count=3 * catalogue.BATCH)


def test_each_book_gets_its_price(jobs: Jobs, folder: Path) -> None:
    jobs.perform(ImportCatalogue, written(folder, "1,One", "2,Two"))

    jobs.assert_added(PriceJob, count=2)
    jobs.assert_added(PriceJob, data={"isbn": "2"})


def test_a_price_that_is_to_be_asked_for_is_not_asked_for_twice(jobs: Jobs, folder: Path) -> None:
    for _ in range(2):
        jobs.perform(ImportCatalogue, written(folder, "1,One"))

    jobs.assert_added(PriceJob, count=1)


def test_a_file_that_is_gone_is_named(jobs: Jobs, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone.csv"):
        jobs.perform(ImportCatalogue, {"path": str(folder / "gone.csv")})


def test_a_broken_row_fails_the_import_and_keeps_the_others_out(scheduler: Scheduler, jobs: Jobs, folder: Path) -> None:
    scheduler.add_job(ImportCatalogue, written(folder, "1,One", "2"))

    jobs.drain(raise_errors=False)

    assert database.find_book("1") is None
    jobs.refute_added(PriceJob)
