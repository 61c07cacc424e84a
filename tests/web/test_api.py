"""The JSON API: what programs find, add, change and are refused, in the shapes and words of the command line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler, Status
from taskqueue.model.record import Holder
from taskqueue.model.secret_keys import MASK
from taskqueue.scheduler.audit_trail import acting_command, shown_query
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from taskqueue.web.api import ROUTES
from tests.nodes import eventually
from tests.scheduler.jobs import Broken, Echo, Giving
from tests.web.conftest import HOST, MakeBrowser, csrf_of, log_in

Api = Callable[..., TestClient]
MAIL = "shop:Mail"


@pytest.fixture
def api(browser: MakeBrowser, people: tuple[Path, dict[str, str]]) -> Api:
    """Return what opens the API as a user, by a token."""

    def make(user: str = "olaf", **settings: Any) -> TestClient:
        client = browser(**({"users": people[0], "hosts": [HOST], **settings} if settings else {}))
        client.headers["authorization"] = f"Bearer {people[1][user]}"
        client.base_url = client.base_url.join("/api/v1/")
        return client

    return make


def problem(answer: Any) -> tuple[int, str]:
    """Return status and name of a problem document."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_jobs_are_found_page_by_page(api: Api, scheduler: Scheduler) -> None:
    processes = scheduler.add_jobs([(MAIL, {"n": number}, {"queue": "mail", "tags": "t"}) for number in range(5)])
    scheduler.add_job("shop:Report")
    client = api("rita")
    mail: dict[str, Any] = {"queue": "mail", "job": MAIL, "tag": "t", "status": "pending", "order": "id", "limit": 2}

    found: list[str] = []
    page = client.get("jobs", params=mail).json()
    while page["cursor"]:
        found += [job["id"] for job in page["jobs"]]
        page = client.get("jobs", params={**mail, "cursor": page["cursor"]}).json()
    found += [job["id"] for job in page["jobs"]]

    assert found == [str(process.id) for process in processes]
    assert client.get("jobs/count", params={"query": '{"data.n": {"$in": [1, 2]}}'}).json() == {"count": 2}
    assert problem(client.get("jobs", params={**mail, "cursor": "0" * 24})) == (410, "cursor-too-old")


@pytest.mark.parametrize(
    "query",
    [
        {"data.password": "hunter2"},
        {"$or": [{"queue": "mail"}, {"data.login.api-key.id": {"$in": [1, 2]}}]},
        {"meta.token": {"$gte": "a"}},
    ],
)
def test_a_masked_value_cannot_be_guessed_by_queries(api: Api, query: dict[str, Any]) -> None:
    body, text = {"action": "cancel", "query": query}, json.dumps(query)
    mia, olaf = api("mia"), api("olaf")
    refused = [mia.get("jobs", params={"query": text}), mia.get("jobs/count", params={"query": text})]

    for answer in (*refused, mia.post("jobs/matching", json=body)):
        assert problem(answer) == (422, "invalid-query")
        assert "is masked: only a user who may see secrets" in answer.json()["detail"]
    assert olaf.get("jobs/count", params={"query": text}).status_code == 200


@pytest.mark.parametrize("action", ["cancel", "run-again"])
def test_the_audit_of_an_action_on_all_shows_no_secret_of_its_query(api: Api, action: str) -> None:
    query = {"$or": [{"data.password": {"$in": ["hunter2"]}}, {"queue": "mail"}]}

    assert (
        api("olaf").post("jobs/matching", json={"action": action, "query": query, "confirm": True}).status_code == 200
    )

    kept = api("rita").get("audit").text
    assert "hunter2" not in kept
    assert "mail" in kept


@pytest.mark.parametrize("others", [[], ["x" * 1000]])
def test_the_audit_masks_queries_of_commands_by_the_patterns_of_the_dashboard(
    api: Api, url: str, browser: MakeBrowser, people: tuple[Path, dict[str, str]], others: list[str]
) -> None:
    query = {"$or": [{"data.iban": "DE02"}, {"data.iban": {"$in": ["DE03", *others]}}]}
    with closing(open_store(url)) as store:
        with acting_command(store, "cancel", "jobs", query=shown_query(query), number=1):
            pass
        with acting_command(store, "pause", "mail", reason="iban"):
            pass
    page = browser(users=people[0], hosts=[HOST], secrets=["iban"])
    log_in(page)

    for shown in (api("rita", secrets=["iban"]).get("audit").text, page.get("/audit").text):
        assert "DE0" not in shown
        assert MASK in shown
        assert "iban" in shown


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"query": "{"}, "the query is not JSON"),
        ({"query": "[]"}, "a query is a JSON object such as"),
        ({"query": "clas:Mail"}, "there is no key 'clas': did you mean class:Mail?"),
        ({"query": '{"colour": 1}'}, "a query cannot name 'colour': use id, parent"),
        ({"limit": "0"}, "limit: 0 is less than the minimum of 1"),
        ({"limit": "x"}, "limit: 'x' is not of type 'integer'"),
        ({"order": "name"}, "order: 'name' is not one of"),
        ({"order": "create_at"}, "order: 'create_at' is not one of"),
        ({"colour": "red"}, "there is no parameter 'colour': use status, queue"),
        ([("queue", "a"), ("queue", "b")], "queue is given more than once"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, params: Any, said: str) -> None:
    answer = api().get("jobs", params=params)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(said)


@pytest.mark.parametrize(
    ("params", "hint"),
    [
        ({"order": "create_at"}, "; did you mean created_at?"),
        ({"status": "faild"}, "did you mean FAILED?"),
        ({"statsu": "failed"}, "; did you mean status?"),
        ({"query": '{"statsu": 1}'}, "; did you mean status?"),
        ({"query": '{"status": "faild"}'}, "; did you mean FAILED?"),
    ],
)
def test_the_nearest_name_is_suggested(api: Api, params: Any, hint: str) -> None:
    answer = api().get("jobs", params=params)

    assert answer.status_code == 422
    assert answer.json()["detail"].endswith(hint)


def wrong_values() -> list[tuple[str, str]]:
    """Return each parameter of each operation that reads, but those that take any text."""
    any_text = {"queue", "job", "tag", "error", "name"}
    return [
        (route.path, param.name)
        for route in ROUTES
        for param in route.params
        if route.method == "GET" and (param.name not in any_text or (route.path, param.name) == ("/history", "job"))
    ]


@pytest.mark.parametrize(("path", "name"), wrong_values())
def test_a_wrong_value_of_any_parameter_is_named(api: Api, scheduler: Scheduler, path: str, name: str) -> None:
    scheduler.schedule("nightly", MAIL, every=60)
    where = path[1:].format(id=scheduler.add_job(MAIL).id, name="nightly")
    value = "zzz:" if name == "query" else "zzz"
    given: dict[str, Any] = {"headers" if name == "last-event-id" else "params": {name: value}}

    answer = api().get(where, **given)

    expected = {"query": (422, "invalid-query")}.get(name, (422, "invalid-parameter"))
    if name == "cursor" and path in ("/queues", "/schedules", "/nodes"):  # a name that may have been there
        expected = (410, "cursor-too-old")
    assert problem(answer) == expected
    assert ("zzz" if name == "query" else name) in answer.json()["detail"]


def test_a_wrong_value_in_a_body_is_of_a_job_only_where_one_is_described(api: Api, scheduler: Scheduler) -> None:
    client, id = api(), scheduler.add_job(MAIL).id

    limit = client.post("limits", json={"name": "api", "limit": "many"})
    matching = client.post("jobs/matching", json={"action": "cancel", "query": {}, "at": "zzz"})
    assert problem(limit) == problem(matching) == (422, "invalid-parameter")
    assert matching.json()["detail"].startswith("at='zzz' is not a time")
    assert problem(client.patch(f"jobs/{id}", json={"at": "zzz"})) == (422, "invalid-job")


def test_a_duration_is_not_taken_for_a_time_in_1970(api: Api, scheduler: Scheduler) -> None:
    client = api(addable=[MAIL])
    id, ended = scheduler.add_job(MAIL, at="+1 hour").id, scheduler.run_job(Broken, retry=0).id

    refused = [
        client.post("jobs", json={"job": MAIL, "at": 60}),
        client.patch(f"jobs/{id}", json={"at": 60}),
        client.post(f"jobs/{ended}/run-again", json={"at": 60}),
        client.post("jobs/matching", json={"action": "cancel", "query": {}, "at": "60 seconds"}),
    ]

    for answer in refused:
        assert answer.status_code == 422
        assert "is not a time: write '+60 seconds' for that long from now" in answer.json()["detail"]
    assert scheduler.count_jobs({}) == 2


def test_a_job_is_shown_as_the_command_line_shows_it_without_its_secrets(api: Api, scheduler: Scheduler) -> None:
    process = scheduler.run_job(Broken, {"to": "a", "auth": {"api-key": "k", "Password": "p", "pages": [1]}}, retry=0)

    shown = api().get(f"jobs/{process.id}").json()

    assert shown["data"] == {"to": "a", "auth": {"api-key": "•••", "Password": "•••", "pages": [1]}}
    assert process.error is not None
    assert (shown["status"], shown["error"]["type"]) == ("FAILED", process.error.type)
    assert "traceback" in shown["error"]
    assert str(process.id) in api().get(f"jobs/{process.id}/why").json()["why"]
    assert problem(api().get(f"jobs/{'0' * 24}")) == (404, "job-not-found")
    assert problem(api().get("jobs/nothing")) == (404, "job-not-found")


def test_unmasking_is_a_right_of_its_own_and_is_kept(api: Api, scheduler: Scheduler) -> None:
    process = scheduler.add_job(MAIL, {"token": "t"})

    assert api("olaf").get(f"jobs/{process.id}", params={"unmask": "true"}).json()["data"] == {"token": "t"}
    assert problem(api("mia").get(f"jobs/{process.id}", params={"unmask": "true"})) == (403, "forbidden")
    [entry] = scheduler.audit()
    assert (entry.by, entry.action, entry.target, entry.source) == ("olaf", "unmask", str(process.id), "203.0.113.9")


def test_only_classes_that_are_allowed_are_added(api: Api, scheduler: Scheduler) -> None:
    refused = api().post("jobs", json={"job": MAIL})
    assert problem(refused) == (403, "class-not-allowed")
    assert refused.json()["detail"].endswith(f"allowed are none; start it with --addable {MAIL}")

    client = api(addable=[MAIL])
    assert problem(client.post("jobs", json={"job": "taskqueue:ShellJob"})) == (403, "class-not-allowed")
    added = client.post(
        "jobs", json={"job": MAIL, "data": {"to": "a"}, "queue": "mail", "at": "+1 hour", "tags": ["x"]}
    )
    assert added.status_code == 201
    process = scheduler.get_job(added.json()["id"])
    assert (process.data, process.queue, process.tags, process.status) == (
        {"to": "a"},
        "mail",
        ("x",),
        Status.POSTPONED,
    )


def test_the_same_request_with_a_key_adds_one_job(api: Api, scheduler: Scheduler) -> None:
    client = api(addable=[MAIL])
    key = {"idempotency-key": "order-17"}

    first = client.post("jobs", json={"job": MAIL, "data": {"n": 1}}, headers=key)
    again = client.post("jobs", json={"job": MAIL, "data": {"n": 1}}, headers=key)

    assert (first.status_code, again.status_code) == (201, 200)
    assert (again.json()["id"], again.json()["existed"]) == (first.json()["id"], True)
    assert problem(client.post("jobs", json={"job": MAIL, "data": {"n": 2}}, headers=key)) == (422, "key-reused")
    other = api("mia", addable=[MAIL]).post("jobs", json={"job": MAIL, "data": {"n": 1}, "queue": "mail"}, headers=key)
    assert other.status_code == 201


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_a_job_is_added_once_and_found_by_the_text_of_its_id(api: Api, scheduler: Scheduler) -> None:
    client = api(addable=[MAIL])
    mail = {"job": MAIL, "data": {"n": 1}, "id": "invoice-7"}

    first, again = client.post("jobs", json=mail), client.post("jobs", json=mail)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"] == client.get("jobs/invoice-7").json()["id"]
    assert client.get(f"jobs/{MAIL}:invoice-7").json()["id_text"] == "invoice-7"
    assert [entry.target for entry in scheduler.audit()] == [first.json()["id"]] * 2
    assert f"({MAIL}:invoice-7)" in client.get("jobs/invoice-7/why").json()["why"]
    assert client.post("jobs/invoice-7/cancel", json={}).json()["status"] == "CANCELED"
    assert problem(client.post("jobs", json={**mail, "data": {"n": 2}})) == (409, "duplicate-id")
    assert problem(client.post("jobs", json={**mail, "id": ""}))[0] == 422
    assert problem(client.get("jobs/invoice-8")) == (404, "job-not-found")


def test_pages_find_and_show_the_text_of_an_id(browser: MakeBrowser, scheduler: Scheduler) -> None:
    client = browser()
    log_in(client)
    added = scheduler.add_job(MAIL, id="invoice-7")

    assert client.get("/jobs?q=invoice-7").headers["location"] == f"/jobs/{added.id}"
    assert client.get("/jobs/invoice-7").headers["location"] == f"/jobs/{added.id}"
    assert "invoice-7" in client.get(f"/jobs/{added.id}").text
    assert "invoice-7" in client.get("/jobs").text
    assert "No job matches" in client.get("/jobs?q=invoice-8").text
    for shortened in (f"{str(added.id)[:8]}..{str(added.id)[-6:]}", f"{str(added.id)[:6]}…{str(added.id)[-4:]}"):
        assert client.get("/jobs", params={"q": shortened}).headers["location"] == f"/jobs/{added.id}"
    scheduler.add_job("shop:Invoice", id="invoice-7")
    both = client.get("/jobs?q=invoice-7").headers["location"]
    page = client.get(both).text
    assert ("shop:Invoice" in page, MAIL in page) == (True, True)


def test_a_key_of_one_user_is_never_that_of_another(browser: MakeBrowser, scheduler: Scheduler) -> None:
    client = browser(header="x-user", header_role="operator", proxies=["203.0.113.9"], hosts=[HOST], addable=[MAIL])
    added = []
    for name, key in (("ann", "b:c"), ("ann:b", "c"), ("a" * 100, "k" * 150)):
        token = client.get("/api/v1/session", headers={"x-user": name}).json()["csrf_token"]
        headers = {"x-user": name, "idempotency-key": key, "x-csrf-token": token}
        added.append(client.post("/api/v1/jobs", json={"job": MAIL}, headers=headers).status_code)

    assert added == [201, 201, 201]


@pytest.mark.parametrize(
    ("content", "type", "status"),
    [
        (b"{", "application/json", 400),
        (b'{"job": NaN}', "application/json", 400),
        (b'{"job": "\\ud800"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"job": "shop:Mail"}', "text/plain", 415),
        (b'{"job": "shop:Mail", "colour": 1}', "application/json", 422),
        (b"[]", "application/json", 422),
        (b"", "application/json", 400),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(api: Api, content: bytes, type: str, status: int) -> None:
    answer = api(addable=[MAIL]).post("jobs", content=content, headers={"content-type": type})

    assert problem(answer)[0] == status


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_a_job_is_changed_canceled_and_run_again_with_other_data(api: Api, scheduler: Scheduler) -> None:
    client = api(addable=[MAIL])
    id = str(scheduler.add_job(MAIL, {"to": "a", "token": "secret"}).id)

    changed = client.patch(f"jobs/{id}", json={"priority": 3, "data": {"to": "b", "token": "•••"}}).json()
    assert (changed["priority"], changed["data"]) == (3, {"to": "b", "token": "•••"})
    assert scheduler.get_job(id).data == {"to": "b", "token": "secret"}
    assert client.post(f"jobs/{id}/cancel", json={"reason": "wrong"}).json()["status"] == "CANCELED"
    assert "wrong (olaf)" in scheduler.why(id)
    copy = client.post(f"jobs/{id}/run-again", json={"data": {"to": "c", "token": "•••"}})
    assert copy.status_code == 201
    assert scheduler.get_job(copy.json()["id"]).data == {"to": "c", "token": "secret"}
    assert problem(client.patch(f"jobs/{id}", json={"priority": 1})) == (409, "wrong-status")
    assert problem(client.post(f"jobs/{id}/run-again", json={"data": {"other": "•••"}})) == (422, "masked-value")
    actions = [entry.action for entry in scheduler.audit()]
    assert actions == ["update refused", "update", "run again", "cancel", "update"]


def test_a_job_whose_unique_key_another_has_is_not_run_again(api: Api, scheduler: Scheduler) -> None:
    ended = scheduler.add_job(MAIL, unique="key").cancel()
    holder = scheduler.add_job(MAIL, unique="key")
    client = api()

    answer = client.post(f"jobs/{ended.id}/run-again", json={})
    again = {"action": "run-again", "query": {"status": "CANCELED"}, "confirm": True}

    assert problem(answer) == (409, "key-taken")
    assert str(holder.id) in answer.json()["detail"]
    assert client.post("jobs/matching", json=again).json()["done"] == 0


def test_all_that_match_are_counted_first_and_then_canceled_or_run_again(api: Api, scheduler: Scheduler) -> None:
    scheduler.add_jobs([(MAIL, number, {"queue": "mail"}) for number in range(7)])
    scheduler.add_job(MAIL, queue="other")
    client = api("mia")
    query = {"action": "cancel", "query": {"job": MAIL}}

    asked = client.post("jobs/matching", json=query).json()
    assert (asked["found"], len(asked["sample"]), asked["done"]) == (7, 5, 0)
    assert client.post("jobs/matching", json={**query, "confirm": True}).json()["done"] == 7
    assert scheduler.stats()["statuses"]["CANCELED"] == 7
    canceled = scheduler.find_jobs({"status": "CANCELED"})
    assert len({process.ended_at for process in canceled}) == 1  # in one step of the store
    assert {process.error.message for process in canceled if process.error} == {"canceled by mia"}
    assert dict(scheduler.audit(1)[0].about)["number"] == 7
    again = {"action": "run-again", "query": {"status": "CANCELED"}, "confirm": True}
    assert client.post("jobs/matching", json=again).json()["done"] == 7
    assert scheduler.stats()["queues"]["other"]["WAITING"] == 1


def test_a_reader_changes_nothing_and_an_operator_of_some_queues_only_these(api: Api, scheduler: Scheduler) -> None:
    other = scheduler.add_job(MAIL)
    scheduler.schedule("nightly", "shop:Report", every="1d")
    for user in ("rita", "mia"):
        client = api(user, addable=[MAIL])
        for path, body in (
            ("jobs", {"job": MAIL}),
            (f"jobs/{other.id}/cancel", {}),
            ("queues/pause", {"queue": None}),
            ("queues/pause", {"queue": "other"}),
            ("limits", {"name": "api", "limit": 3}),
            ("nodes/web-1/drain", {}),
            ("schedules/nightly/trigger", {}),
        ):
            assert problem(client.post(path, json=body)) == (403, "forbidden"), path
    assert problem(api("rita").post("queues/pause", json={"queue": "mail"})) == (403, "forbidden")
    assert api("mia").post("queues/pause", json={"queue": "mail", "reason": "relay"}).json()["by"] == "mia"
    assert [entry.by for entry in scheduler.audit()] == ["mia"]
    waiting = scheduler.add_job(MAIL, queue="mail")
    assert problem(api("mia").patch(f"jobs/{waiting.id}", json={"queue": "other"})) == (403, "forbidden")


def test_queues_nodes_limits_and_schedules_are_controlled(api: Api, scheduler: Scheduler) -> None:
    client = api()
    scheduler.add_job(MAIL, queue="mail")
    scheduler.schedule("nightly", "shop:Report", cron="0 3 * * *")

    client.post("queues/pause", json={"queue": "mail", "reason": "relay"})
    [queue] = client.get("queues").json()["queues"]
    assert (queue["name"], queue["statuses"]["WAITING"], queue["paused"]["reason"]) == ("mail", 1, "relay")
    assert queue["oldest"] >= 0
    assert client.post("queues/resume", json={"queue": "mail"}).json()["cleared"] == 1
    assert client.post("limits", json={"name": "api", "limit": 3}).json()["controls"][0]["count"] == 3
    scheduler.drain("web-1")
    assert client.post("nodes/web-1/drain", json={"reason": "kernel"}).json()["reason"] == "kernel"
    assert client.post("nodes/web-1/undrain").json()["cleared"] == 1
    assert client.post("schedules/nightly/trigger").json()["job"] == "shop:Report"
    assert client.post("schedules/nightly/pause", json={"reason": "audit"}).json()["stage"] == "paused"
    assert client.post("schedules/nightly/resume").json()["stage"] == "active"
    times = client.get("schedules/nightly/preview", params={"count": 2, "tz": "Asia/Tokyo"}).json()["times"]
    assert [time[11:16] + time[-6:] for time in times] == ["12:00+09:00"] * 2
    assert problem(client.get("schedules/nightly/preview", params={"tz": "../etc"})) == (422, "invalid-parameter")
    assert problem(client.get("schedules/none")) == (404, "schedule-not-found")
    page = client.get("audit", params={"limit": 3}).json()
    assert [entry["action"] for entry in page["audit"]] == ["resume schedule", "pause schedule", "trigger"]
    older = client.get("audit", params={"cursor": page["cursor"]}).json()["audit"]
    assert [entry["action"] for entry in older] == ["undrain", "drain", "limit", "resume", "pause"]


def test_what_is_refused_is_in_the_audit_with_its_refusal(api: Api, scheduler: Scheduler) -> None:
    ended, client = scheduler.run_job(Echo, 1), api()

    assert problem(client.patch(f"jobs/{ended.id}", json={"priority": 3})) == (409, "wrong-status")
    assert client.post(f"jobs/{ended.id}/cancel", json={}).json()["status"] == "DONE"
    assert client.post("limits", json={"name": "a:b:c:d", "limit": "nonsense"}).status_code == 422

    assert [entry.action for entry in scheduler.audit()] == ["limit refused", "limit", "update refused", "update"]
    assert [dict(entry.about) for entry in scheduler.audit() if entry.target == str(ended.id)] == [
        {"error": "WrongStatus"},
        {"job": ended.job, "changed": ["priority"]},
    ]


def test_an_action_that_is_cut_off_is_in_the_audit(api: Api, scheduler: Scheduler, url: str) -> None:
    client, process = api(), scheduler.add_job(MAIL)
    with closing(sqlite3.connect(url.removeprefix("sqlite://").partition("?")[0])) as raw, raw:
        raw.execute("DROP TABLE controls")
        raw.execute("DROP TABLE waits")

    for path, body in ((f"jobs/{process.id}/cancel", {}), ("limits", {"name": "api", "limit": 3})):
        assert problem(client.post(path, json=body)) == (503, "store-unavailable")

    assert [entry.action for entry in scheduler.audit()] == ["limit", "cancel"]


def test_a_node_that_nobody_knows_is_not_drained(api: Api, scheduler: Scheduler, url: str) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        holder = Holder(seat="web-1", incarnation="a1b2c3d4e5f60718")
        store.acquire(Lease(name="seat:web-1", holder=holder, since=now, until=now + timedelta(hours=1)), now)
    client = api()

    for action in ("drain", "undrain"):
        answer = client.post(f"nodes/wbe-1/{action}")
        assert problem(answer) == (404, "node-not-found")
        said = "there is no node 'wbe-1': did you mean web-1? `taskqueue drain wbe-1` drains one that is still to start"
        assert answer.json()["detail"] == said
    assert (scheduler.controls(), scheduler.audit()) == ([], [])
    assert client.post("nodes/web-1/drain").json()["name"] == "web-1"


def test_figures_failures_and_log_lines_are_answered(api: Api, scheduler: Scheduler) -> None:
    failed = scheduler.run_job(Broken, retry=0)
    scheduler.run_job(Echo, 1)
    client = api("rita")

    assert client.get("stats").json()["statuses"]["FAILED"] == 1
    entries = client.get("history").json()["history"]
    assert sum(entry["done"] for entry in entries) == 1
    assert client.get("analytics", params={"by": "class"}).json()["whole"]["failed"] == 1
    [group] = client.get("failures").json()["failures"]
    assert failed.error is not None
    assert (group["job"], group["error"], group["count"]) == (failed.job, failed.error.type, 1)
    assert client.get("jobs", params={"query": json.dumps(group["query"])}).json()["jobs"][0]["id"] == str(failed.id)
    assert client.get(f"jobs/{failed.id}/logs").json()["lines"] == []
    assert client.get("nodes").json() == {"nodes": [], "cursor": None}
    assert client.get("session").json()["role"] == "reader"


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_text_that_cannot_be_encoded_hides_no_entry_of_the_audit(
    api: Api, browser: MakeBrowser, scheduler: Scheduler
) -> None:
    scheduler.record_action("look \ud800", "\udc80", by="ana", about={"\udfff": ["\ud800", {"of": "\ud800é"}]})
    client = browser()
    log_in(client)

    [entry] = api().get("audit").json()["audit"]
    assert (entry["action"], entry["target"]) == ("look \\ud800", "\\udc80")
    assert entry["about"] == {"\\udfff": ["\\ud800", {"of": "\\ud800é"}]}
    assert client.get("/audit").status_code == 200


def test_stored_text_that_cannot_be_encoded_is_shown_with_escapes(
    api: Api, browser: MakeBrowser, scheduler: Scheduler, url: str
) -> None:
    scheduler.record_action("look", "all", by="ana", about={"at": "x"})
    with closing(sqlite3.connect(url.removeprefix("sqlite://").partition("?")[0])) as raw, raw:
        raw.execute("UPDATE audit SET about = ?", ('{"at": "\\ud800"}',))
    client = browser()
    log_in(client)

    assert api().get("audit").json()["audit"][0]["about"] == {"at": "\ud800"}
    assert "\\ud800" in client.get("/audit").text


def test_data_that_are_no_extended_json_are_a_wrong_value(api: Api, scheduler: Scheduler) -> None:
    client = api(addable=[MAIL])
    waiting, ended = scheduler.add_job(MAIL), scheduler.cancel_job(scheduler.add_job(MAIL).id)

    for method, path, body in (
        ("PATCH", f"jobs/{waiting.id}", {}),
        ("POST", f"jobs/{ended.id}/run-again", {}),
        ("POST", "jobs", {"job": MAIL}),
    ):
        answer = client.request(method, path, json={**body, "data": {"$date": "x"}})
        assert problem(answer) == (422, "invalid-job"), path
        assert "stored" not in answer.json()["detail"]


def test_figures_of_many_groups_are_those_of_the_largest(api: Api, scheduler: Scheduler) -> None:
    tags = [[f"tag-{part}-{number}" for number in range(50)] for part in range(20)]
    for some in (*tags, ["tag-0-7"]):
        scheduler.add_job(MAIL, tags=some)
    scheduler.cancel_jobs({})
    client = api("rita")

    answer = client.get("analytics", params={"by": "tag"})
    assert (len(answer.json()["groups"]), answer.json()["left_out"]) == (200, 800)
    assert len(answer.content) < 100_000
    found = client.get("analytics", params={"by": "tag", "limit": 1}).json()
    assert ([group["name"] for group in found["groups"]], found["left_out"]) == (["tag-0-7"], 999)
    assert client.get("analytics", params={"by": "hour", "limit": 1}).json()["groups"][0]["canceled"] == 21


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_stats_history_and_failures_of_many_queues_and_classes_are_bounded(api: Api, scheduler: Scheduler) -> None:
    jobs = scheduler.add_jobs([(f"app:Job{number}", None, {"queue": f"queue-{number}"}) for number in range(1100)])
    scheduler.cancel_jobs({"id": {"$in": [jobs[7].id, *(job.id for job in jobs[20:])]}})
    scheduler.add_job("app:Job7", queue="queue-1099", at="+1 hour")
    client = api("rita")

    stats = client.get("stats").json()
    assert (len(stats["queues"]), len(stats["waiting_since"]), stats["left_out"]) == (200, 19, 900)
    assert stats["total"] == 1101
    assert (stats["day"]["pending"], len(stats["day"]["hours"])) == (20, 24)
    assert [stats["next"][word] for word in ("scheduled", "retrying", "blocked", "unloadable")] == [1, 0, 0, 0]
    assert sum(hour["scheduled"] for hour in stats["next"]["hours"]) == 1
    assert "queue-1099" in stats["queues"]  # the largest
    few = client.get("stats", params={"limit": 19}).json()
    assert (few["queues"].keys(), few["left_out"]) == (stats["waiting_since"].keys(), 1081)
    eventually(  # MongoDB counts them later
        lambda: sum(entry.added + entry.canceled for entry in scheduler.history()) == 1101 + 1081
    )

    def of_one_state() -> list[dict[str, Any]]:
        """Read twice until both reads agree: on MongoDB figures may change in between."""
        last, every = (client.get("history", params=params).json() for params in ({"limit": 100}, {}))
        return [last, every] if last["history"] == every["history"][-100:] else []

    history, whole = eventually(of_one_state)
    assert (len(history["history"]), history["left_out"], whole["left_out"]) == (100, len(whole["history"]) - 100, 0)
    for path in ("stats", "history", "failures"):
        assert client.get(path, params={"limit": 0}).status_code == 422


def test_failures_of_many_classes_are_those_of_the_most_frequent(api: Api, scheduler: Scheduler) -> None:
    scheduler.run_job(Broken, retry=0)
    for _ in range(2):
        scheduler.run_job(Giving, retry=0)

    found = api("rita").get("failures", params={"limit": 1}).json()

    assert [(group["count"], group["job"].rpartition(":")[2]) for group in found["failures"]] == [(2, "Giving")]
    assert found["left_out"] == 1


def test_a_job_is_waited_for_no_longer_than_asked(api: Api, scheduler: Scheduler) -> None:
    waiting, done = scheduler.add_job(MAIL), scheduler.run_job(Echo, 1)

    assert api().get(f"jobs/{done.id}/wait").json()["status"] == "DONE"
    assert api().get(f"jobs/{waiting.id}/wait", params={"timeout": "0.01"}).json()["status"] == "WAITING"
    assert problem(api().get(f"jobs/{waiting.id}/wait", params={"timeout": "61"})) == (422, "invalid-parameter")


def test_nobody_gets_in_without_a_token(browser: MakeBrowser, people: tuple[Path, dict[str, str]]) -> None:
    client = browser()
    token = people[1]["rita"]
    for authorization in ("", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x", f"Bearer {token}, x"):
        refused = client.get("/api/v1/jobs", headers={"authorization": authorization})
        assert problem(refused) == (401, "unknown-user"), authorization
        assert refused.headers["www-authenticate"] == "Bearer"
    assert "send a token" in client.get("/api/v1/jobs").json()["detail"]
    wrong = {"authorization": "Bearer wrong"}
    assert "no user has this token" in client.get("/api/v1/jobs", headers=wrong).json()["detail"]
    alone = browser(client=("127.0.0.1", 1), local=True, hosts=[HOST])
    assert "has no file of users" in alone.get("/api/v1/jobs", headers=wrong).json()["detail"]
    assert problem(client.get("/api/v1/openapi.json")) == (401, "unknown-user")
    unknown, wrong_method = client.get("/api/v1/nothing"), client.put("/api/v1/jobs")
    assert problem(unknown) == (404, "not-found")
    assert "there is no operation at '/api/v1/nothing'" in unknown.json()["detail"]
    assert problem(wrong_method) == (405, "method-not-allowed")
    assert wrong_method.json()["detail"] == "'/api/v1/jobs' does not accept PUT"


def test_a_session_needs_the_token_of_a_page_for_changes(browser: MakeBrowser, scheduler: Scheduler) -> None:
    client = browser()
    token = log_in(client)

    def pause(client: TestClient, **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post("/api/v1/queues/pause", json={"queue": "mail"}, headers=named)

    assert client.get("/api/v1/session").json()["csrf_token"] == token == csrf_of(client)
    assert problem(pause(client)) == (403, "csrf")
    assert problem(pause(client, x_csrf_token="x" * 64)) == (403, "csrf")
    assert problem(pause(client, x_csrf_token=token, origin="https://evil.example")) == (403, "csrf")
    other = browser()
    log_in(other, "mia")
    assert problem(pause(other, x_csrf_token=token)) == (403, "csrf")
    assert scheduler.controls() == []
    assert pause(client, x_csrf_token=token).status_code == 200


def test_an_error_of_the_store_is_an_answer(api: Api, scheduler: Scheduler, tmp_path: Path) -> None:
    client = api()
    scheduler.close()
    for name in tmp_path.iterdir():
        if name.name.startswith("jobs.db"):
            name.rename(name.with_name(f"gone-{name.name}"))

    answer = client.get("stats")

    assert problem(answer) in ((503, "store-unavailable"), (500, "error"))
