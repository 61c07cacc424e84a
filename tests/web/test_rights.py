"""What an operator may do follows where the effect is, not where the action begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler, ShellJob, Status
from taskqueue.web.api import ROUTES
from taskqueue.web.api.route import ApiRoute
from taskqueue.web.users import Role, User, UsersFile, account, with_new_token
from tests.scheduler.jobs import Broken
from tests.web.conftest import HOST, MakeBrowser, log_in
from tests.web.test_api import problem

MAIL = "shop:Mail"
CLASS_REFUSED = (403, "class-not-allowed")
REFUSED = (403, "forbidden")

Api = Callable[..., TestClient]


pytestmark = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


@pytest.fixture
def api(browser: MakeBrowser, tmp_path: Path) -> Api:
    """Return what opens the API as an operator, by a token: of all queues, of mail, or of the default one."""
    path, accounts, tokens = tmp_path / "users.json", {}, {}
    for name, queues in (("olaf", None), ("mia", ("mail",)), ("dora", ("default",))):
        user = User(name=name, role=Role.OPERATOR, queues=queues)
        accounts[name], tokens[name] = with_new_token(account(user, None))
    UsersFile(path).change(accounts)

    def make(user: str, *addable: str) -> TestClient:
        client = browser(users=path, hosts=[HOST], addable=addable)
        client.headers["authorization"] = f"Bearer {tokens[user]}"
        client.base_url = client.base_url.join("/api/v1/")
        return client

    return make


def test_other_data_need_a_class_that_may_be_added(api: Api, scheduler: Scheduler) -> None:
    ended = scheduler.run_job(ShellJob, {"argv": ["true"]})
    waiting = scheduler.add_job(ShellJob, {"argv": ["true"]})
    client = api("olaf")

    assert problem(client.post(f"jobs/{ended.id}/run-again", json={"data": {"argv": ["false"]}})) == CLASS_REFUSED
    assert problem(client.patch(f"jobs/{waiting.id}", json={"data": {"argv": ["false"]}})) == CLASS_REFUSED
    assert scheduler.count_jobs() == 2
    assert waiting.refresh().data == {"argv": ["true"]}
    assert scheduler.audit() == []
    assert client.post(f"jobs/{ended.id}/run-again").status_code == 201
    client = api("olaf", ended.job)
    assert client.post(f"jobs/{ended.id}/run-again", json={"data": {"argv": ["echo"]}}).status_code == 201
    assert client.patch(f"jobs/{waiting.id}", json={"data": {"argv": ["echo"]}}).json()["data"] == {"argv": ["echo"]}


def test_pages_offer_other_data_only_for_a_class_that_may_be_added(browser: MakeBrowser, scheduler: Scheduler) -> None:
    ended = scheduler.run_job(ShellJob, {"argv": ["true"]})
    client = browser()
    token = log_in(client)

    assert "/edit" not in client.get(f"/jobs/{ended.id}").text
    assert client.get(f"/jobs/{ended.id}/edit").status_code == 403
    assert client.post(f"/jobs/{ended.id}/edit", data={"csrf": token, "data": '{"argv": ["false"]}'}).status_code == 403
    assert scheduler.count_jobs() == 1


def test_jobs_whose_class_may_declare_another_queue_are_for_operators_of_all(api: Api, scheduler: Scheduler) -> None:
    scheduler.schedule("nightly", MAIL, every="1d")
    scheduler.schedule("chosen", MAIL, every="1d", queue="default")
    ended = scheduler.cancel_job(scheduler.add_job(MAIL).id)
    waiting = scheduler.add_job(MAIL)
    again = {"action": "run-again", "query": {"job": MAIL, "status": "CANCELED"}, "confirm": True}
    client = api("dora")

    for path in ("schedules/nightly/trigger", "schedules/nightly/resume", f"jobs/{ended.id}/run-again"):
        assert problem(client.post(path)) == REFUSED, path
    assert problem(client.patch(f"jobs/{waiting.id}", json={"priority": 3})) == REFUSED
    assert problem(client.post("jobs/matching", json=again)) == REFUSED
    assert scheduler.count_jobs() == 2
    assert client.patch(f"jobs/{waiting.id}", json={"queue": "default"}).status_code == 200
    assert client.patch(f"jobs/{waiting.id}", json={"priority": 3}).status_code == 200
    assert client.post("schedules/chosen/trigger").status_code == 201
    client = api("olaf")
    assert client.post("schedules/nightly/trigger").status_code == 201
    assert client.post("jobs/matching", json=again).json()["done"] == 1


@pytest.mark.parametrize("kind", ["child", "grandchild", "dependent", "dependent of a child"])
def test_a_job_is_canceled_only_with_a_right_to_all_that_end_with_it(api: Api, scheduler: Scheduler, kind: str) -> None:
    top = scheduler.add_job(MAIL, queue="mail")
    below = top
    if kind in ("grandchild", "dependent of a child"):
        below = scheduler.add_job(MAIL, queue="mail", parent=top)
    tied: Any = {"depends_on": [below]} if kind.startswith("dependent") else {"parent": below}
    other = scheduler.add_job(MAIL, queue="other", **tied)
    all_of_mail = {"action": "cancel", "query": {"queue": "mail"}, "confirm": True}

    refused = api("mia").post(f"jobs/{top.id}/cancel")
    assert problem(refused) == REFUSED
    assert f"job {other.id} of queue other would be canceled" in refused.json()["detail"]
    assert problem(api("mia").post("jobs/matching", json=all_of_mail)) == REFUSED
    assert {process.status for process in scheduler.get_jobs()} <= {Status.WAITING, Status.POSTPONED}
    assert scheduler.audit() == []
    assert api("olaf").post(f"jobs/{top.id}/cancel").json()["status"] == "CANCELED"
    assert other.refresh().status is Status.CANCELED


def test_a_retry_is_given_up_and_a_bulk_action_stopped_only_with_a_right_to_all_that_end_with_it(
    api: Api, scheduler: Scheduler
) -> None:
    retried = scheduler.run_job(Broken, retry=1, retry_interval="1h", queue="mail")
    scheduler.run_job(Broken, retry=0, queue="mail")
    mia = api("mia")
    failed: dict[str, Any] = {"status": "FAILED", "queue": "mail"}
    assert mia.post("bulk", json={"name": "again", "query": failed}).status_code == 201
    scheduler.add_job(MAIL, queue="other", depends_on=[retried])
    matching = {"action": "give-up", "query": {"queue": "mail"}, "confirm": True}

    assert problem(mia.post(f"jobs/{retried.id}/give-up")) == REFUSED
    assert problem(mia.post("jobs/matching", json=matching)) == REFUSED
    assert retried.refresh().status is Status.POSTPONED
    [copy] = scheduler.get_jobs({"queue": "mail", "status": "WAITING"})
    scheduler.add_job(MAIL, queue="other", parent=copy)
    assert problem(mia.post("bulk/again/stop")) == REFUSED
    assert copy.refresh().status is Status.WAITING
    assert scheduler.count_jobs({"queue": "other", "status": "CANCELED"}) == 0
    olaf = api("olaf")
    assert olaf.post(f"jobs/{retried.id}/give-up").json()["status"] == "FAILED"
    assert olaf.post("bulk/again/stop").status_code == 200
    assert scheduler.count_jobs({"queue": "other", "status": "CANCELED"}) == 2


def test_what_ends_with_a_job_in_the_same_queue_or_goes_on_without_it_hinders_nobody(
    api: Api, scheduler: Scheduler
) -> None:
    top = scheduler.add_job(MAIL, queue="mail")
    scheduler.add_job(MAIL, queue="mail", parent=top)
    scheduler.add_job(MAIL, queue="mail", depends_on=[top])
    stays = scheduler.add_job(MAIL, queue="other", depends_on=[top], on_dependency_failure="ignore")
    scheduler.cancel_job(scheduler.add_job(MAIL, queue="other", parent=top).id)

    assert api("mia").post(f"jobs/{top.id}/cancel").json()["status"] == "CANCELED"
    assert stays.refresh().status.is_pending
    assert scheduler.count_jobs({"queue": "mail", "status": "CANCELED"}) == 3


SIMPLE = {"string": "TEXT", "integer": 5, "boolean": True, "object": {}, "array": []}
"""A value for each type of which a schema gives no example."""


def example(schema: Mapping[str, Any]) -> Any:
    """Return a value that keeps to the schema: of an object its least keys."""
    if "examples" in schema or "enum" in schema:
        return schema.get("examples", schema.get("enum"))[0]
    if "properties" not in schema:
        return SIMPLE[schema["type"] if isinstance(schema["type"], str) else schema["type"][0]]
    least = schema["required"] or list(schema["properties"])[-1:] * schema.get("minProperties", 0)
    return {name: example(schema["properties"][name]) for name in least}


def status_of(client: TestClient, route: ApiRoute, path: str, token: str) -> int:
    """Return the status of a request that keeps to the schemas of the operation."""
    given = {param.name: (param.place, example(param.schema)) for param in route.params if "examples" in param.schema}
    headers = {name: value for name, (place, value) in given.items() if place == "header"}
    query = {name: value for name, (place, value) in given.items() if place == "query"}
    body = None if route.body is None else example(route.body.schema)
    if route.name == "define_schedule":  # its schema cannot say that one of the ways to give times is required
        body = {**(body or {}), "every": "5m"}
    headers["authorization"] = f"Bearer {token}"
    return client.request(route.method, f"/api/v1{path}", params=query, headers=headers, json=body).status_code


def test_each_operation_is_open_to_the_users_that_it_names(
    browser: MakeBrowser, scheduler: Scheduler, people: tuple[Path, dict[str, str]]
) -> None:
    users, tokens = people
    ended = scheduler.run_job(Broken, retry=0)
    scheduler.schedule("nightly", "shop:Report", cron="0 3 * * *", queue="reports")
    client = browser(users=users, hosts=[HOST], addable=["shop.jobs:MailJob", "shop.jobs:ReportJob"])

    for route in ROUTES:
        if route.name == "follow_events":  # its answer has no end
            continue
        path = route.path.format(id=ended.id, name="nightly")
        statuses = {name: status_of(client, route, path, token) for name, token in tokens.items()}
        assert statuses["olaf"] in (200, 201, *route.statuses), route.name
        assert (statuses["rita"] == 403) is (route.users != "all users"), route.name
        if route.users == "operators of all queues":
            assert statuses["mia"] == 403, route.name
