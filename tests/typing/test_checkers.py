"""Type checkers accept an application that is right, and refuse each line that is not: nothing is ``Any`` unasked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
APP = (Path(__file__).parent / "app.txt").read_text()
"""No file of Python's own, since the checkers of this project would refuse it."""

REFUSED = {number for number, line in enumerate(APP.splitlines(), 1) if line.endswith("# refused")}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the file of the application."""
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


def test_mypy_refuses_what_is_wrong_and_nothing_else(app: Path) -> None:
    app.write_text(f"{APP}# mypy: allow-untyped-defs\n")  # with an option of the command, all of the cache is made anew
    command = ["mypy", "--strict", "--no-error-summary", "--cache-dir", ".mypy_cache", str(app)]
    ran = subprocess.run([sys.executable, "-m", *command], cwd=CHECKOUT, capture_output=True, text=True)

    found = {int(line) for line in re.findall(r"app\.py:(\d+): error:", ran.stdout)}
    assert found == REFUSED, ran.stdout + ran.stderr
    assert 'Unexpected keyword argument "retyr" for "add_job"' in ran.stdout
    assert max(len(line) for line in ran.stdout.splitlines() if "add_job" in line) < 300


def test_pyright_refuses_what_is_wrong_and_nothing_else(app: Path) -> None:
    settings = {"pythonVersion": "3.10", "typeCheckingMode": "standard", "venvPath": "", "extraPaths": [str(CHECKOUT)]}
    (app.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(app.parent)]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)

    said = json.loads(ran.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in said if each["severity"] == "error"}
    assert 'No parameter named "retyr"' in [each["message"] for each in said]
    assert found == REFUSED, [(each["range"]["start"]["line"] + 1, each["message"]) for each in said]
