"""Forked children that run a function of the test and tell how it went."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from tests.forking import fork


class Child:
    """One forked child; what it raises is raised again where it is waited for."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._reading, writing = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            os.close(self._reading)
            try:
                action()
            except BaseException:
                os.write(writing, traceback.format_exc().encode())
            finally:
                os._exit(0)
        os.close(writing)

    def wait(self) -> int:
        """Wait for the end of the child, check that nothing was raised in it, and return its wait status."""
        with os.fdopen(self._reading, "rb") as told:
            raised = told.read().decode()
        _, status = os.waitpid(self.pid, 0)
        assert raised == "", raised
        return status


def in_child(action: Callable[[], object]) -> None:
    """Run the action in a forked child and wait for it."""
    assert Child(action).wait() == 0
