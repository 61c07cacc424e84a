"""The commands as programs: Ctrl-C ends them with one line at once, even while modules are imported."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from types import FrameType

from taskqueue.exit_codes import Exit


def taskqueue() -> int:
    """Run ``taskqueue`` and return its exit code."""
    is_probe = sys.argv[1:2] == ["health"]  # must answer fast: main imports more
    return _run("taskqueue", "taskqueue.cli.health" if is_probe else "taskqueue.cli.main")


def taskqueue_node() -> int:
    """Run ``taskqueue-node`` and return its exit code."""
    return _run("taskqueue-node", "taskqueue.cli.node")


def _run(name: str, module: str) -> int:
    def leave(_number: int, _frame: FrameType | None) -> None:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(Exit.INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as under nohup
        signal.signal(signal.SIGINT, leave)
    program = import_module(module)
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code: int = program.main()
    return code
