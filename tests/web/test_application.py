"""Who gets in, and who does not: logins, headers of proxies, local use, and what must not be believed."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import AsyncScheduler, Scheduler
from taskqueue.errors import ConfigError
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.record import Holder
from taskqueue.model.secret_keys import MASK
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.application import application
from taskqueue.web.masking import Masking
from taskqueue.web.problems import Problem
from taskqueue.web.settings import settings_from
from taskqueue.web.users import Role, User, UsersFile, account, with_new_token
from taskqueue.web.viewers import IDLE_FOR, LASTS, Sessions
from tests.nodes import LIMIT
from tests.web.conftest import HOST, PASSWORD, MakeBrowser, csrf_of, log_in


def test_a_dashboard_that_would_be_open_to_everybody_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(ConfigError, match="refusing to start without authentication: pass a file of users"):
        app(scheduler)


def test_the_threads_of_an_application_end_with_it_and_come_back_when_it_starts_again(scheduler: Scheduler) -> None:
    made = app(scheduler, local=True)

    def mine() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name.startswith("taskqueue-web") and one not in before]

    for _ in range(2):
        before = {*threading.enumerate()}
        with TestClient(made, base_url="http://localhost", client=("127.0.0.1", 5000)) as client:
            assert client.get("/").status_code == 200
            threads = mine()
        assert threads
        for thread in threads:
            thread.join(LIMIT)
        assert mine() == []


def test_a_dashboard_opens_a_store_that_was_replaced(tmp_path: Path) -> None:
    file, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
    with Scheduler(str(backup)) as other:
        restored = other.add_job("app:Restored")
    schedulers = [Scheduler(str(file))]
    schedulers[0].add_job("app:Lost")

    def open_anew() -> Scheduler:
        schedulers.pop().close()
        schedulers.append(Scheduler(str(file)))
        return schedulers[0]

    made = application(schedulers[0], settings_from(local=True), open_anew)
    with TestClient(made, base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        assert "app:Lost" in client.get("/jobs").text
        assert client.get("/").status_code == 200
        backup.rename(file)

        answer = client.get("/api/v1/jobs")

        assert answer.status_code == 503
        assert "was replaced while it was open" in answer.json()["detail"]
        assert answer.json()["detail"].endswith("repeat the request: the dashboard now uses the new one")
        assert [one["id"] for one in client.get("/api/v1/jobs").json()["jobs"]] == [str(restored.id)]
        assert "app:Restored" in client.get("/jobs").text
        assert client.get("/").status_code == 200
    schedulers[0].close()


def test_a_page_leads_to_the_login_and_back(browser: MakeBrowser) -> None:
    client = browser()

    asked = client.get("/?tab=a b")

    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/%3Ftab%3Da%2520b")
    assert PASSWORD not in client.get(asked.headers["location"]).text
    done = client.post("/login", data={"name": "rita", "password": PASSWORD, "next": "/?tab=a%20b"})
    assert (done.status_code, done.headers["location"]) == (303, "/?tab=a%20b")
    assert "rita" in client.get("/").text


@pytest.mark.parametrize(
    "next_path", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nx: y"]
)
def test_the_login_leads_to_no_other_site(browser: MakeBrowser, next_path: str) -> None:
    done = browser().post("/login", data={"name": "rita", "password": PASSWORD, "next": next_path})

    assert done.headers["location"] == "/"


@pytest.mark.parametrize(("name", "password"), [("rita", "wrong horse"), ("nobody", PASSWORD), ("", "")])
def test_a_wrong_login_says_not_what_was_wrong(browser: MakeBrowser, name: str, password: str) -> None:
    client = browser()

    refused = client.post("/login", data={"name": name, "password": password})

    assert refused.status_code == 401
    assert "name or password is wrong" in refused.text
    assert "set-cookie" not in refused.headers
    assert client.get("/").status_code == 303


def test_the_cookie_is_for_this_site_and_no_script(browser: MakeBrowser) -> None:
    answer = browser().post("/login", data={"name": "rita", "password": PASSWORD})

    assert {"HttpOnly", "Secure", "SameSite=lax", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))


def test_a_login_takes_no_session_that_somebody_else_chose(browser: MakeBrowser) -> None:
    client = browser()
    client.cookies.set("taskqueue_session", "chosen", domain=HOST)

    log_in(client)

    ids = [cookie.value for cookie in client.cookies.jar if cookie.name == "taskqueue_session"]
    assert "chosen" not in ids[-1:]
    other = browser()
    other.cookies.set("taskqueue_session", "chosen", domain=HOST)
    assert other.get("/").status_code == 303


def test_a_logout_ends_the_session_also_for_who_kept_its_cookie(browser: MakeBrowser) -> None:
    client = browser()
    token = log_in(client)
    kept = client.cookies["taskqueue_session"]

    assert client.post("/logout", data={"csrf": token}).headers["location"] == "/login"

    client.cookies.set("taskqueue_session", kept, domain=HOST)
    assert client.get("/").status_code == 303


def test_a_logout_that_another_site_sends_is_refused(browser: MakeBrowser) -> None:
    client = browser()
    token = log_in(client)

    assert client.post("/logout", data={}).status_code == 403
    assert client.post("/logout", data={"csrf": token}, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get("/").status_code == 200


def test_a_login_that_another_site_sends_is_refused(browser: MakeBrowser) -> None:
    login = {"name": "rita", "password": PASSWORD}

    assert browser().post("/login", data=login, headers={"origin": "https://evil.example"}).status_code == 403
    assert browser().post("/login", data=login, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_proxy_that_is_not_named_is_said_to_be(scheduler: Scheduler, people: tuple[Path, dict[str, str]]) -> None:
    made = app(scheduler, users=people[0], hosts=[HOST])
    with TestClient(made, base_url=f"http://{HOST}") as client:
        refused = client.post("/login", data={"name": "rita"}, headers={"origin": f"https://{HOST}"})

    assert refused.status_code == 403
    assert "name the proxy with --proxy" in refused.text


def test_an_error_that_nobody_foresaw_shows_nothing_of_itself(url: str, people: tuple[Path, dict[str, str]]) -> None:
    class Broken(Scheduler):
        def overview_reader(self) -> OverviewReader:
            raise RuntimeError("the secret is 42")

    with Broken(url) as broken:
        made = app(broken, users=people[0], hosts=[HOST])
        bearer = {"authorization": f"Bearer {people[1]['rita']}"}
        with TestClient(made, base_url=f"https://{HOST}", raise_server_exceptions=False) as client:
            for path in ("/api/v1/stats",):
                answer = client.get(path, headers=bearer)
                assert (answer.status_code, "42" in answer.text) == (500, False)
                assert answer.json()["type"] == "urn:taskqueue:problem:internal-error"
                assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_failed_logins_are_counted(browser: MakeBrowser) -> None:
    client = browser()
    tried = [client.post("/login", data={"name": "rita", "password": "guess"}).status_code for _ in range(11)]

    assert tried == [401] * 10 + [429]
    refused = client.post("/login", data={"name": "rita", "password": PASSWORD})
    assert (refused.status_code, int(refused.headers["retry-after"]) <= 301) == (429, True)


def test_wrong_passwords_from_elsewhere_lock_no_user_out_of_a_usual_address(
    url: str, people: tuple[Path, dict[str, str]]
) -> None:
    with Scheduler(url) as scheduler:
        made = app(scheduler, users=people[0], hosts=[HOST])

        def log_in(address: str, password: str) -> int:
            headers = {"origin": f"https://{HOST}"}
            client = TestClient(made, f"https://{HOST}", client=(address, 1), headers=headers, follow_redirects=False)
            return client.post("/login", data={"name": "rita", "password": password}).status_code

        with TestClient(made):
            assert log_in("192.0.2.1", PASSWORD) == 303
            assert [log_in(f"203.0.113.{number}", "guess") for number in range(11)] == [401] * 10 + [429]
            assert log_in("198.51.100.7", PASSWORD) == 429
            assert log_in("192.0.2.1", PASSWORD) == 303


def test_the_header_of_a_proxy_is_believed_from_that_proxy_alone(browser: MakeBrowser) -> None:
    settings = {"header": "X-Remote-User", "proxies": ["198.51.100.0/24"], "hosts": [HOST]}
    named = {"x-remote-user": "ines"}

    behind = browser(client=("198.51.100.7", 1), **settings)
    assert "ines" in behind.get("/", headers=named).text
    assert behind.get("/").status_code == 401
    assert behind.get("/", headers=[("x-remote-user", "ines"), ("x-remote-user", "root")]).status_code == 401
    assert browser(client=("203.0.113.9", 1), **settings).get("/", headers=named).status_code == 401


def test_the_password_that_a_proxy_has_asked_for_is_no_token(browser: MakeBrowser) -> None:
    behind = browser(client=("198.51.100.7", 1), header="X-Remote-User", proxies=["198.51.100.7"], hosts=[HOST])
    passed_on = {"x-remote-user": "ines", "authorization": "Basic aW5lczpzZWNyZXQ="}

    assert behind.get("/api/v1/session", headers=passed_on).json()["user"] == "ines"
    assert behind.get("/", headers={"authorization": passed_on["authorization"]}).status_code == 401


def test_local_use_is_for_this_host_alone(browser: MakeBrowser) -> None:
    assert browser(client=("127.0.0.1", 1), local=True, hosts=[HOST]).get("/").status_code == 200
    assert browser(client=("203.0.113.9", 1), local=True, hosts=[HOST]).get("/").status_code == 401


@pytest.mark.parametrize("path", ["/", "/jobs", "/api/v1/session", "/login", "/nothing"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Forwarded-For", "203.0.113.9"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-For", ""),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", HOST),
        ("X-Forwarded-Prefix", "/jobs"),
        ("Forwarded", "for=203.0.113.9"),
        ("Via", "1.1 vegur"),
        ("X-Real-IP", "203.0.113.9"),
    ],
)
def test_local_use_is_for_nobody_who_comes_through_a_proxy(
    browser: MakeBrowser, path: str, name: str, value: str
) -> None:
    refused = browser(client=("127.0.0.1", 1), local=True, hosts=[HOST]).get(path, headers={name: value})

    assert (refused.status_code, refused.json()["type"]) == (403, "urn:taskqueue:problem:proxied")
    detail = refused.json()["detail"]
    assert name.lower() in detail
    assert all(option in detail for option in ("--users", "--proxy"))


def test_a_proxy_of_local_use_is_refused_under_every_host_name(
    browser: MakeBrowser,
) -> None:
    local = browser(client=("127.0.0.1", 1), local=True)

    assert local.get("/", headers={"via": "1.1 proxy"}).json()["type"] == "urn:taskqueue:problem:proxied"


def test_users_may_come_through_a_proxy(browser: MakeBrowser) -> None:
    client = browser(client=("127.0.0.1", 1))

    for name in ("x-forwarded-for", "forwarded", "via"):
        assert client.get("/login", headers={name: "203.0.113.9"}).status_code == 200


def test_local_use_has_no_trusted_proxies(scheduler: Scheduler) -> None:
    with pytest.raises(ConfigError, match=r"and proxies such as 127\.0\.0\.1 admit others: pass users or a header"):
        app(scheduler, local=True, proxies=["127.0.0.1"])


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"{HOST}.evil.example", "", f"{HOST}@evil.example", "[::1", "[::1]x", f"evil.example:{HOST}"],
)
def test_other_hosts_are_refused(browser: MakeBrowser, host: str) -> None:
    refused = browser().get("/login", headers={"host": host})

    assert refused.status_code == 400
    assert refused.json()["type"] == "urn:taskqueue:problem:unknown-host"


def test_a_host_may_have_a_port(browser: MakeBrowser) -> None:
    assert browser().get("/login", headers={"host": f"{HOST}:8443"}).status_code == 200


def test_every_answer_forbids_inline_scripts_and_frames(browser: MakeBrowser) -> None:
    client = browser()
    for answer in (client.get("/login"), client.get("/nothing"), client.get("/login", headers={"host": "evil"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_large_bodies_are_refused(browser: MakeBrowser) -> None:
    client = browser()
    assert client.post("/login", content=b"x" * 1_048_577).status_code == 413
    chunks = (b"a" * 300_000 for _ in range(4))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/login", content=chunks, headers=form).status_code == 413


def test_large_heads_are_refused_before_anything_reads_them(browser: MakeBrowser) -> None:
    client = browser()
    for path, headers in (
        ("/login", {"cookie": "; ".join(f"a{number}=1" for number in range(3000))}),
        ("/login", {f"x-{number}": "1" * 100 for number in range(200)}),
        ("/jobs?query=" + "x" * 17_000, {}),
    ):
        refused = client.get(path, headers=headers)
        assert refused.status_code == 431
        assert "the address and the headers are" in refused.text
    assert client.get("/login", headers={"cookie": "a=" + "1" * 15_000}).status_code == 200


def test_a_client_that_leaves_amid_its_request_is_no_error(scheduler: Scheduler, people: tuple[Path, Any]) -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(f"{message} was sent to nobody")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    asyncio.run(app(scheduler, users=people[0])(scope, receive, send))


def test_a_length_that_no_body_has_is_refused(browser: MakeBrowser) -> None:
    assert browser().post("/login", headers={"content-length": "9" * 5000}).status_code == 400


@pytest.mark.parametrize("path", ["/jobs", "/jobs/matching"])
def test_pages_search_for_no_masked_values(browser: MakeBrowser, path: str) -> None:
    client = browser()
    log_in(client, "mia")

    page = client.get(path, params={"action": "cancel", "q": '{"data.password": "hunter2"}'})

    assert "data.password is masked" in page.text


def test_static_files_are_kept_by_browsers_and_nothing_else_is_served(browser: MakeBrowser) -> None:
    client = browser()
    page = client.get("/login").text
    path = page.partition('<link rel="stylesheet" href="')[2].partition('"')[0]

    assert "immutable" in client.get(path).headers["cache-control"]
    assert client.get("/static/old/style.css").headers["cache-control"] == "no-cache"
    for name in ("../application.py", "..%2fapplication.py", "%2e%2e/settings.py", "/etc/passwd", "nothing.css"):
        assert client.get(f"/static/x/{name}").status_code == 404


def test_it_can_be_mounted_below_a_path(scheduler: Scheduler, people: tuple[Path, dict[str, str]]) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    mounted = Starlette(routes=[Mount("/jobs", app(scheduler, users=people[0], hosts=[HOST]))])
    with TestClient(mounted, base_url=f"https://{HOST}", follow_redirects=False) as client:
        asked = client.get("/jobs/")
        assert asked.headers["location"] == "/jobs/login?next=/"
        done = client.post("/jobs/login", data={"name": "rita", "password": PASSWORD, "next": "/"})
        assert (done.headers["location"], "Path=/jobs" in done.headers["set-cookie"]) == ("/jobs/", True)
        assert 'href="/jobs/static/' in client.get("/jobs/").text
        assert client.get("/jobs/nothing").status_code == 404


@pytest.mark.parametrize(("peer", "root"), [("10.0.0.1", "/tools"), ("203.0.113.9", "")])
def test_the_prefix_of_a_proxy_is_believed_from_that_proxy_alone(
    browser: MakeBrowser, people: tuple[Path, dict[str, str]], peer: str, root: str
) -> None:
    client = browser(client=(peer, 1), users=people[0], proxies=["10.0.0.1"], hosts=[HOST])
    headers = {"x-forwarded-prefix": "/tools/"}

    asked = client.get("/jobs?queue=mail", headers=headers)
    done = client.post("/login", data={"name": "rita", "password": PASSWORD, "next": "/jobs"}, headers=headers)
    document = client.get(
        "/api/v1/openapi.json", headers={**headers, "authorization": f"Bearer {people[1]['rita']}"}
    ).json()
    missing = client.get("/api/v1/nothing", headers=headers).json()

    assert asked.headers["location"] == f"{root}/login?next=/jobs%3Fqueue%3Dmail"
    assert done.headers["location"] == f"{root}/jobs"
    assert f"Path={root or '/'}" in done.headers["set-cookie"].split("; ")
    assert document["servers"] == [{"url": f"{root}/api/v1"}]
    assert missing["detail"] == (
        f"there is no operation at '{root}/api/v1/nothing': {root}/api/v1/openapi.json lists them all"
    )


def test_the_prefix_of_a_proxy_comes_before_the_path_of_the_dashboard(
    scheduler: Scheduler, people: tuple[Path, dict[str, str]]
) -> None:
    settings = replace(settings_from(users=people[0], proxies=["10.0.0.1"], hosts=[HOST]), path="/jobs")
    made = application(scheduler, settings)
    with TestClient(made, base_url=f"https://{HOST}", client=("10.0.0.1", 1), follow_redirects=False) as client:
        headers = {"x-forwarded-prefix": "/tools"}
        assert client.get("/jobs/", headers=headers).headers["location"] == "/tools/jobs/login?next=/"
        assert client.get("/jobs", headers=headers).headers["location"] == f"https://{HOST}/tools/jobs/"
        assert "the dashboard is below /tools/jobs/" in client.get("/", headers=headers).json()["detail"]


@pytest.mark.parametrize(
    ("prefixes", "reason"),
    [
        (["//evil.example"], "X-Forwarded-Prefix is wrong: path '//evil.example' is not a URL path"),
        (["jobs"], "path 'jobs' is not a URL path"),
        (["/jobs, /tools"], "path '/jobs, /tools' is not a URL path"),
        (["/../admin"], "path '/../admin' is not a URL path"),
        (['/"onload="x'], "is not a URL path"),
        (["/jobs", "/tools"], "X-Forwarded-Prefix is given more than once"),
    ],
)
def test_a_prefix_that_is_no_path_is_refused(
    browser: MakeBrowser, people: tuple[Path, dict[str, str]], prefixes: list[str], reason: str
) -> None:
    client = browser(client=("10.0.0.1", 1), users=people[0], proxies=["10.0.0.1"], hosts=[HOST])

    refused = client.get("/", headers=[("x-forwarded-prefix", prefix) for prefix in prefixes])

    assert (refused.status_code, reason in refused.json()["detail"]) == (400, True), refused.text
    assert "content-security-policy" in refused.headers


def test_it_takes_a_scheduler_of_asyncio(url: str, people: tuple[Path, dict[str, str]]) -> None:
    import asyncio

    scheduler = AsyncScheduler(url)
    made = app(scheduler, users=people[0], hosts=[HOST])
    with TestClient(made, base_url=f"https://{HOST}", follow_redirects=False) as client:
        log_in(client)
        assert csrf_of(client)
    asyncio.run(scheduler.close())


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8::7]:4711, 10.0.0.9:80", "2001:db8::7"),
    ],
)
def test_the_audit_has_the_address_that_a_trusted_proxy_saw(
    browser: MakeBrowser,
    scheduler: Scheduler,
    people: tuple[Path, dict[str, str]],
    peer: str,
    forwarded: str,
    source: str,
) -> None:
    client = browser(client=(peer, 1), users=people[0], proxies=["10.0.0.0/8"], hosts=[HOST])
    headers = {"authorization": f"Bearer {people[1]['olaf']}", "x-forwarded-for": forwarded, "x-real-ip": "6.6.6.6"}

    assert client.post("/api/v1/queues/pause", json={"queue": "mail"}, headers=headers).status_code == 200

    assert [entry.source for entry in scheduler.audit()] == [source]


def test_the_scheme_of_a_proxy_is_believed_from_that_proxy_alone(
    scheduler: Scheduler, people: tuple[Path, dict[str, str]]
) -> None:
    login = {"name": "rita", "password": PASSWORD}
    made = app(scheduler, users=people[0], proxies=["10.0.0.1"], hosts=[HOST])
    for peer, is_secure in (("10.0.0.1", True), ("203.0.113.9", False)):
        with TestClient(made, base_url=f"http://{HOST}", client=(peer, 1), follow_redirects=False) as client:
            answer = client.post("/login", data=login, headers={"x-forwarded-proto": "https"})
            assert ("Secure" in answer.headers["set-cookie"].split("; ")) is is_secure


def test_text_of_a_request_adds_no_header_and_no_markup(browser: MakeBrowser) -> None:
    client = browser()
    log_in(client)
    for path in ("/%0d%0aset-cookie:%20x=1", "/<script>alert(1)</script>", "/jobs/%3Cscript%3E", "/?x=%0d%0ay"):
        answer = client.get(path)
        assert "x=1" not in answer.headers.get("set-cookie", "")
        assert "<script>" not in answer.text.replace("<script src=", "")
    refused = client.post("/login", data={"name": "<script>", "password": "<script>x", "next": '"><script>'})
    assert "<script>x" not in refused.text
    assert '"><script>' not in refused.text


def test_a_user_who_is_removed_or_changed_is_so_at_once(browser: MakeBrowser, tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users.json")
    known, token = with_new_token(account(User(name="ana", role=Role.OPERATOR), PASSWORD))
    file.change({"ana": known})
    client = browser(users=file.path, hosts=[HOST])
    log_in(client, "ana")
    bearer = {"authorization": f"Bearer {token}"}
    assert client.get("/api/v1/session", headers=bearer).json()["role"] == "operator"

    file.change({"ana": replace(known, user=User(name="ana"))})
    assert client.get("/api/v1/session").json()["role"] == "reader"
    file.change({"bob": known})
    assert client.get("/api/v1/session").status_code == 401


def test_a_digest_of_any_text_in_the_file_is_no_token(browser: MakeBrowser, tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users.json")
    known, token = with_new_token(account(User(name="ana"), PASSWORD))
    file.change({"ana": replace(known, tokens=("ä", *known.tokens))})

    client = browser(users=file.path, hosts=[HOST])
    assert client.get("/api/v1/session", headers={"authorization": f"Bearer {token}"}).status_code == 200


def test_a_new_password_ends_the_sessions_of_the_old_one(browser: MakeBrowser, tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users.json")
    file.change({"ana": account(User(name="ana"), PASSWORD)})
    client = browser(users=file.path, hosts=[HOST])
    log_in(client, "ana")

    file.change({"ana": account(User(name="ana"), PASSWORD * 2)})
    assert client.get("/api/v1/session").status_code == 401


def test_a_user_of_a_name_that_another_had_gets_no_session_of_the_other(browser: MakeBrowser, tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users.json")
    ana, bob = account(User(name="ana"), PASSWORD), account(User(name="bob"), PASSWORD)
    file.change({"ana": ana, "bob": bob})
    client = browser(users=file.path, hosts=[HOST])
    log_in(client, "ana")

    file.change({"bob": bob})
    assert client.get("/api/v1/session").status_code == 401
    file.change({"ana": ana, "bob": bob})
    assert client.get("/api/v1/session").status_code == 401


def test_the_page_of_a_job_shows_its_meta_and_one_with_secrets_is_not_asked_for_again(
    browser: MakeBrowser, scheduler: Scheduler
) -> None:
    process = scheduler.add_job("shop:Mail", meta={"tenant": "acme-7", "token": "t-secret"})
    client = browser()
    csrf = log_in(client)

    masked = client.get(f"/jobs/{process.id}").text
    unmasked = client.post(f"/jobs/{process.id}/unmask", data={"csrf": csrf}).text

    assert "acme-7" in masked
    assert "t-secret" not in masked
    assert "data-live" in masked
    assert "t-secret" in unmasked
    assert "data-live" not in unmasked  # there is no page to GET at its address


def test_a_button_lifts_the_control_that_a_sentence_is_about_and_follows_no_word_of_a_reason(
    browser: MakeBrowser, scheduler: Scheduler, url: str
) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        holder = Holder(seat="web-1", incarnation="a1")
        lease = Lease(name="seat:web-1", holder=holder, since=now, until=now + timedelta(minutes=5))
        store.acquire(lease, now)
    scheduler.drain("web-1", "upstream is paused", by="ann")
    scheduler.add_job("shop:Mail", queue="mail")
    client = browser()
    log_in(client)

    page = client.get("/").text

    assert "(upstream is paused)" in page
    assert "/nodes/undrain" in page
    assert "/queues/resume" not in page


def test_sessions_end() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    id = sessions.begin("ana", None, None)
    for _ in range(3):
        now += IDLE_FOR - 1
        assert sessions.find(id) is not None
    now += IDLE_FOR + 1
    assert sessions.find(id) is None
    busy = sessions.begin("ana", None, None)
    for _ in range(int(LASTS // IDLE_FOR) + 1):
        now += IDLE_FOR - 1
        sessions.find(busy)
    assert sessions.find(busy) is None


def test_masks_hide_what_looks_secret_at_any_depth_and_come_back_as_they_were() -> None:
    masking = Masking(["iban"])
    others = {"token": None, "cookie": ""}
    data = {"Authorization": "Bearer x", "to": [{"api-key": {"a": 1}, "IBAN": "DE", "n": 1}], **others}

    masked = masking.masked(data)

    assert masked == {"Authorization": MASK, "to": [{"api-key": MASK, "IBAN": MASK, "n": 1}], **others}
    assert masking.restored({**masked, "more": 1}, data) == {**data, "more": 1}
    with pytest.raises(Problem, match="an unknown secret: write out the value"):
        masking.restored({"to": [{"IBAN": MASK}, {"IBAN": MASK}]}, data)


def test_tags_and_meta_are_chips_that_add_their_token_and_complete_a_word(
    browser: MakeBrowser, scheduler: Scheduler
) -> None:
    client = browser()
    log_in(client)
    process = scheduler.add_job(
        "shop:Mail", tags=["customer:initech", "a b"], meta={"plan": "gold", "api_token": "t-secret"}
    )
    scheduler.add_job("shop:Mail", tags=["customer:acme"])

    listed = client.get("/jobs?queue=default").text
    [page] = [client.get(f"/jobs/{process.id}").text]

    for chip, where in (
        ("customer:initech", "queue%3Adefault+tag%3Acustomer%3Ainitech"),
        ("a b", "queue%3Adefault+tag%3A%22a+b%22"),
        ("plan:gold", "queue%3Adefault+meta.plan%3Agold"),
    ):
        assert f'<a class="chip" href="/jobs?q={where}" title="Jobs with {chip}">{chip}</a>' in listed
        assert client.get(f"/jobs?q={where}").text.count('<tr id="job-') == 1
        alone = where.removeprefix("queue%3Adefault+")
        assert f'<a class="chip" href="/jobs?q={alone}" title="Jobs with {chip}">{chip}</a>' in page
    assert '<a href="/jobs?q=class%3Ashop%3AMail" title="Its jobs">shop:Mail</a>' in page
    assert "t-secret" not in listed + page

    def suggested(word: str) -> list[str]:
        answer = client.get("/jobs/suggestions", params={"word": word}).json()
        return [suggestion["token"] for suggestion in answer["suggestions"]]

    assert suggested("init") == ["tag:customer:initech"]
    assert suggested("mail") == ["class:shop:Mail"]
    assert suggested("plan") == ["meta.plan:gold"]
    assert suggested("secret") == []
