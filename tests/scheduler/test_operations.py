"""An operation is one declaration: in a copy of the package with one more of them, every face offers it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import taskqueue
from taskqueue.scheduler.operations import OPERATIONS

TOUCH = '''
    @Declaration(
        target=Target.QUEUE,
        help="Write to the audit that somebody looked at a queue.",
        ask="Nothing changes.",
        done="{target} is touched",
        key="t",
        is_audited=False,
    )
    def touch(self, queue: str | None = None, reason: str = "", *, by: str | None = None) -> None:
        """Write to the audit that somebody looked at the queue, or at all."""
        from taskqueue.scheduler import audit_trail

        author, about = by or controls.user(), {"reason": reason}
        audit_trail.record(self._connections.store, "touch", queue or "", by=author, source="", about=about)


OPERATIONS: '''

FACES = {
    "python": """
        with Scheduler(url) as scheduler:
            scheduler.touch("mail", "looked", by="ana")
        """,
    "asyncio": """
        async def touch():
            async with AsyncScheduler(url) as scheduler:
                await scheduler.touch("mail", "looked", by="ana")

        asyncio.run(touch())
        """,
    "command line": """
        assert main(["--url", url, "touch", "mail", "--reason", "looked", "--by", "ana"]) == 0
        assert main(["--url", url, "touch"]) == 2
        main(["--help"])
        """,
    "http": """
        from starlette.testclient import TestClient
        from taskqueue.web import app
        from taskqueue.web.users import Role, User, UsersFile, account, with_new_token

        accounts, tokens = {}, {}
        for name, role, queues in (("ana", "operator", None), ("rita", "reader", None), ("mia", "operator", ["other"])):
            user = User(name=name, role=Role(role), queues=None if queues is None else tuple(queues))
            accounts[name], tokens[name] = with_new_token(account(user, None))
        UsersFile(pathlib.Path("users.json")).change(accounts)

        with Scheduler(url) as scheduler:
            site = app(scheduler, users="users.json", hosts=["example.org"])
            with TestClient(site, base_url="https://example.org") as client:
                def asked(name):
                    headers = {"authorization": f"Bearer {tokens[name]}"}
                    body = {"queue": "mail", "reason": "looked"}
                    return client.post("/api/v1/queues/touch", json=body, headers=headers)

                assert client.post("/api/v1/queues/touch", json={"queue": "mail"}).status_code == 401
                assert [asked(name).status_code for name in ("rita", "mia")] == [403, 403]
                assert asked("ana").json() == {"operation": "touch", "target": "mail"}
                read = {"authorization": f"Bearer {tokens['ana']}"}
                paths = client.get("/api/v1/openapi.json", headers=read).json()["paths"]
                assert paths["/queues/touch"]["post"]["operationId"] == "touch_queue"
        """,
    "dashboard": """
        from starlette.testclient import TestClient
        from taskqueue.web import app

        with Scheduler(url) as scheduler:
            site = app(scheduler, local=True)
            with TestClient(site, base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
                page = browser.get("/queues").text
                assert "Touch queue mail?" in page and "Nothing changes." in page and "Touch every queue" in page
                csrf = page.partition('<meta name="csrf-token" content="')[2].partition('"')[0]
                form = {"csrf": csrf, "queue": "mail", "reason": "looked"}
                done = browser.post("/queues/touch", data=form).text
                assert "Done: the queue is touched." in done, done
        """,
    "top": """
        from taskqueue.cli.top.app import Top
        from taskqueue.store.open import open_store

        async def shows(pilot, text):
            strips = pilot.app.screen._compositor.render_strips
            while text not in "".join(strip.text for strip in strips()):
                await pilot.pause(0.01)

        async def touch():
            async with Top(store, every=0.2, is_read_only=False).run_test(size=(80, 24)) as pilot:
                await shows(pilot, " mail ")
                await pilot.press("question_mark")
                await shows(pilot, "touch a queue")
                await pilot.press("escape", "tab", "t")
                await shows(pilot, "Touch queue mail?")
                await pilot.press(*"looked", "enter")
                await shows(pilot, "queue mail is touched")

        with closing(open_store(url)) as store:
            asyncio.run(touch())
        """,
}

SCRIPT = """
import asyncio, pathlib, sys
from contextlib import closing
from taskqueue import AsyncScheduler, Scheduler
from taskqueue.cli.main import main

url = "sqlite:///" + sys.argv[1]
with Scheduler(url) as scheduler:
    scheduler.add_job("shop:Mail", queue="mail")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a copy of the package that has one more declaration."""
    folder = tmp_path_factory.mktemp("copy")
    source = Path(taskqueue.__file__).parent
    copied = shutil.copytree(source, folder / "taskqueue", ignore=shutil.ignore_patterns("__pycache__"))
    declarations = copied / "scheduler/operations.py"
    text = declarations.read_text()
    assert text.count("\n\nOPERATIONS: ") == 1
    declarations.write_text(text.replace("\n\nOPERATIONS: ", TOUCH))
    return folder


@pytest.mark.parametrize("face", FACES)
def test_an_operation_that_is_declared_reaches(face: str, package: Path, tmp_path: Path) -> None:
    lines = [line.removeprefix(" " * 8) for line in FACES[face].splitlines()]
    (tmp_path / "face.py").write_text("\n".join([SCRIPT, *lines, LAST]))

    ran = subprocess.run(
        [sys.executable, "face.py", str(tmp_path / "jobs.db")],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    assert face != "command line" or "touch Write to the audit that somebody looked at a queue." in " ".join(
        ran.stdout.split()
    )


LAST = """
with Scheduler(url) as scheduler:
    [entry] = scheduler.audit()
assert (entry.action, entry.target, entry.about) == ("touch", "mail", {"reason": "looked"}), entry
"""


@pytest.mark.parametrize("choose", [lambda each: each.key, lambda each: each.sets, lambda each: each.clears])
def test_no_two_operations_share(choose: Callable[[object], object]) -> None:
    chosen = [value for value in map(choose, OPERATIONS.values()) if value]

    assert sorted(map(str, chosen)) == sorted({str(value) for value in chosen})
