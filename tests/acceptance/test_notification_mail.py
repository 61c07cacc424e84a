"""A node that sends its notifications by mail. Other Pythons leave this out: it needs a server of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from tests.nodes import eventually, node
from tests.notifications.mail_server import mail_server


def test_a_worker_of_the_leader_sends_mail_about_what_needs_somebody(
    url: str, scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    with mail_server() as server:
        scheduler.pause(reason="everything is paused")
        receiver = f"mailto:ops@example.org?smtp=smtp://localhost:{server.port}"
        with node(url, tmp_path, "--notify", receiver, "--work-on", "other", "--allow", "nothing") as started:
            eventually(lambda: server.mails)
            assert started.stop() == Exit.OK

    assert "every queue is paused since" in server.mails[0].as_string()
    assert scheduler.stats()["total"] == 0
