"""A new option: a row and a type in the table and a field of the record, and everything else follows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import taskqueue

ROW = """    "nice": Option(check=validators.whole(0, 19), default=0, meaning="how nice its process is"),
"""
EDITS = {
    "model/options/table.py": (
        ('    "ignore_data": Option(', ROW + '    "ignore_data": Option('),
        ("    force_spawn: bool\n", "    force_spawn: bool\n    nice: int\n"),
    ),
    "model/record.py": (("    force_spawn: bool = False\n", "    force_spawn: bool = False\n    nice: int = 0\n"),),
}

SCRIPT = """
import json, sys
from datetime import datetime, timezone

from taskqueue import Job, Scheduler
from taskqueue.scheduler.json_shapes import job_in_full
from taskqueue.execution.attempt import report
from taskqueue.execution.loader import load
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.options.apply_declared import as_declared
from taskqueue.model.lifecycle.outcomes import Declared
from taskqueue.store.mongodb.documents import document, record

class Usual(Job):
    def start(self): ...

class Nice(Job):
    options = {"nice": 7}
    def start(self): ...

with Scheduler(sys.argv[1]) as scheduler:
    usual, passed, declared = (scheduler.add_job(*one) for one in ((Usual,), (Usual, None), (Nice,)))
    passed = scheduler.add_job(Usual, nice=5)
    kept = [scheduler.get_job(one.id) for one in (usual, passed, declared)]
    assert [one.options["nice"] for one in kept] == [0, 5, 7]
    assert [record(document(one.snapshot)).options.nice for one in kept] == [0, 5, 7]
    assert "nice" not in document(kept[0].snapshot)["options"]
    assert job_in_full(kept[1].snapshot)["options"]["nice"] == 5
    once = scheduler.add_job_once(Usual, {"once": True}, nice=1)
    assert scheduler.add_job_once(Usual, {"once": True}, nice=1) == once
    assert scheduler.add_job_once(Usual, {"once": True}, nice=2) != once
    said = report(load("app:Nice")).outcome
    assert said == Declared(options={"nice": 7})
    by_path = scheduler.add_job("elsewhere:Nice").snapshot
    assert as_declared(by_path, said.options, datetime.now(timezone.utc)).options.nice == 7
"""


def test_a_new_option_takes_a_row_and_a_field(tmp_path: Path) -> None:
    package = tmp_path / "taskqueue"
    shutil.copytree(Path(taskqueue.__file__).parent, package)
    for name, edits in EDITS.items():
        text = (package / name).read_text()
        for before, after in edits:
            assert text.count(before) == 1
            text = text.replace(before, after)
        (package / name).write_text(text)

    (tmp_path / "app.py").write_text(SCRIPT)
    url = str(tmp_path / "jobs.db")
    # The lines of a copy would be counted as files that no report finds.
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    own["PYTHONPATH"] = str(tmp_path)
    for command in (
        [sys.executable, "app.py", url],
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "add", "elsewhere:Mail", "--nice", "3"],
    ):
        ran = subprocess.run(command, env=own, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
