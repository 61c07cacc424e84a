"""The web application: it answers at once, and leaves slow work to jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Body, Depends, FastAPI, HTTPException
from pydantic import BaseModel

from bookshop import database
from bookshop.catalogue import ImportCatalogue
from bookshop.covers import ThumbnailJob
from bookshop.mail import MailJob
from bookshop.report import ZONE, define_schedules
from bookshop.settings import Settings
from taskqueue import Scheduler
from taskqueue.errors import JobNotFound


@cache
def get_scheduler() -> Scheduler:
    """Return the scheduler of this process, on the store that ``TASKQUEUE_URL`` names."""
    return Scheduler()


Jobs = Annotated[Scheduler, Depends(get_scheduler)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    define_schedules(app.dependency_overrides.get(get_scheduler, get_scheduler)())
    yield


app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    isbn: str
    email: str


@app.post("/orders", status_code=201)
def order(order: Order, jobs: Jobs) -> dict[str, Any]:
    """Keep the order; the confirmation is mailed by a job."""
    book = database.find_book(order.isbn)
    if book is None:
        raise HTTPException(404, f"there is no book {order.isbn}")
    number = database.save_order(order.isbn, order.email, datetime.now(ZoneInfo(ZONE)).date().isoformat())
    mail = {"to": order.email, "subject": f"Your order {number}", "text": f"Thank you for ordering {book['title']}."}
    return {"order": number, "job": str(jobs.add_job(MailJob, mail, unique=f"order {number}", tags=["order"]).id)}


@app.put("/covers/{isbn}", status_code=202)
def cover(isbn: str, picture: Annotated[bytes, Body(media_type="image/png")], jobs: Jobs) -> dict[str, Any]:
    """Keep the picture; its thumbnails are made by a job."""
    if not isbn.isdigit():
        raise HTTPException(422, "an ISBN has digits only")
    Settings().covers.mkdir(exist_ok=True)
    (Settings().covers / f"{isbn}.png").write_bytes(picture)
    return {"job": str(jobs.add_job_once(ThumbnailJob, {"name": f"{isbn}.png"}).id)}


@app.post("/imports", status_code=202)
def import_catalogue(path: Annotated[str, Body(embed=True)], jobs: Jobs) -> dict[str, Any]:
    """Import a file that lies on this host."""
    if not Path(path).is_file():
        raise HTTPException(404, f"there is no file {path}")
    process = jobs.add_job_once(ImportCatalogue, {"path": path})
    return {"job": str(process.id), "existed": process.existed}


@app.get("/jobs/{id}")
def job(id: str, jobs: Jobs) -> dict[str, Any]:
    """Say how far a job is, and why it is in its status."""
    try:
        process = jobs.get_job(id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
    return {
        "status": process.status.name,
        "progress": process.progress,
        "message": process.progress_message,
        "result": process.result,
        "why": process.why(),
    }
