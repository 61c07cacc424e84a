"""Draw the picture of the live screen from a real run: ``python docs/images/draw_top.py`` writes top.svg beside it."""

import asyncio
import re
import tempfile
from pathlib import Path

import shop
from draw import HERE, LIMIT, bring_about, node_of

from taskqueue import Scheduler
from taskqueue.cli.top.app import Top
from taskqueue.store.open import open_store


def main() -> None:
    """Run the shop's jobs with a node and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite://{folder}/jobs.db"
        with node_of(url), Scheduler(url) as scheduler:
            bring_about(scheduler)
            scheduler.add_jobs([(shop.MailJob, {"to": "ann@example.org"})] * 40)
            scheduler.pause("stock", "stocktaking", by="ann")
            scheduler.add_jobs([(shop.StockJob, None)] * 12)
            scheduler.add_job(shop.MailJob, {"to": "last@example.org"}).wait(timeout=LIMIT)
            picture = asyncio.run(taken(url))
    # A page with this picture shall not make its readers fetch fonts from strangers: theirs will do.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL).replace(folder, "/var/lib/taskqueue")
    Path(HERE / "top.svg").write_text(picture)


async def taken(url: str) -> str:
    """Return the picture of the screen after some looks."""
    store = open_store(url)
    top = Top(store, every=0.5, is_read_only=False)
    async with top.run_test(size=(100, 26)) as pilot:
        while top.reads < 4:
            await pilot.pause(0.1)
        picture = top.export_screenshot(title="taskqueue top")
    store.close()
    return picture


if __name__ == "__main__":
    main()
