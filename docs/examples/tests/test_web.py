"""The web application answers at once, and adds jobs."""

import io
import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from shop import database
from shop.catalogue import ImportCatalogue
from shop.mail import MailJob
from shop.pictures import ThumbnailJob
from shop.services import MailServer, Wholesaler

from taskqueue.testing import Jobs


def test_an_order_is_confirmed_by_mail(client: TestClient, jobs: Jobs, momo: sqlite3.Row) -> None:
    answer = client.post("/orders", json={"isbn": momo["isbn"], "email": "ann@example.org"})

    assert answer.status_code == 201
    jobs.assert_added(MailJob, data={"to": "ann@example.org", "subject": "Your order 1"}, queue="mail")


def test_each_job_of_an_order_names_its_customer(client: TestClient, jobs: Jobs, momo: sqlite3.Row) -> None:
    client.post("/orders", json={"isbn": momo["isbn"], "email": "ann@example.org"})

    assert [job.meta for job in jobs.added()] == [{"customer": "ann@example.org"}] * 4


def test_an_order_of_an_unknown_book_adds_nothing(client: TestClient, jobs: Jobs) -> None:
    assert client.post("/orders", json={"isbn": "1", "email": "ann@example.org"}).status_code == 404
    jobs.refute_added()


@pytest.mark.parametrize("email", [None, "", "ann", "ann@example.org\n", "a\0@b", "a" * 5000 + "@b"])
def test_an_order_without_address_is_not_kept_and_adds_nothing(
    client: TestClient, jobs: Jobs, momo: sqlite3.Row, email: str | None
) -> None:
    assert client.post("/orders", json={"isbn": momo["isbn"], "email": email}).status_code == 422
    jobs.refute_added()
    with database.connected() as shop:
        assert shop.execute("SELECT count(*) FROM orders").fetchone()[0] == 0


def test_the_confirmation_arrives(
    client: TestClient, jobs: Jobs, mails: MailServer, wholesaler: Wholesaler, momo: sqlite3.Row
) -> None:
    client.post("/orders", json={"isbn": momo["isbn"], "email": "ann@example.org"})

    jobs.drain()

    assert "Thank you for ordering Momo." in mails.box[0].get_payload()


def test_a_cover_gets_thumbnails(client: TestClient, jobs: Jobs, folder: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (10, 10)).save(picture, "PNG")

    client.put("/covers/123", content=picture.getvalue(), headers={"Content-Type": "image/png"})
    jobs.drain()

    assert (folder / "covers" / "123-64.jpg").exists()
    jobs.assert_added(ThumbnailJob, queue="images", count=1)


def test_a_file_that_is_not_there_is_not_imported(client: TestClient, jobs: Jobs) -> None:
    assert client.post("/imports", json={"path": "gone.csv"}).status_code == 404
    jobs.refute_added(ImportCatalogue)


def test_an_import_that_is_under_way_is_not_added_again(client: TestClient, jobs: Jobs, folder: Path) -> None:
    (folder / "catalogue.csv").write_text("isbn,title\n")
    answers = [client.post("/imports", json={"path": "catalogue.csv"}).json() for _ in range(2)]

    assert [answer["existed"] for answer in answers] == [False, True]
    jobs.assert_added(ImportCatalogue, count=1)


def test_a_file_outside_the_folder_of_the_shop_is_not_imported(client: TestClient, jobs: Jobs) -> None:
    assert client.post("/imports", json={"path": "/etc/passwd"}).status_code == 404
    assert client.post("/imports", json={"path": "a" * 5000}).status_code == 422
    jobs.refute_added()


def test_a_job_says_how_far_it_is(client: TestClient, jobs: Jobs, folder: Path) -> None:
    (folder / "catalogue.csv").write_text("isbn,title\n")
    job = client.post("/imports", json={"path": "catalogue.csv"}).json()["job"]
    assert client.get(f"/jobs/{job}").json()["status"] == "WAITING"

    jobs.drain()

    assert client.get(f"/jobs/{job}").json()["status"] == "DONE"
