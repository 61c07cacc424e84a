"""Every page on both stores, to be shown whole and as the part that is updated."""

from __future__ import annotations

import html
import re
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from bson import ObjectId
from starlette.testclient import TestClient

from taskqueue import Scheduler, workflows
from taskqueue.model.record import Cause, Failure, Holder, Options
from taskqueue.model.timestamps import whole
from taskqueue.scheduler.connection import StoreOpener
from taskqueue.scheduler.event import EventSnapshot
from taskqueue.store import ClaimRequest, Event, Lease
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.pages.job import folded
from tests.cli import records
from tests.store.records import MINUTE, SECOND, postponed
from tests.store.test_work_reports import ran
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_each_page_is_shown_whole_and_in_part(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(jobs.Invoice, {"customer": 7})
    chain = workflows.chain(scheduler, jobs.Mail, jobs.Mail, tags=["news"])
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    scheduler.pause("mail", "moves", by="ana")
    listed = ("/jobs?order=rank&status=waiting", "/jobs?tag=news", f"/jobs?status=failed&after={failed.id}")
    named = (f"/jobs/{failed.id}", f"/jobs/{chain.id}", "/schedules/nightly", "/jobs/matching?action=again")
    works = [
        f"/classes/{failed.job}",
        "/queues/mail",
        "/queues/mail?over=1h",
        "/queues/mail?over=never",
        "/classes/a/b",
    ]
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        for path in (
            "/",
            "/jobs",
            "/queues",
            "/schedules",
            "/nodes",
            "/failures",
            "/audit",
            "/classes",
            "/workflows",
            f"/workflows/{chain.id}",
            *listed,
            *named,
            *works,
        ):
            whole = browser.get(path)
            assert (whole.status_code, "</html>" in whole.text) == (200, True), path
            part = browser.get(path, headers={"x-part": "content"})
            assert part.status_code == 200, path
        assert "KeyError" in browser.get("/failures?since=1h").text
        assert "paused by ana" in browser.get("/queues").text


def test_a_class_and_a_queue_show_hostile_text_as_text_and_mask_secrets(scheduler: Scheduler) -> None:
    hostile = "<script>alert(1)</script>/&?"
    meta = {"tenant": "<b>acme</b>", "api_token": "s3cret"}
    for _ in range(2):
        scheduler.run_job(jobs.Invoice, {"customer": 7}, queue=hostile, tags=["<i>"], meta=meta)
    scheduler.add_job(jobs.Mail, {"token": "s3cret"}, queue=hostile, limits="1 by=token")
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        [link] = re.findall(r'<th scope="row"><a class="row" href="(/queues/[^"]*)"', browser.get("/queues").text)
        queue, of_class = browser.get(html.unescape(link)).text, browser.get(f"/classes/{jobs.__name__}:Invoice").text
        [tenant] = re.findall(r'<a href="([^"]*)">tenant: ', of_class)
        found = browser.get(html.unescape(tenant)).text

    for page in (queue, of_class):
        assert "<script>alert" not in page
        assert "<b>acme" not in page
        assert "<i>" not in page
        assert "s3cret" not in page
        assert "api_token" not in page
        assert "tenant: &lt;b&gt;acme&lt;/b&gt;" in page
        assert "KeyError" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;/&amp;?</h1>" in queue
    assert len(re.findall(r'<tr id="job-', found)) == 2


def test_a_queue_can_be_paused_on_its_page_by_whoever_may(browser: MakeBrowser, scheduler: Scheduler) -> None:
    scheduler.run_job(jobs.Mail)
    mia, rita = browser(), browser()
    log_in(mia, "mia")
    log_in(rita, "rita")

    assert "Pause queue mail?" in mia.get("/queues/mail").text
    assert "Pause queue mail?" not in rita.get("/queues/mail").text
    assert "Pause…" not in mia.get("/queues/other").text


def test_canceled_jobs_do_not_count_as_ones_that_did_not_fail(scheduler: Scheduler) -> None:
    scheduler.run_job(jobs.Invoice, {"customer": 7})
    scheduler.add_job(jobs.Mail).cancel()

    reader = scheduler.overview_reader()
    assert reader.day(reader.read()).figures[1].value == "100 %"


def test_the_overview_compares_the_hour_with_yesterday_and_draws_what_fails(scheduler: Scheduler) -> None:
    for _ in range(3):
        scheduler.run_job(jobs.Mail)
    scheduler.run_job(jobs.Invoice, {"customer": 7})
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page = browser.get("/").text

    figures = page.partition('aria-label="The last hour and yesterday"')[2].partition("</section>")[0]
    shown = re.findall(r'href="([^"]+)"><b>([^<]+)</b> ([^<]+)</a><span class="soft small">([^<]+)<', figures)
    assert shown[:2] == [
        ("/jobs?status=done", "3", "done in the last hour", "yesterday none"),
        ("/failures", "25 %", "of the attempts failed", "yesterday –"),
    ]
    assert [link for link, *_ in shown] == ["/jobs?status=done", "/failures", "/queues", "/jobs?status=pending"]
    assert (
        len(re.findall(r'aria-label="Last [^"]+, share of failed attempts by (?:hour|minute): at most 25 %"', page))
        == 2
    )


def test_the_overview_has_the_next_day_and_folds_quiet_queues(scheduler: Scheduler, url: str) -> None:
    for queue in ("zebra", "apple"):
        scheduler.add_job(jobs.Mail, queue=queue)
    for number, at in enumerate(("+20 minutes", "+3 hours", "+3 hours", "+30 hours")):
        scheduler.add_job(jobs.Mail, queue=f"later-{number}", at=at)
    scheduler.add_job(jobs.Mail, queue="later-4", depends_on=scheduler.find_jobs({"queue": "zebra"})[0])
    for number in range(8):
        scheduler.schedule(f"nightly-{number}", jobs.Mail, every=3600 + number)
    scheduler.schedule("monthly", jobs.Mail, every=30 * 86400)
    with closing(open_store(url)) as store:
        next_year = store.now() + timedelta(days=400)
        store.add([postponed(next_year, queue=queue) for queue in ("quiet-2", "quiet-1")])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page, later = browser.get("/").text, browser.get("/jobs?status=later").text

    queues = re.findall(r'<tr id="queue-([^"]+)"', page)
    assert queues == ["apple", "later-0", "later-1", "later-2", "later-3", "later-4", "zebra"]
    quiet = page.partition('<details class="fold" id="quiet"><summary>2 quiet queues</summary>')[2]
    assert re.findall(r'href="/queues/([^"]+)"', quiet.partition("</details>")[0]) == ["quiet-1", "quiet-2"]
    upcoming = page.partition('id="next-title"')[2]
    assert "jobs due: 3<" in upcoming
    links = re.findall(r'href="/jobs\?q=status%3A(\w+)">([^<]+)</a>', upcoming)
    assert links == [
        ("scheduled", "6 scheduled"),
        ("retrying", "0 retrying"),
        ("blocked", "1 blocked"),
        ("unloadable", "0 cannot load"),
    ]
    assert re.findall(r'<tr id="schedule-([^"]+)"', upcoming) == [f"nightly-{number}" for number in range(6)]
    assert '<a href="/schedules">all schedules</a>' in upcoming
    numbers = re.findall(r'status%3A(\w+)"[^>]*>[^<]+<span class="count">(\d+)<', later)
    assert numbers == [("waiting", "2"), ("later", "7"), ("scheduled", "6"), ("blocked", "1")]


def test_a_node_shows_what_it_uses_what_failed_and_whether_its_code_is_older_than_a_release(
    scheduler: Scheduler, url: str
) -> None:
    scheduler.mark_release("v42")
    use = {"memory": {"node": 40 << 20, "workers": 90 << 20}, "cpu": {"node": 0.02, "workers": 1.5}, "code_age": 300.0}
    about = {"lease": 30, "failed_in_hour": 1_204, "use": use}
    with closing(open_store(url)) as store:
        now = store.now()
        for name, published in (("old", {"lease": 30}), ("web-1", about)):
            holder, until = Holder(seat=name, incarnation="a1"), now + timedelta(seconds=30)
            store.acquire(Lease(name=f"seat:{name}", holder=holder, since=now, until=until, about=published), now)
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        sections = browser.get("/nodes").text.split("<section")[1:]
    old, new = [" ".join(re.sub("<[^>]*>", " ", section).split()) for section in sections]

    assert "failed in the last hour ? memory ? processor ? code since ?" in old
    assert "failed in the last hour 1,204 memory 130 MiB processor 152 % code since 5 min ago before release v42" in new
    assert "memory: node 40 MiB, workers 90 MiB; processor: node 2 %, workers 150 %" in new


def test_a_progress_that_is_long_ago_promises_no_end(scheduler: Scheduler, url: str) -> None:
    began = records.NOW - timedelta(minutes=4)
    running = replace(
        records.in_every_status()["running"],
        started_at=began,
        progress=0.3,
        progress_at=began + timedelta(milliseconds=20),
    )
    with closing(open_store(url)) as store:
        store.add([running])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page = browser.get(f"/jobs/{running.id}").text

    assert "page 9" in page
    assert "<span>0.3 %</span>" in page
    assert 'aria-label="0.3 %"' in page
    assert " left</span>" not in page
    assert re.search(r">reported <time[^>]*>\d+ \w+ ago</time></span>", page)


def test_reports_of_progress_in_a_row_are_one_event_of_a_page() -> None:
    names = ["waiting", "processing", "progress", "progress", "retried", "progress"]
    events = [EventSnapshot(Event(id=str(number), name=name, at=records.NOW)) for number, name in enumerate(names)]

    assert [(event.id, number) for event, number in folded(events)] == [
        ("0", 1), ("1", 1), ("3", 2), ("4", 1), ("5", 1),
    ]  # fmt: skip


def test_a_job_shows_what_happened_to_it(scheduler: Scheduler, url: str) -> None:
    failed = scheduler.run_job(jobs.Invoice)
    old = replace(records.in_every_status()["done"], created_at=records.NOW - timedelta(days=3))
    with closing(open_store(url)) as store:
        store.add([old])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        section = browser.get(f"/jobs/{failed.id}").text.partition('aria-label="Events"')[2].partition("</section>")[0]
        events = browser.get(f"/api/v1/jobs/{failed.id}/events").json()["events"]

    assert re.findall(r'class="status (\w+)"', section) == ["running", "failed"]
    assert [one["event"] for one in events] == ["processing", "failed"]
    assert {one["id"] for one in events} == {str(failed.id)}


WAYS_TO_A_JOB = [("", ""), ("/api/v1", ""), ("/api/v1", "/why")]


def test_an_error_that_reads_like_a_limit_is_shown_whole(scheduler: Scheduler, url: str) -> None:
    message = "the server refused by=token 5 of 7 requests"
    failed = scheduler.run_job(jobs.Invoice)
    error = Failure(type="Refused", message=message)
    with closing(open_store(url)) as store:
        store.add([told := replace(failed.snapshot, id=ObjectId(), error=error, attempts=())])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        said = browser.get(f"/api/v1/jobs/{told.id}/why").json()["why"]

    assert message in said


def test_limits_name_who_holds_them_and_mask_secret_values(scheduler: Scheduler, url: str) -> None:
    limits = ["1 by=token", "5/60 name=api"]
    first, second = scheduler.add_jobs([(jobs.Mail, {"token": "s3cret"}, {"limits": limits})] * 2)
    with closing(open_store(url)) as store:
        now = store.now()
        holder = Holder(seat="web-1", incarnation="a1")
        store.claim(holder, ClaimRequest(pooled=1), now, now + timedelta(minutes=1))
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page = browser.get("/queues").text
        [full, rate] = browser.get("/api/v1/limits").json()["limits"]
        fact = browser.get(f"/jobs/{first.id}").text
        of_job = [browser.get(f"{path}/jobs/{second.id}{part}").text for path, part in WAYS_TO_A_JOB]

    assert (full["used"], full["waiting"], full["jobs"][0]["id"]) == (1, 1, str(first.id))
    assert (full["key"], rate["key"]) == ("limit:tests.web.jobs:Mail by=token •••", "rate/60:name=api")
    assert "by=token •••</th>" in page
    assert f'href="/jobs/{first.id}"' in page
    assert "by=token •••" in fact
    assert "s3cret" not in page + fact
    for text in of_job:
        assert "by=token •••" in text
        assert "s3cret" not in text


def test_the_times_of_sentences_are_times_in_whatever_zone_the_server_is(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = scheduler.add_job(jobs.Mail)
    scheduler.pause("default", "moving \u202ehouse")
    [pause] = scheduler.paused()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    client = ("127.0.0.1", 5000)
    try:
        with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
            [says] = re.findall(r'<div class="says">(Queue .*?)</div>', browser.get("/").text)
            why = browser.get(f"/jobs/{job.id}").text
            assert "JST" in scheduler.why(job.id)
    finally:
        monkeypatch.undo()
        time.tzset()

    paused_at, added_at = (
        f'<time class="nowrap" data-kind="clock" datetime="{at:%Y-%m-%dT%H}:' for at in (pause.since, job.created_at)
    )
    assert says.startswith(f"Queue default is paused since {paused_at}")
    assert "moving \\u202ehouse" in says
    assert f"It has been waiting since {added_at}" in why
    assert "JST" not in says + why


def test_a_list_of_limits_that_is_cut_says_so(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(jobs.Mail, {"to": number}, {"limits": "1 by=to"}) for number in range(99)])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        whole = browser.get("/api/v1/limits").json()
        page = browser.get("/queues").text
        scheduler.add_jobs([(jobs.Mail, {"to": number}, {"limits": "1 by=to"}) for number in (99, 100)])
        cut = browser.get("/api/v1/limits").json()
        page_of_cut = browser.get("/queues").text

    assert (len(whole["limits"]), whole["are_all"]) == (99, True)
    assert (len(cut["limits"]), cut["are_all"]) == (100, False)
    assert '"soft">74 more limits: ' in page
    assert '"soft">at least 75 more limits: ' in page_of_cut


def test_a_class_that_cannot_be_loaded_leads_to_its_jobs(scheduler: Scheduler, url: str) -> None:
    later = records.in_every_status()["scheduled"]
    lost = replace(later, id=ObjectId(), job="gone.module:Lost", cause=Cause.UNLOADABLE)
    with closing(open_store(url)) as store:
        store.add([later, lost])
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        no_node, need = re.findall(r"<li class=\"error\".*?</li>", browser.get("/").text, re.DOTALL)
        [link] = re.findall(r'<a href="([^"]*)"', need)
        found = browser.get(html.unescape(link)).text

    assert "No node is running on this store" in no_node
    assert "Class that cannot be loaded: gone.module:Lost" in need
    assert "deploy its module to a node" in need
    assert re.findall(r'<tr id="job-(\w+)"', found) == [str(lost.id)]


def test_a_list_says_when_a_scheduled_job_is_due(scheduler: Scheduler) -> None:
    scheduler.add_job(jobs.Mail, at="+3h")
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page = browser.get("/jobs?status=scheduled").text

    assert re.search(r">scheduled, in (3 h|179 min|180 min)<", page)


@pytest.mark.parametrize("ahead", [timedelta(hours=-5), timedelta(hours=5)])
def test_a_list_says_how_late_a_scheduled_job_is_by_the_clock_of_the_store(url: str, ahead: timedelta) -> None:
    now = whole(datetime.now(timezone.utc)) + ahead
    with Scheduler(StoreOpener(open=lambda: open_store(url, lambda: now))) as scheduler:
        scheduler._connections.store.add([postponed(now - timedelta(hours=3)), postponed(now + timedelta(hours=9))])
        client = ("127.0.0.1", 5000)
        with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
            page = browser.get("/jobs").text

    assert re.findall(r'<td class="spare cut" title="([^"]*)', page) == ["added, in 9 h", "added, due 3 h ago"]


def test_what_is_changed_over_http_is_seen_by_the_next_page(scheduler: Scheduler) -> None:
    scheduler.add_job(jobs.Mail)
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        token = browser.get("/api/v1/session").json()["csrf_token"]
        assert "paused by" not in browser.get("/queues").text
        browser.post("/api/v1/queues/pause", json={"queue": "mail"}, headers={"x-csrf-token": token})
        page, [queue] = browser.get("/queues").text, browser.get("/api/v1/queues").json()["queues"]

    assert "paused by local" in page
    assert (queue["name"], queue["paused"]["by"], queue["statuses"]["WAITING"]) == ("mail", "local", 1)


def test_a_class_shows_how_it_keeps_its_promise(scheduler: Scheduler, url: str) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        for late in range(12):
            due_at, options = now - 4 * MINUTE, Options(begin_within=30.0)
            ran(store, now - late * SECOND, job="shop:Mail", options=options, ready_at=due_at)
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        page, overview = browser.get("/classes/shop:Mail").text, browser.get("/").text

    assert "Its promise is not kept: 12 of 12 jobs started late in the last hour." in page
    card = re.sub(r"<[^>]+>|\s+", " ", page.partition('id="promise-title"')[2].partition("</section>")[0])
    words = " ".join(card.split())
    assert words.startswith(">Promise 99 % start within 30 s, since ")
    assert "started in time 0 % of 12 jobs error budget left none late 12 0 may be late in the last hour 12 of" in words
    assert re.search(r'breaks its promise: .*\n*.*href="/classes/shop%3AMail"', overview)


def test_a_job_says_the_short_answer_first_and_leads_to_the_jobs_that_it_names(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    holder, waiting = scheduler.add_jobs([(jobs.Mail, None, {"limits": "1 name=smtp"}) for _ in range(2)])
    with closing(open_store(url)) as store:
        now, seat = store.now(), Holder(seat="web-1", incarnation="a1")
        lease = Lease(name="seat:web-1", holder=seat, since=now, until=now + timedelta(hours=1), about={"host": "web"})
        store.acquire(lease, now)
        store.claim(seat, ClaimRequest(pooled=1), now, now + timedelta(minutes=1))
    client = browser()
    log_in(client)

    def why(job: str) -> str:
        return client.get(f"/jobs/{job}").text.partition('aria-label="Why"')[2].partition("</section>")[0]

    assert 'class="lead sentence">a limit that it needs is used up, held by job <a' in why(str(waiting.id))
    assert f'href="/jobs/{holder.id}">{holder.id}</a>' in why(str(waiting.id))
    first, *_, last, _ = re.findall(r"<p[^>]*>(.*?)</p>", why(str(holder.id)))
    assert first == "a node has claimed it, and it has not started."
    assert last.startswith("Node web-1 has it, with claim 1; ")
    assert client.get(f"/jobs/{waiting.id}").text.count("<dt>limits</dt>") == 1
    assert "recover" not in why(str(scheduler.run_job(jobs.Invoice).id))  # there is a button
    stack = client.get(f"/jobs/{holder.id}/stack").text
    assert "<h1>Stack of Mail</h1>" in stack
    assert f'action="/jobs/{holder.id}/cancel"' in stack
