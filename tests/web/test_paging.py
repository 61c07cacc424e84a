"""Lists of queues, nodes and schedules are shown page by page, however many there are."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import milliseconds
from taskqueue.scheduler.search import LOOKS_AT
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.pages.jobs import PAGE
from taskqueue.web.paging import Part, part_of
from tests.store.records import a_record
from tests.web.conftest import MakeBrowser, log_in

MANY = 120
LARGEST = 150_000


def part(names: list[str], most: int = 3, **given: str) -> Part[str]:
    return part_of(names, str, given, most)


def test_a_list_that_fits_is_whole() -> None:
    found = part(["a", "b", "c"])
    assert (found.rows, found.next, found.is_whole, found.found) == (["a", "b", "c"], "", True, 3)


def test_each_page_begins_behind_the_one_before() -> None:
    names, after = list("gfedcba"), ""
    seen: list[str] = []
    while True:
        found = part(names, after=after)
        seen += found.rows
        assert (found.is_first, found.is_whole) == (not after, False)
        if not found.next:
            break
        after = found.next
    assert seen == names


def test_a_page_behind_a_row_that_is_gone_is_the_first() -> None:
    assert part(["a", "b"], after="x").is_first


def test_rows_are_found_by_a_part_of_their_name() -> None:
    found = part(["Mail", "email", "reports"], name=" MAIL ", after="Mail")
    assert (found.rows, found.found, found.is_whole) == (["email"], 2, False)


@pytest.fixture
def client(scheduler: Scheduler, url: str) -> Iterator[TestClient]:
    """Return a browser on a store with many queues, of which some are idle, schedules and nodes."""
    for number in range(MANY):
        scheduler.add_job("shop:Mail", queue=f"queue-{number:03}", id=f"{number:024}")
        scheduler.schedule(f"schedule-{number:03}", "shop:Report", every="1d")
    scheduler.cancel_jobs({"id": {"$lt": f"{MANY // 2:024}"}})
    with closing(open_store(url)) as store:
        now = store.now()
        for number in range(MANY):
            holder = Holder(seat=f"node-{number:03}", incarnation="a1b2c3d4e5f60718")
            lease = Lease(name=f"seat:{holder.seat}", holder=holder, since=now, until=now + timedelta(hours=1))
            store.acquire(lease, now)
    made = app(scheduler, local=True)
    with TestClient(made, base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
        yield browser


@pytest.mark.parametrize("kind", ["queue", "schedule", "node"])
def test_no_page_of_many_rows_is_large_and_all_are_reached(client: TestClient, kind: str) -> None:
    seen, path = set(), f"/{kind}s"
    while path:
        page = client.get(path).text
        assert len(page) < LARGEST
        seen |= {f"{kind}-{number:03}" for number in range(MANY) if f"{kind}-{number:03}" in page}
        _, is_there, behind = page.partition(f'<a href="/{kind}s?after=')
        path = f"/{kind}s?after={behind.partition(chr(34))[0]}" if is_there else ""
    assert len(seen) == MANY

    found = client.get(f"/{kind}s?name=-017").text
    assert (f"{kind}-017" in found, f"{kind}-018" in found) == (True, False)
    assert "in its name" in client.get(f"/{kind}s?name=nothing").text


@pytest.mark.parametrize("kind", ["queue", "schedule", "node"])
def test_the_api_pages_as_well(client: TestClient, kind: str) -> None:
    url, names, cursor = f"/api/v1/{kind}s", [], None
    while True:
        answer = client.get(url, params={"limit": 50, **({"cursor": cursor} if cursor else {})}).json()
        names += [one["name"] for one in answer[f"{kind}s"]]
        cursor = answer["cursor"]
        if cursor is None:
            break

    assert sorted(names) == [f"{kind}-{number:03}" for number in range(MANY)]
    assert [one["name"] for one in client.get(url, params={"name": "-017"}).json()[f"{kind}s"]] == [f"{kind}-017"]
    assert client.get(url, params={"cursor": "gone"}).status_code == 410


def test_new_jobs_are_counted_up_to_a_page(client: TestClient, scheduler: Scheduler) -> None:
    until = re.search(r"until=(\d+)", client.get("/jobs").text)
    assert until is not None
    address = f"/jobs?until={until[1]}"
    announced: list[str | None] = []

    for added in (1, PAGE - 1, 1):
        time.sleep(0.002)  # they are later by a millisecond
        scheduler.add_jobs([("shop:Mail", None)] * added)
        page = client.get(f"{address}&x={added}{len(announced)}", headers={"X-Part": "content"}).text  # none is shared
        found = re.search(r'role="status">([^<]*)\. <', page)
        announced.append(found and found[1])

    assert announced == ["1 new job", f"{PAGE} new jobs", f"more than {PAGE} new jobs"]


def test_queues_keep_the_order_of_their_names_whatever_waits_in_them(scheduler: Scheduler, url: str) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        for queue, minutes in (("ape", 1), ("mole", 3), ("zebra", 2)):
            at = now - timedelta(minutes=minutes)
            store.add([a_record(queue=queue, created_at=at, ready_at=at)])
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as client:
        page = client.get("/queues").text

    assert re.findall(r'<tr id="queue-\d+"><th scope="row"><a[^>]* title="(\w+)"', page) == ["ape", "mole", "zebra"]


def test_a_filter_that_few_jobs_match_looks_further_on_request(scheduler: Scheduler) -> None:
    at = scheduler.add_job("shop:Mail", tags=["rare"]).created_at
    while scheduler.add_job("shop:Mail").created_at <= at:  # a page looks at all that were added in a millisecond
        continue
    scheduler.add_jobs([("shop:Mail", None)] * (LOOKS_AT + 1))
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
        first = browser.get("/jobs?q=tag%3Arare").text
        further = re.search(r'href="(/jobs\?[^"]+)" rel="next">Look further', first)

        assert "No job matches among the" in first
        assert further is not None
        second = browser.get(further[1].replace("&amp;", "&")).text
        assert '<span class="soft">1 job on this page</span>' in second
        assert "Look further" not in second


def test_rows_stay_and_are_known_however_many_newer_jobs_there_are(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    process = scheduler.add_job("shop:Rare", tags="rare")
    with closing(open_store(url)) as store:
        at = process.created_at + timedelta(seconds=1)
        store.add([replace(a_record(), created_at=at, ready_at=at).at_rank() for _ in range(LOOKS_AT + 1)])
    client = browser()
    log_in(client)

    updated = client.get(f"/jobs?tag=rare&until={milliseconds(process.created_at)}", headers={"X-Part": "content"}).text
    page = client.get("/jobs?tag=rare").text

    assert f'href="/jobs/{process.id}' in updated
    assert "Look further" in page
    assert "no job has tag" not in page.lower()
