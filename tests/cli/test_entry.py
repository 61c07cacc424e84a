"""The commands as programs, from their first moment on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", ["taskqueue", "taskqueue-node"])
def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path: Path, name: str) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Not signal.pause(): a signal that comes just before it would be handled only after the next one.
    (tmp_path / "click.py").write_text(f"import time\nopen({str(gate)!r}, 'w').close()\nwhile True: time.sleep(0.1)\n")
    function = name.replace("-", "_")
    command = subprocess.Popen(
        [sys.executable, "-c", f"import sys; from taskqueue.cli.entry import {function} as main; sys.exit(main())"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{CHECKOUT}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    gate.read_bytes()  # until it imports click

    command.send_signal(signal.SIGINT)

    assert command.communicate(timeout=60)[1] == f"{name}: interrupted\n"
    assert command.returncode == Exit.INTERRUPTED


def test_ctrl_c_while_a_class_is_made_has_the_exit_code_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, click\nfrom taskqueue.cli.exit import run\n"
        "sys.exit(run(click.Command('made', callback=lambda: exec('raise KeyboardInterrupt')), 'made', []))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "program"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{CHECKOUT}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (ended.returncode, ended.stderr.strip()) == (Exit.INTERRUPTED, "made: interrupted")


def test_an_installed_command_runs_as_before() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "from taskqueue.cli.entry import taskqueue; raise SystemExit(taskqueue())", "--help"],
        capture_output=True,
        text=True,
    )

    assert asked.returncode == Exit.OK
    assert "Usage:" in asked.stdout
