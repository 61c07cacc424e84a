"""Errors under other names than those of the modules that define them, and the jobs that raise them."""

from __future__ import annotations

import json
import queue

from taskqueue import Job

__all__ = ["Raising", "Refused"]


class _Refused(Exception):
    """An error whose public name is another one."""


Refused = _Refused


class Raising(Job):
    """Raises the error that its data name."""

    def start(self) -> None:
        match self.data:
            case "json":
                json.loads("{")
            case "queue":
                queue.Queue[int]().get_nowait()
            case "os":
                raise PermissionError("not yours")
        raise Refused("no")
