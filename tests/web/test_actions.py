"""Actions on all jobs that match: they concern the jobs that were counted, whoever else acts meanwhile."""

from __future__ import annotations

import html
import json
import re
import threading
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.record import Cause, Holder, Status
from taskqueue.model.schedules.schedule import definition
from taskqueue.model.timestamps import MILLISECOND, whole
from taskqueue.scheduler.connection import StoreOpener
from taskqueue.scheduler.search import LOOKS_AT
from taskqueue.store import ClaimRequest
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.actions import MOST_AT_ONCE
from taskqueue.web.overviews import Overviews
from taskqueue.web.users import Role, User
from taskqueue.web.viewers import Viewer
from tests.nodes import LIMIT
from tests.store.records import BROKEN, a_record
from tests.web import jobs
from tests.web.conftest import HOST, PASSWORD, MakeBrowser, csrf_of, log_in

both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


def fields(page: str) -> dict[str, str]:
    """Return the hidden fields of the form of a page that acts on all jobs that match."""
    form = page.rpartition('/jobs/matching">')[2].partition("</form>")[0]
    return {
        name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    }


def asked(browser: TestClient, path: str) -> dict[str, str]:
    """Return the fields of the form that asks for a yes."""
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return fields(answer.text)


def words_of(page: str) -> str:
    """Return the text of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


@both
def test_of_two_who_run_all_again_the_second_copies_nothing(scheduler: Scheduler, browser: MakeBrowser) -> None:
    for _ in range(3):
        scheduler.run_job(jobs.Invoice)
    first, second = browser(), browser()
    for one in (first, second):
        log_in(one)
    forms = [asked(one, "/jobs/matching?action=again&status=failed") for one in (first, second)]

    done = first.post("/jobs/matching", data=forms[0])
    scheduler.run_pending()  # the copies fail, too
    late = second.post("/jobs/matching", data=forms[1])

    assert done.headers["location"].endswith("done=matching&of=3")
    assert late.headers["location"].endswith("done=matching&of=0")
    assert "somebody else did it" in second.get(late.headers["location"]).text
    assert scheduler.stats()["statuses"]["FAILED"] == 6


def test_the_question_looks_at_the_last_jobs_and_on_request_at_all(scheduler: Scheduler, browser: MakeBrowser) -> None:
    now = datetime.now(timezone.utc)
    failed = replace(a_record(job="shop:Mail"), status=Status.FAILED, ready_at=None, ended_at=whole(now), error=BROKEN)
    before = replace(failed, id=a_record().id, job="shop:Invoice", ended_at=whole(now - timedelta(hours=1)))
    mails = [replace(failed, id=a_record().id) for _ in range(LOOKS_AT + 1)]
    scheduler._connections.store.add([before, *mails])
    client = browser()
    log_in(client)
    question = "/jobs/matching?action=again&status=failed&class=shop:"

    assert f"at least {LOOKS_AT + 1:,} jobs" in client.get(f"{question}Mail").text
    bounded = client.get(f"{question}Invoice").text
    assert f"No ended job matches among the jobs that ended since {now:%H:%M:%S}." in words_of(bounded)
    [address] = re.findall(r'href="([^"]*)">Look at all<', bounded)
    assert "<b>1 job</b>" in client.get(html.unescape(address)).text


def test_the_question_says_from_when_on_jobs_of_any_status_were_looked_at(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    now = whole(datetime.now(timezone.utc))
    failed = replace(a_record(job="shop:Mail"), status=Status.FAILED, ready_at=None, ended_at=now, error=BROKEN)
    canceled = replace(failed, status=Status.CANCELED, error=None, ended_at=now - timedelta(hours=1))
    few = [replace(failed, id=a_record().id, ended_at=now - timedelta(hours=2)) for _ in range(3)]
    many = [replace(kind, id=a_record().id) for kind in (failed, canceled) for _ in range(LOOKS_AT + 1)]
    scheduler._connections.store.add([*few, *many])
    client = browser()
    log_in(client)

    page = words_of(client.get("/jobs/matching?action=again&class=shop:Mail").text)

    assert f"at least {LOOKS_AT + 1:,} jobs. Only jobs that ended since {now:%H:%M:%S} were looked at." in page


@pytest.mark.parametrize(
    ("action", "does", "kind"), [("now", "Start {} now", "postponed"), ("give-up", "Give up {}", "retrying")]
)
def test_an_action_on_up_to_a_thousand_jobs_says_which(
    scheduler: Scheduler, browser: MakeBrowser, action: str, does: str, kind: str
) -> None:
    now = whole(datetime.now(timezone.utc))
    retried = replace(a_record(queue="mail"), status=Status.POSTPONED, cause=Cause.RETRY, error=BROKEN, ready_at=now)
    ages = [timedelta(minutes=minute) for minute in range(MOST_AT_ONCE + 2)]
    added = [replace(retried, id=a_record().id, created_at=now - age) for age in ages]
    scheduler._connections.store.add(added)
    client = browser()
    log_in(client)

    page = client.get(f"/jobs/matching?action={action}&queue=mail").text
    assert page.count(does.format(f"{MOST_AT_ONCE:,} jobs")) == 2  # the title and the button
    assert f"It is done to the {MOST_AT_ONCE:,} that were added first" in words_of(page)
    assert (str(added[-1].id) in page, str(added[0].id) in page) == (True, False)

    others = [replace(retried, id=a_record().id, queue="other", created_at=now) for _ in range(LOOKS_AT)]
    scheduler._connections.store.add(others)
    page = client.get(f"/jobs/matching?action={action}&queue=mail").text
    assert page.count(does.format(f"at most {MOST_AT_ONCE:,} {kind} jobs")) == 2
    assert f"at least 1 job. Only jobs that were added since {now:%H:%M:%S} were looked at." in words_of(page)
    assert f"It is done to at most {MOST_AT_ONCE:,} that were added first; then do it again." in words_of(page)
    assert "The jobs that were added last are shown." in words_of(page)


@both
def test_jobs_that_come_after_the_count_are_not_canceled(scheduler: Scheduler, browser: MakeBrowser) -> None:
    counted = scheduler.add_job(jobs.Mail)
    client = browser()
    log_in(client)
    form = asked(client, "/jobs/matching?action=cancel")
    later = scheduler.add_job(jobs.Mail)

    assert client.post("/jobs/matching", data=form).headers["location"].endswith("of=1")
    assert (counted.refresh().status.name, later.refresh().status.name) == ("CANCELED", "WAITING")


@both
@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_count_is_of_the_time_of_the_store(url: str, people: tuple[Path, dict[str, str]], ahead: timedelta) -> None:
    now = whole(datetime.now(timezone.utc)) + ahead
    with Scheduler(StoreOpener(open=lambda: open_store(url, lambda: now))) as scheduler:
        counted = scheduler.add_job(jobs.Mail)
        now += MILLISECOND
        with TestClient(app(scheduler, users=people[0], hosts=[HOST]), base_url=f"https://{HOST}") as client:
            csrf = client.post("/login", data={"name": "olaf", "password": PASSWORD}).text
            headers = {"x-csrf-token": csrf.partition('<meta name="csrf-token" content="')[2].partition('"')[0]}
            body = {"action": "cancel", "query": {}}
            at = client.post("/api/v1/jobs/matching", json=body, headers=headers).json()["at"]
            later = scheduler.add_job(jobs.Mail)  # in the same millisecond
            done = client.post("/api/v1/jobs/matching", json={**body, "at": at, "confirm": True}, headers=headers)

        assert done.json()["done"] == 1
        assert (counted.refresh().status.name, later.refresh().status.name) == ("CANCELED", "WAITING")


def test_a_count_over_http_says_when_it_was_made(scheduler: Scheduler, browser: MakeBrowser) -> None:
    scheduler.run_job(jobs.Invoice)
    client = browser()
    headers = {"x-csrf-token": log_in(client)}
    body = {"action": "run-again", "query": {}}
    counted = client.post("/api/v1/jobs/matching", json=body, headers=headers).json()
    again = {**body, "confirm": True, "at": counted["at"]}

    answers = []
    for _ in range(2):
        answers.append(client.post("/api/v1/jobs/matching", json=again, headers=headers).json()["done"])
        scheduler.run_pending()

    assert (counted["found"], answers) == (1, [1, 0])
    wrong = client.post("/api/v1/jobs/matching", json={**again, "at": "soonish"}, headers=headers)
    assert (wrong.status_code, "soonish" in wrong.json()["detail"]) == (422, True)


def test_an_unknown_action_on_all_that_match_cancels_nothing(scheduler: Scheduler) -> None:
    waiting = scheduler.add_job(jobs.Mail)
    viewer = Viewer(user=User(name="olaf", role=Role.OPERATOR), address="127.0.0.1", proof="local")
    actions = app(scheduler, local=True).state.dashboard.actions(viewer)

    with pytest.raises(ValueError, match="action='requeue': use cancel, give-up, start-now or run-again"):
        actions.act_on_matching("requeue", {}, whole(datetime.now(timezone.utc)) + timedelta(hours=1))

    assert waiting.refresh().status is Status.WAITING


def test_a_form_whose_count_is_no_time_is_refused(scheduler: Scheduler, browser: MakeBrowser) -> None:
    client = browser()
    csrf = log_in(client)
    for at in ("", "yesterday", "9" * 40):
        answer = client.post("/jobs/matching", data={"csrf": csrf, "action": "cancel", "at": at})
        assert answer.status_code == 422, at


def test_who_acts_does_not_wait_for_one_who_reads_the_store(url: str) -> None:
    begun, gate = threading.Event(), threading.Event()

    class SlowReader(OverviewReader):
        def read(self) -> Overview:
            begun.set()
            assert gate.wait(LIMIT)
            return super().read()

    class Slow(Scheduler):
        def overview_reader(self) -> OverviewReader:
            return SlowReader(self._connections.store)

    with Slow(url) as slow:
        overviews = Overviews(slow)
        reading, acting = threading.Thread(target=overviews.numbers), threading.Thread(target=overviews.now)
        reading.start()
        try:
            assert begun.wait(LIMIT)
            acting.start()
            acting.join(LIMIT / 4)
            assert not acting.is_alive()
        finally:
            gate.set()
            reading.join()
            acting.join()


def test_retried_jobs_are_tried_now_or_given_up(scheduler: Scheduler, browser: MakeBrowser) -> None:
    several = [scheduler.run_job(jobs.Invoice, retry=1, retry_interval="1h") for _ in range(3)]
    client = browser()
    log_in(client)
    page = client.get(f"/jobs/{several[0].id}").text
    form = {"reason": "no such shop", "csrf": page.partition('name="csrf" value="')[2].partition('"')[0]}

    assert {"Retry now", "Give up the job"} <= set(re.findall(r"<button[^>]*>([^<]+)<", page))
    assert client.post(f"/jobs/{several[0].id}/give-up", data=form).headers["location"].endswith("?done=given-up")
    assert client.post(f"/jobs/{several[1].id}/now", data=form).headers["location"].endswith("?done=started")
    assert [process.refresh().status.name for process in several] == ["FAILED", "WAITING", "POSTPONED"]
    assert several[0].error is not None
    assert several[0].error.message.endswith(" (given up by olaf: no such shop)")
    assert "Retry now" not in client.get(f"/jobs/{several[0].id}").text
    assert "Give up all…" not in client.get("/jobs?status=scheduled").text
    assert "Give up all…" in client.get("/jobs?status=retrying").text
    form = asked(client, "/jobs/matching?action=give-up&status=retrying")
    assert client.post("/jobs/matching", data=form).headers["location"].endswith("done=matching&of=1")
    assert (several[1].refresh().status.name, several[2].refresh().status.name) == ("WAITING", "FAILED")


def test_postponed_jobs_that_match_are_started_now(scheduler: Scheduler, browser: MakeBrowser) -> None:
    first = scheduler.add_job(jobs.Mail, queue="mail", at="+1d")
    behind = scheduler.add_job(jobs.Mail, queue="mail", depends_on=[first])
    other = scheduler.add_job(jobs.Mail, queue="other", at="+1d")
    one = browser()
    log_in(one)

    assert "Start all now…" in one.get("/jobs?status=scheduled").text
    assert "Start all now…" not in one.get("/jobs?status=failed").text
    form = asked(one, "/jobs/matching?action=now&queue=mail&status=later")
    done = one.post("/jobs/matching", data=form)

    assert done.headers["location"].endswith("done=matching&of=1")
    assert [process.refresh().status.name for process in (first, behind, other)] == [
        "WAITING",
        "POSTPONED",
        "POSTPONED",
    ]
    assert scheduler.audit(1)[0].action == "start now"


@pytest.mark.parametrize(
    ("limit", "number", "follows"),
    [
        ("3 name=api", 1, "2 more jobs than that are running: no further job starts until enough have ended."),
        ("3 name=api", 4, "It then has room for 1 of 2 waiting jobs."),
        ("3/60 name=api", 2, "1 more job than that started in the last 60 s: no further job starts until fewer have."),
    ],
)
def test_the_preview_of_a_limit_says_what_follows_for_jobs_that_run_and_wait(
    scheduler: Scheduler, browser: MakeBrowser, url: str, limit: str, number: int, follows: str
) -> None:
    scheduler.add_jobs((jobs.Mail, None, {"limits": limit}) for _ in range(5))
    with closing(open_store(url)) as store:
        now = store.now()
        store.claim(Holder(seat="web-1", incarnation="a1"), ClaimRequest(pooled=3), now, now + timedelta(minutes=1))
    client = browser()
    log_in(client)

    of = "rate/60:name=api" if "/" in limit else "limit:name=api"
    assert follows in client.get("/limits/change", params={"of": of, "count": number}).text


def test_a_limit_that_no_job_has_is_named_with_the_way_to_change_it(browser: MakeBrowser) -> None:
    client = browser()
    log_in(client)

    answer = client.get("/limits/change", params={"of": "limit:name=aip"})

    assert answer.status_code == 404
    assert "limit &#39;aip&#39;, and it was not changed: `taskqueue limit` changes it" in answer.text


def test_a_change_of_a_limit_has_no_undo_that_would_change_others_of_the_name(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    scheduler.set_limit("api", "100/60")
    client = browser()
    csrf = log_in(client)

    answer = client.post("/limits/change", data={"of": "limit:name=api", "count": "3", "csrf": csrf})

    assert answer.headers["location"].endswith("/queues?done=limit&of=limit%3Aname%3Dapi")
    assert "Undo" not in client.get(answer.headers["location"]).text


def test_the_page_of_a_limit_names_others_that_would_be_restored_with_it(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    scheduler.set_limit("api", 3)
    scheduler.set_limit("api", "100/60")
    client = browser()
    log_in(client)

    page = client.get("/limits/change", params={"of": "limit:name=api"}).text

    assert "This also restores rate/60:name=api." in page


@pytest.mark.parametrize("number", ["9" * 5000, "0", "many"])
def test_a_limit_of_no_number_is_refused_and_changes_nothing(
    scheduler: Scheduler, browser: MakeBrowser, number: str
) -> None:
    scheduler.set_limit("api", 3)
    client = browser()
    csrf = log_in(client)

    answer = client.post("/limits/change", data={"of": "limit:name=api", "count": number, "csrf": csrf})

    assert 400 <= answer.status_code < 500
    assert [control.count for control in scheduler.controls()] == [3]


@pytest.mark.parametrize("was", ["1 and more", "9" * 20])
def test_an_address_that_says_anything_as_the_last_limit_offers_no_undo(browser: MakeBrowser, was: str) -> None:
    client = browser()
    log_in(client)

    page = client.get("/queues", params={"done": "limit", "of": "limit:name=api", "was": was}).text

    assert "the limit is changed" in page
    assert "Undo" not in page


def test_a_limit_with_few_waiting_jobs_is_shown_beside_one_with_many_keys(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    for number in range(220):
        scheduler.add_job(jobs.Mail, {"customer": number % 110}, limits="1 by=customer")
    scheduler.add_job(jobs.Mail, limits="3 name=quiet")
    client = browser()
    log_in(client)

    page = client.get("/limits/change", params={"of": "limit:name=quiet", "count": "2"}).text

    assert "It then has room for 1 of 1 waiting job." in page


def change(browser: TestClient, id: object, **given: str) -> str:
    """Return the page that answers the form for a job, which has these values and is previewed."""
    page = browser.get(f"/jobs/{id}/change").text
    shown = dict(re.findall(r'name="(csrf|seen|queue|priority)" value="([^"]*)"', page))
    return browser.post(f"/jobs/{id}/change", data={**shown, **given}).text


def confirmed(browser: TestClient, id: object, page: str) -> str:
    """Return the page, or the address, that answers the form which confirms a preview."""
    form = page.rpartition("<form ")[2]
    values = {name: html.unescape(text) for name, text in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
    answer = browser.post(f"/jobs/{id}/change", data=values)
    return answer.headers.get("location", html.unescape(answer.text))


def test_a_change_is_refused_if_the_job_has_started_since_its_preview(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    process = scheduler.add_job(jobs.Mail)
    client = browser()
    log_in(client)
    page = change(client, process.id, priority="3")
    scheduler.run_pending()

    answer = confirmed(client, process.id, page)

    assert f"job {process.id} is DONE: a job can be changed while it is WAITING or POSTPONED. Nothing was changed." in (
        answer
    )
    assert client.get(f"/jobs/{process.id}/change").status_code == 409
    assert process.refresh().priority == 0


def test_a_change_by_somebody_else_since_the_preview_is_not_overwritten(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    process = scheduler.add_job(jobs.Mail, {"to": "ann"}, tags="a")
    client = browser()
    log_in(client)
    page = change(client, process.id, tags="a\r\nb", at="+1 hour")
    scheduler.update_job(process.id, priority=5)

    answer = confirmed(client, process.id, page)
    assert "The job was changed since this page was opened." in answer
    assert (process.refresh().tags, process.priority) == (("a",), 5)

    page = change(client, process.id, tags="a\r\nb", at="+1 hour")
    assert confirmed(client, process.id, page) == f"/jobs/{process.id}?done=changed"
    assert (process.refresh().tags, process.priority, process.status.name) == (("a", "b"), 5, "POSTPONED")


def test_a_preview_shows_a_changed_secret_as_masked(
    scheduler: Scheduler, browser: MakeBrowser, people: tuple[Path, dict[str, str]]
) -> None:
    process = scheduler.add_job(jobs.Mail, {"to": "ann", "password": "hunter2"})
    client = browser(users=people[0], hosts=[HOST], addable=jobs.ADDABLE)
    log_in(client)

    page = change(client, process.id, data='{"to": "ann", "password": "swordfish"}')

    difference = page.partition('aria-label="Difference"')[2].partition("</table>")[0]
    assert re.findall("<td>(.*?)</td>", difference) == ["•••", "•••"]
    assert "swordfish" not in difference
    assert confirmed(client, process.id, page) == f"/jobs/{process.id}?done=changed"
    assert process.refresh().data == {"to": "ann", "password": "swordfish"}


SECRETS = {"to": "ann", "password": "hunter2", "servers": [{"token": "t1"}]}


@pytest.mark.parametrize(
    ("guess", "names"),
    [
        ({"password": "hunter2"}, ["data.password"]),
        ({"password": "swordfish"}, ["data.password"]),
        ({"servers": [{"token": "t1"}]}, ["data.servers.0.token"]),
        ({"servers": [{"token": "t2"}]}, ["data.servers.0.token"]),
        ({"to": "bob"}, ["data.to"]),
    ],
)
def test_a_preview_does_not_say_whether_a_guess_of_a_secret_is_right(
    scheduler: Scheduler, operator: TestClient, guess: dict[str, Any], names: list[str]
) -> None:
    process = scheduler.add_job(jobs.Mail, SECRETS)
    scheduler.schedule("nightly", jobs.Mail, SECRETS, every="1d")
    masked = {"to": "ann", "password": "•••", "servers": [{"token": "•••"}]}
    text = json.dumps({**masked, **guess})

    for page in (change(operator, process.id, data=text), saved(operator, "nightly", data=text)):
        difference = page.partition('aria-label="Difference"')[2].partition("</table>")[0]
        assert re.findall('<th scope="row">(.*?)</th>', difference) == names
        assert "Nothing changes" not in page


def test_a_job_that_was_added_once_refuses_right_and_wrong_guesses_of_a_secret_alike(
    scheduler: Scheduler, operator: TestClient
) -> None:
    process = scheduler.add_job_once(jobs.Mail, SECRETS)

    for guess in ("hunter2", "swordfish"):
        page = change(operator, process.id, data=json.dumps({**SECRETS, "password": guess}))
        assert "was added by add_job_once" in page, guess


def test_a_copy_of_such_a_job_refuses_right_and_wrong_guesses_alike(scheduler: Scheduler, operator: TestClient) -> None:
    process = scheduler.add_job_once(jobs.Mail, SECRETS)
    process.cancel()
    page = operator.get(f"/jobs/{process.id}/edit").text
    csrf = re.findall(r'name="csrf" value="([^"]*)"', page)[0]

    def run_again(password: str) -> str:
        masked = {"to": "ann", "password": password, "servers": [{"token": "•••"}]}
        answer = operator.post(f"/jobs/{process.id}/edit", data={"csrf": csrf, "data": json.dumps(masked)})
        return answer.headers.get("location", answer.text)

    for guess in ("hunter2", "swordfish"):
        assert "was added by add_job_once" in run_again(guess), guess
    assert scheduler.count_jobs() == 1
    assert run_again("•••").endswith("?done=again")


def test_tags_with_spaces_at_their_ends_stay_as_they_are(scheduler: Scheduler, operator: TestClient) -> None:
    process = scheduler.add_job(jobs.Mail, tags=[" first", "last "])

    assert "Nothing changes" in change(operator, process.id, tags=" first\r\nlast ")
    page = change(operator, process.id, tags=" first\r\nlast \r\n new ")
    assert confirmed(operator, process.id, page) == f"/jobs/{process.id}?done=changed"
    assert process.refresh().tags == (" first", "last ", "new")


def test_data_of_a_class_that_may_not_be_added_are_not_changed(scheduler: Scheduler, browser: MakeBrowser) -> None:
    process = scheduler.add_job(jobs.Mail, {"to": "ann"})
    client = browser()
    log_in(client)

    assert "--addable tests.web.jobs:Mail" in client.get(f"/jobs/{process.id}/change").text
    assert "start it with --addable" in change(client, process.id, data='{"to": "bob"}', confirm="yes")
    assert process.refresh().data == {"to": "ann"}


@pytest.fixture
def operator(people: tuple[Path, dict[str, str]], browser: MakeBrowser) -> TestClient:
    """Return the browser of an operator who may define schedules of the test's classes."""
    client = browser(users=people[0], hosts=[HOST], addable=jobs.ADDABLE)
    log_in(client)
    return client


def saved(browser: TestClient, name: str, /, **given: str) -> str:
    """Return the page that answers the form of a schedule, or the address that it leads to."""
    page = browser.get("/define-schedule", params={"name": name}).text
    shown = dict(re.findall(r'name="(csrf|was|seen)" value="([^"]*)"', page))
    answer = browser.post("/define-schedule", data={**shown, **given})
    return answer.headers.get("location", html.unescape(answer.text))


def test_a_changed_schedule_keeps_what_the_form_does_not_show(scheduler: Scheduler, operator: TestClient) -> None:
    kept: Any = {"timeout": "5m", "limits": "2 name=api", "retry": 3, "retry_on": ["ValueError"], "expires": "+1 hour"}
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *", grace=90, max_runs=7, **kept)

    assert saved(operator, "nightly", every="2h", cron="", tz="", confirm="yes").endswith("done=schedule-defined")
    scheduler.schedule("other", jobs.Mail, every="2h", grace=90, max_runs=7, **kept)

    schedule, other = (scheduler.get_schedule(name).snapshot for name in ("nightly", "other"))
    assert definition(schedule) == definition(other)


def test_the_queue_and_priority_of_a_schedule_are_those_of_the_form_or_of_its_class(
    scheduler: Scheduler, operator: TestClient
) -> None:
    def given(**fields: str) -> tuple[Any, Any, str]:
        saved(operator, "nightly", confirm="yes", **fields)
        template = scheduler.get_schedule("nightly").snapshot.template
        return template.given.get("queue"), template.given.get("priority"), template.queue

    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")

    assert given(queue="mail", priority="0", overlap="allow") == (None, None, "mail")
    assert given(queue="other", priority="3") == ("other", 3, "other")
    assert given(overlap="skip") == ("other", 3, "other")
    assert given(queue="", priority="") == (None, None, "mail")


def test_an_operator_of_a_queue_changes_a_schedule_whose_class_has_the_queue(
    scheduler: Scheduler, people: tuple[Path, dict[str, str]], browser: MakeBrowser
) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    client = browser(users=people[0], hosts=[HOST], addable=jobs.ADDABLE)
    log_in(client, "mia")

    assert saved(client, "nightly", overlap="allow", confirm="yes").endswith("done=schedule-defined")


def test_the_preview_of_a_schedule_shows_the_times_that_it_keeps(
    scheduler: Scheduler, operator: TestClient, url: str
) -> None:
    schedule = scheduler.schedule("nightly", jobs.Mail, every="1d", max_runs=3)
    with closing(open_store(url)) as store:
        plan = schedule.snapshot
        assert plan.next_run_at is not None
        later = plan.next_run_at + timedelta(days=300)
        kept = replace(plan, fired=1, next_run_at=later, version=plan.version + 1)
        assert store.replace_schedule(plan, kept, [], store.now())

    def times(**fields: str) -> list[str]:
        page = saved(operator, "nightly", **fields)
        return re.findall("<li>(.*?)</li>", page.partition('<ol class="times">')[2].partition("</ol>")[0])

    same, others = times(overlap="allow"), times(every="2h")
    assert same == [f"{later + timedelta(days=day):%a %Y-%m-%d %H:%M:%S} UTC" for day in range(2)]
    assert (len(others), later.strftime("%Y-%m-%d") in others[0]) == (2, False)
    saved(operator, "nightly", overlap="allow", confirm="yes")
    assert scheduler.get_schedule("nightly").next_run_at == later


def test_the_end_and_the_tags_of_a_schedule_are_those_of_the_form(scheduler: Scheduler, operator: TestClient) -> None:
    noon = (datetime.now(timezone.utc) + timedelta(days=9)).replace(hour=12)
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *", until=noon, max_runs=9, tags=[" b ", "a"])
    before = scheduler.get_schedule("nightly").snapshot
    assert before.until is not None

    saved(operator, "nightly", overlap="allow", confirm="yes")
    same = scheduler.get_schedule("nightly").snapshot
    assert (same.until, same.max_runs, same.template.tags) == (before.until, 9, (" b ", "a"))

    earlier = (before.until - timedelta(days=6)).replace(minute=30, second=0, microsecond=0)
    end = f"{earlier:%Y-%m-%dT%H:%MZ}"
    page = saved(operator, "nightly", until=end, max_runs="8", tags=" b \r\n c\r\n")
    times = re.findall("<li>(.*?)</li>", page.partition('<ol class="times">')[2].partition("</ol>")[0])
    assert times[-1] == f"{earlier:%a %Y-%m-%d} 02:00:00 UTC"
    assert re.findall('<th scope="row">(.*?)</th>', page) == ["until", "jobs in all", "tags"]
    assert len(re.findall("<li>", saved(operator, "nightly", max_runs="2").partition('<ol class="times">')[2])) == 2

    saved(operator, "nightly", until=end, max_runs="8", tags=" b \r\n c\r\n", confirm="yes")
    changed = scheduler.get_schedule("nightly").snapshot
    assert (changed.until, changed.max_runs) == (earlier, 8)
    assert changed.template.tags == (" b ", "c")

    saved(operator, "nightly", until="", max_runs="", tags="", confirm="yes")
    endless = scheduler.get_schedule("nightly").snapshot
    assert (endless.until, endless.max_runs, endless.template.tags) == (None, None, ())


def test_the_preview_shows_the_tags_of_a_schedule_as_they_are_stored(
    scheduler: Scheduler, operator: TestClient
) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *", tags=["a"])

    changed = saved(operator, "nightly", tags="  b \r\n\r\n c\r\n")
    unchanged = saved(operator, "nightly", overlap="allow", tags=" a\r\n\r\n")

    assert re.findall('<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', changed) == [("tags", "a", "b, c")]
    assert re.findall('<th scope="row">(.*?)</th>', unchanged) == ["overlap"]


def test_empty_lines_do_not_turn_the_tags_of_a_class_into_those_of_its_schedule(
    scheduler: Scheduler, operator: TestClient
) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")

    saved(operator, "nightly", tags="\r\n \r\n", overlap="allow", confirm="yes")

    assert "tags" not in scheduler.get_schedule("nightly").snapshot.template.given


def test_a_relative_end_of_a_schedule_counts_from_its_preview(scheduler: Scheduler, operator: TestClient) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    page = saved(operator, "nightly", until="+9 days", tags="")
    shown = re.findall('type="hidden" name="until" value="([0-9 :.-]+ UTC)"', page)

    saved(operator, "nightly", until=shown[0], confirm="yes")
    until = scheduler.get_schedule("nightly").snapshot.until
    assert until is not None
    assert f"{until.replace(tzinfo=None).isoformat(' ')} UTC" == shown[0]


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("max_runs", "some", "max_runs='some': pass a whole number"),
        ("max_runs", "0", "max_runs=0: pass a whole number from 1"),
        ("until", "soon", "'soon' is not a time: pass"),
        ("until", "1990-01-01T00:00Z", "is before its first time"),
        ("tags", "x" * 600, "tags="),
    ],
)
def test_values_that_no_schedule_can_have_are_refused_in_its_form(
    scheduler: Scheduler, operator: TestClient, field: str, text: str, says: str
) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")

    page = saved(operator, "nightly", confirm="yes", **{field: text})

    assert says in page.partition('id="problem"')[2].partition("</p>")[0]


def test_a_schedule_that_somebody_has_changed_is_not_overwritten(scheduler: Scheduler, operator: TestClient) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    page = operator.get("/define-schedule", params={"name": "nightly"}).text
    shown = dict(re.findall(r'name="(csrf|was|seen)" value="([^"]*)"', page))
    scheduler.schedule("nightly", jobs.Mail, cron="0 5 * * *")

    answer = operator.post("/define-schedule", data={**shown, "cron": "0 3 * * *", "confirm": "yes"}).text

    assert "The schedule was changed since this page was opened" in answer
    assert str(scheduler.get_schedule("nightly").snapshot.trigger) == "cron 0 5 * * * in UTC"


def test_a_new_schedule_does_not_take_a_name_that_is_taken(scheduler: Scheduler, operator: TestClient) -> None:
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    given = {"name": "nightly", "job": "tests.web.jobs:Mail", "every": "1h", "confirm": "yes"}

    assert "there is a schedule nightly already" in saved(operator, "", **given)
    assert str(scheduler.get_schedule("nightly").snapshot.trigger) == "cron 0 2 * * * in UTC"


def test_a_schedule_that_code_declares_says_so_wherever_it_is_changed(
    scheduler: Scheduler, operator: TestClient
) -> None:
    scheduler.schedules({"nightly": {"job": jobs.Mail, "cron": "0 2 * * *"}}, application="shop")

    assert "in the code of application shop" in operator.get("/schedules/nightly").text
    assert "its next deployment brings it back" in operator.get("/schedules/nightly").text
    assert "holds until its next deployment" in operator.get("/define-schedule", params={"name": "nightly"}).text
    saved(operator, "nightly", cron="0 3 * * *", confirm="yes")
    assert scheduler.get_schedule("nightly").snapshot.application == "shop"


def test_a_schedule_is_defined_and_removed_over_http(scheduler: Scheduler, operator: TestClient) -> None:
    headers = {"x-csrf-token": csrf_of(operator)}
    body = {"job": "tests.web.jobs:Mail", "cron": "0 2 * * *", "tz": "Europe/Berlin", "overlap": "queue_one"}

    shape = operator.put("/api/v1/schedules/nightly", json=body, headers=headers).json()
    assert (shape["overlap"], shape["trigger"]["tz"], shape["next_run_at"] is None) == (
        "queue_one", "Europe/Berlin", False,
    )  # fmt: skip
    both = operator.put("/api/v1/schedules/nightly", json={**body, "every": "1h"}, headers=headers)
    assert (both.status_code, "a schedule has one trigger" in both.json()["detail"]) == (422, True)
    other = operator.put("/api/v1/schedules/nightly", json={**body, "job": "os:system"}, headers=headers)
    assert other.status_code == 403

    removed = operator.delete("/api/v1/schedules/nightly", headers=headers).json()
    assert (removed, scheduler.get_schedules()) == ({"name": "nightly", "removed": True}, [])


@both
def test_the_list_says_which_jobs_a_limit_holds_back_and_masks_secret_values(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    scheduler.set_limit("stripe", 1)
    for token in ("a1", "a1", "b2"):
        scheduler.add_job(jobs.Mail, {"token": token}, limits=["5 name=stripe", "1 by=token"])
    with closing(open_store(url)) as store:
        now = store.now()
        store.claim(Holder(seat="web-1", incarnation="a1"), ClaimRequest(pooled=1), now, now + timedelta(minutes=1))
    client = browser()
    log_in(client)

    said = re.findall(r'class="spare cut" title="([^"]*)"', client.get("/jobs").text)
    scheduler.set_limit("stripe", 5)
    later = re.findall(r'class="spare cut" title="([^"]*)"', client.get("/jobs").text)

    assert sorted(said) == [*["limit is used up: at most 1 at once of name=stripe"] * 2, "on web-1"]
    assert sorted(later) == [
        "",
        "limit is used up: at most 1 at once of tests.web.jobs:Mail by=token •••",
        "on web-1",
    ]
