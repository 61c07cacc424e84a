"""Each operation by each user: it is refused and changes nothing, or it is done and in the audit once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler
from taskqueue.model.fingerprint import group_id
from taskqueue.model.ids import id_of_text
from taskqueue.scheduler import bulk_actions
from taskqueue.scheduler.operations import OPERATIONS, AnyOperation, Target
from taskqueue.web import app
from taskqueue.web.api import ROUTES
from taskqueue.web.pages import PAGES
from taskqueue.web.users import Role, User, UsersFile, account, with_new_token
from taskqueue.web.view import path_of
from tests.web import jobs
from tests.web.conftest import HOST

MAIL = f"{jobs.__name__}:Mail"
WAITING, ENDED, RETRIED, MEMBER = "a" * 24, "e" * 24, "b" * 24, "c" * 24
SENT = {"password": "hunter2"}
END_OF_TIME = "4102444800000"

BROKEN = group_id(f"{jobs.__name__}:Invoice", 'KeyError: …owned\\…owned\\… (raise KeyError(f"price {HOSTILE}"))')
"""The id of the failure of the job that failed."""

PEOPLE = {
    "nobody": None,
    "reader": User(name="reader", unmask=False),
    "other": User(name="other", role=Role.OPERATOR, queues=("other",)),
    "mail": User(name="mail", role=Role.OPERATOR, queues=("mail",)),
    "all": User(name="all", role=Role.OPERATOR, unmask=True),
}
"""A user of each role; the jobs and the schedule of the store have the queue mail."""

OF_MAIL, OF_ALL = ("mail", "all"), ("all",)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for an operation, the users who may make it, and its entry in the audit."""

    route: str
    """The method and the path of the route, in which an id is that of the job that waits."""
    id: str = WAITING
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    action: str
    target: str
    may: tuple[str, ...] = OF_MAIL
    is_narrowed: bool = False
    """Whether an operator of another queue may do it, to the jobs of that queue: here to none."""


def of_declared(operation: AnyOperation, *, is_page: bool) -> Request:
    """Return the request for a declared operation."""
    is_of_queue = operation.target is Target.QUEUE
    of_release = "v42" if operation.undone_by else "v41"
    name = {Target.QUEUE: "mail", Target.NODE: "web-1", Target.FAILURE: BROKEN, Target.RELEASE: of_release}[
        operation.target
    ]
    path = path_of(operation) if is_page or is_of_queue else f"/{operation.target}s/{{name}}/{operation.verb}"
    return Request(
        route=f"POST {path}",
        body={operation.target.value: name} if is_page or is_of_queue else {},
        action=operation.name,
        target=name,
        may=OF_MAIL if is_of_queue else OF_ALL,
    )


NIGHTLY = [("trigger", "trigger"), ("pause", "pause schedule"), ("resume", "resume schedule")]
SCHEDULES = [
    Request(route=f"POST /schedules/{{name}}/{name}", action=action, target="nightly") for name, action in NIGHTLY
]

DEFINED = {"job": MAIL, "every": "2h", "queue": "mail"}

BULK = [
    Request(route="POST /bulk/{name}/rest", action="continue bulk action", target="fix"),
    Request(route="POST /bulk/{name}/stop", action="stop bulk action", target="fix"),
]

OVER_HTTP = [
    *(of_declared(operation, is_page=False) for operation in OPERATIONS.values()),
    *SCHEDULES,
    Request(
        route="POST /jobs",
        body={"job": MAIL, "queue": "mail", "id": "new"},
        action="add",
        target=str(id_of_text(MAIL, "new")),
    ),
    Request(route="PUT /schedules/{name}", body=DEFINED, action="schedule", target="nightly"),
    Request(route="DELETE /schedules/{name}", action="remove schedule", target="nightly"),
    Request(route="GET /jobs/{id}", query={"unmask": "true"}, action="unmask", target=WAITING, may=OF_ALL),
    Request(route="PATCH /jobs/{id}", body={"priority": 3}, action="update", target=WAITING),
    Request(route="POST /jobs/{id}/cancel", action="cancel", target=WAITING),
    Request(route="POST /jobs/{id}/give-up", id=RETRIED, action="give up", target=RETRIED),
    Request(route="POST /workflows/{id}/run-again", id=MEMBER, action="run failed part again", target=MEMBER),
    Request(route="POST /jobs/{id}/run-again", id=ENDED, action="run again", target=ENDED),
    *(
        Request(
            route="POST /jobs/matching",
            body={"action": name, "query": {}, "confirm": True},
            action=action,
            target="jobs",
            is_narrowed=True,
        )
        for name, action in (
            ("cancel", "cancel"),
            ("run-again", "run again"),
            ("start-now", "start now"),
            ("give-up", "give up"),
        )
    ),
    Request(
        route="POST /bulk",
        body={"name": "new", "query": {}},
        action="begin bulk action",
        target="new",
        is_narrowed=True,
    ),
    *BULK,
    Request(route="POST /limits", body={"name": "api", "limit": 3}, action="limit", target="api", may=OF_ALL),
]

ON_PAGES = [
    *(of_declared(operation, is_page=True) for operation in OPERATIONS.values()),
    *SCHEDULES,
    Request(
        route="POST /define-schedule",
        body={"was": "nightly", "every": "2h", "confirm": "yes"},
        action="schedule",
        target="nightly",
    ),
    Request(route="POST /schedules/{name}/remove", action="remove schedule", target="nightly"),
    Request(route="POST /jobs/{id}/unmask", action="unmask", target=WAITING, may=OF_ALL),
    Request(
        route="POST /jobs/{id}/change",
        body={"priority": "3", "queue": "mail", "confirm": "yes"},
        action="update",
        target=WAITING,
    ),
    Request(route="POST /jobs/{id}/edit", id=ENDED, body={"data": "{}"}, action="run again", target=ENDED),
    Request(route="POST /jobs/{id}/cancel", action="cancel", target=WAITING),
    Request(route="POST /jobs/{id}/now", id=RETRIED, action="update", target=RETRIED),
    Request(route="POST /jobs/{id}/give-up", id=RETRIED, action="give up", target=RETRIED),
    Request(route="POST /workflows/{id}/failed-part", id=MEMBER, action="run failed part again", target=MEMBER),
    Request(route="POST /jobs/{id}/again", id=ENDED, action="run again", target=ENDED),
    *(
        Request(
            route="POST /jobs/matching",
            body={"action": name, "at": END_OF_TIME},
            action=action,
            target="jobs",
            is_narrowed=True,
        )
        for name, action in (("cancel", "cancel"), ("again", "run again"), ("now", "start now"), ("give-up", "give up"))
    ),
    Request(
        route="POST /bulk",
        body={"name": "new", "at": END_OF_TIME},
        action="begin bulk action",
        target="new",
        is_narrowed=True,
    ),
    *BULK,
    Request(
        route="POST /limits/change",
        body={"of": "limit:name=api", "count": "3"},
        action="limit",
        target="api",
        may=OF_ALL,
    ),
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a file of users, and the token of each."""
    path, accounts, tokens = tmp_path_factory.mktemp("users") / "users.json", {}, {}
    for user in filter(None, PEOPLE.values()):
        accounts[user.name], tokens[user.name] = with_new_token(account(user, None))
    UsersFile(path).change(accounts)
    return path, tokens


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store on which each operation changes something."""
    path = tmp_path_factory.mktemp("store") / "jobs.db"
    with Scheduler(f"sqlite://{path}") as scheduler:
        scheduler.run_job(jobs.Mail, {}, id="f" * 24)
        scheduler.run_job(jobs.Mail, {}, id=ENDED)
        plan = bulk_actions.plan_of(scheduler, {"first": 1, "rate": None, "queue": None, "at": "+1 hour"})
        bulk_actions.begin(scheduler, "fix", {"job": MAIL}, plan, "setup", ["mail"])
        scheduler.run_job(jobs.Invoice, id=RETRIED, queue="mail", retry=1, retry_interval="1h")
        scheduler.run_job(jobs.Invoice, id=MEMBER, queue="mail", tags=f"workflow:{MEMBER}")
        scheduler.add_job(jobs.Mail, SENT, id=WAITING)
        scheduler.schedule("nightly", jobs.Mail, every="1d", queue="mail").pause("setup")
        scheduler.pause("mail", by="setup")
        scheduler.drain("web-1", by="setup")
        scheduler.run_job(jobs.Invoice)
        scheduler.resolve(BROKEN, by="setup")
        scheduler.mark_release("v41", by="setup")
    return path


@contextmanager
def asked(users: Path, token: str | None, request: Request, store: Path, prefix: str) -> Iterator[tuple[int, Any]]:
    """Make the request on a copy of the store, and yield the status of the answer and the scheduler."""
    copied = store.with_name("copy.db")
    shutil.copy(store, copied)
    method, path = request.route.split(" ")
    name = next((name for part, name in NAMES.items() if path.startswith(part)), request.target)
    values: dict[str, Any] = {"json" if prefix else "data": request.body} if request.body else {}
    with Scheduler(f"sqlite://{copied}") as scheduler:
        site = app(scheduler, users=users, hosts=[HOST], addable=[MAIL])
        with TestClient(site, base_url=f"https://{HOST}", follow_redirects=False) as client:
            address = f"{prefix}{path.format(id=request.id, name=name)}"
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = client.request(method, address, params=request.query, headers=headers, **values)
        yield answer.status_code, scheduler


NAMES = {"/schedules": "nightly", "/nodes": "web-1", "/failures": BROKEN, "/bulk": "fix"}
"""The name in a path that begins so."""


def state(scheduler: Scheduler) -> list[object]:
    """Return all that an operation can change."""
    records = [process.snapshot for process in scheduler.get_jobs()]
    decisions = scheduler.overview_reader().read().decisions
    marks = scheduler.releases()
    return [
        *scheduler.controls(),
        *decisions,
        *marks,
        *records,
        *(schedule.snapshot for schedule in scheduler.get_schedules()),
    ]


def check(tokens: tuple[Path, dict[str, str]], request: Request, store: Path, prefix: str) -> None:
    """Check that the request is refused or done, for each user."""
    users, known = tokens
    with Scheduler(f"sqlite://{store}") as scheduler:
        before = state(scheduler)

    for person in PEOPLE:
        with asked(users, known.get(person), request, store, prefix) as (status, scheduler):
            entries, after = scheduler.audit(), state(scheduler)
        said = [(entry.by, entry.action, entry.target) for entry in entries]
        if person in request.may:
            assert (status < 400, said) == (True, [(person, request.action, request.target)]), (person, status)
            assert (after == before) is (request.action == "unmask"), person
        elif person == "other" and request.is_narrowed:
            assert (status < 400, said) == (True, [(person, request.action, request.target)]), (person, status)
            assert all(one in after for one in before), person
        else:
            refused = 403 if person != "nobody" else 401 if prefix else 303  # to the login
            assert (status, said, after) == (refused, [], before), person


@pytest.mark.parametrize("request_", OVER_HTTP, ids=lambda request: f"{request.route} {request.action}")
def test_over_http_each_operation_is_refused_or_done_once(
    tokens: tuple[Path, dict[str, str]], store: Path, request_: Request
) -> None:
    check(tokens, request_, store, "/api/v1")


@pytest.mark.parametrize("request_", ON_PAGES, ids=lambda request: f"{request.route} {request.action}")
def test_on_pages_each_operation_is_refused_or_done_once(
    tokens: tuple[Path, dict[str, str]], store: Path, request_: Request
) -> None:
    check(tokens, request_, store, "")


def test_metrics_are_for_every_user_and_for_nobody_else(tokens: tuple[Path, dict[str, str]], store: Path) -> None:
    request = Request(route="GET /metrics", action="", target="")

    for person in PEOPLE:
        with asked(tokens[0], tokens[1].get(person), request, store, "/api/v1") as (status, _):
            assert status == (401 if person == "nobody" else 200), person


def test_every_operation_is_asked_for() -> None:
    assert {request.route for request in OVER_HTTP} == {
        "GET /jobs/{id}",
        *(f"{route.method} {route.path}" for route in ROUTES if route.method != "GET"),
    }
    assert {request.route for request in ON_PAGES} == {
        f"{page.method} {page.path}" for page in PAGES if page.method != "GET"
    }
