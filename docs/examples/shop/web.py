"""The web application: it answers at once, and leaves slow work to jobs."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Body, FastAPI, HTTPException
from fastapi.responses import FileResponse
from pydantic import BaseModel, StringConstraints

from shop import database, orders
from shop.catalogue import ImportCatalogue
from shop.jobs import customer, scheduler
from shop.pictures import ThumbnailJob
from shop.report import ZONE, NightlyReport
from shop.settings import Settings
from taskqueue.errors import JobNotFound

app = FastAPI(title="The shop")


Isbn = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,13}$")]
Email = Annotated[str, StringConstraints(pattern=r"^[!-?A-~]+@[!-?A-~]+$", max_length=254)]


class Order(BaseModel):
    isbn: Isbn
    email: Email


# Endpoints are plain functions: FastAPI runs them in threads, so that an add, which waits for the disk, delays no other
# request. From "async def", use AsyncScheduler.
@app.get("/")
def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))


@app.post("/orders", status_code=201)
def order(order: Order) -> dict[str, Any]:
    """Keep the order; jobs fulfil it. ``job`` is the last one, so it is done when all are."""
    if database.find_book(order.isbn) is None:
        raise HTTPException(404, f"there is no book {order.isbn}: import the catalogue first")
    customer.set(order.email)
    number, flow = orders.place(order.isbn, order.email, datetime.now(ZoneInfo(ZONE)).date().isoformat())
    return {"order": number, "job": str(flow.processes[-1].id)}


@app.put("/covers/{isbn}", status_code=202)
def cover(isbn: Isbn, picture: Annotated[bytes, Body(media_type="image/png")]) -> dict[str, Any]:
    """Keep the picture; its thumbnails are made by a job."""
    Settings().covers.mkdir(exist_ok=True)
    (Settings().covers / f"{isbn}.png").write_bytes(picture)
    return {"job": str(scheduler.add_job_once(ThumbnailJob, {"name": f"{isbn}.png"}).id)}


@app.post("/imports", status_code=202)
def import_catalogue(path: Annotated[str, Body(embed=True, max_length=100)] = "catalogue.csv") -> dict[str, Any]:
    """Import a file in the folder of the shop; while it is imported, a second request gets the same job."""
    file = Path(Settings().folder) / Path(path).name
    if not file.is_file():
        raise HTTPException(404, f"there is no file {file}")
    process = scheduler.add_job_once(ImportCatalogue, {"path": str(file)})
    return {"job": str(process.id), "existed": process.existed}


@app.post("/reports", status_code=202)
def report() -> dict[str, Any]:
    """Mail the sales of today, without waiting for the night."""
    today = datetime.now(ZoneInfo(ZONE)).date().isoformat()
    return {"job": str(scheduler.add_job(NightlyReport, {"day": today}).id)}


@app.get("/jobs/{id}")
def job(id: str) -> dict[str, Any]:
    """Say how far a job is, and why it is in its status."""
    try:
        process = scheduler.get_job(id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
    return {
        "status": process.status.name,
        "progress": process.progress,
        "message": process.progress_message,
        "result": process.result,
        "why": process.why(),
    }
