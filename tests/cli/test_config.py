"""``config`` shows the settings of a node, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]


def test_each_setting_has_its_value_and_its_origin(
    taskqueue: Taskqueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('finish = "13s"\ngrace = 12\n')
    monkeypatch.setenv("TASKQUEUE_GRACE", "22")

    answer = taskqueue("config", "--config", str(file), "--work-on", "mail=2", "--work-on", "reports")

    assert answer.code == Exit.OK
    rows = {line.split()[0]: line.split()[1:] for line in answer.out.splitlines()}
    assert rows["work-on"] == ["mail=2", "reports", "option"]
    assert rows["grace"] == ["22", "TASKQUEUE_GRACE"]
    assert rows["finish"] == ["13", str(file)]
    assert rows["keep-done"] == ["5d", "default"]
    assert rows["max-children"] == ["2", "default"]


def test_programs_get_plain_values(taskqueue: Taskqueue) -> None:
    found = {row["setting"]: row for row in taskqueue("config", "--lease", "1m", "--json").document}

    assert found["lease"] == {"setting": "lease", "value": 60.0, "from": "option"}
    assert found["work_on"]["value"] == []
    assert found["keep_done"]["value"] == 432_000.0


def test_a_password_is_not_shown(taskqueue: Taskqueue) -> None:
    answer = taskqueue("--url", "mongodb://ann:g3heim@host/jobs", "config")

    assert "g3heim" not in answer.out
    assert "mongodb://" in answer.out


def test_a_store_named_after_the_command_is_an_option(taskqueue: Taskqueue) -> None:
    found = {row["setting"]: row for row in taskqueue("config", "--url", "sqlite:///other.db", "--json").document}

    assert found["url"] == {"setting": "url", "value": "sqlite:///other.db", "from": "option"}


def test_a_wrong_setting_is_refused_as_the_node_does(taskqueue: Taskqueue) -> None:
    answer = taskqueue("config", "--lease", "1")

    assert (answer.code, answer.complaint) == (Exit.CONFIG, "taskqueue: --lease 1 is out of range: pass 2 or more")
