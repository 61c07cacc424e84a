"""A real node that counts what it asks of its store and its manager: ``python -m tests.daemon.counted URL FOLDER``.

It leaves when no job is pending any more, and prints the counts as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import taskqueue
from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.node.manager_handle import ForkedManager
from taskqueue.daemon.node.node import Node
from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.codec import decode
from taskqueue.daemon.protocol.messages import RunsHandedBack, Started
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.settings import PoolMode, Settings
from taskqueue.model.query import PENDING
from taskqueue.store import Store
from taskqueue.store.open import open_store

PACKAGE = str(Path(taskqueue.__file__).parent)


class Counting:
    """A real thing of which the calls of some methods are counted."""

    def __init__(self, thing: object, counts: Counter[str]) -> None:
        self._thing = thing
        self._counts = counts
        self.received: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._counted(name, found) if callable(found) else found

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            answer = call(*args, **kwargs)
            self._counts[name] += 1
            if name == "receive":
                self.received += answer
            if name == "send":
                self._counts["sent"] += len(args)
            if name == "settle":
                self._counts["settled"] += len(answer)
                self._leave_if_empty()
            return answer

        return counted

    def _leave_if_empty(self) -> None:
        if cast(Store, self._thing).count(PENDING) == 0:
            os.kill(os.getpid(), signal.SIGTERM)


class Calls:
    """Counts the calls of functions of the package, those of generators at each step."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._counts["calls"] += 1


def run(url: str, folder: Path) -> dict[str, int]:
    """Work until nothing is pending, and return the counts."""
    settings = Settings(url=url, name="counted", pm=PoolMode.STATIC, min_children=2, chdir=folder)
    child_process.become_subreaper()
    manager, channel, start_log = fork_manager(settings)
    counts: Counter[str] = Counter()
    store = cast(Store, Counting(open_store(url), counts))
    counting = Counting(channel, counts)
    node = Node(settings, store, ForkedManager(manager, cast(Channel, counting), start_log, {}))
    sys.setprofile(Calls(counts))
    node.run()
    sys.setprofile(None)
    received = [decode(payload) for payload in counting.received]
    counts["began"] = sum(isinstance(message, Started) for message in received)
    counts["handed_back"] = sum(len(message.runs) for message in received if isinstance(message, RunsHandedBack))
    counts["received"] = len(counting.received) - counts["began"]
    return counts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1], Path(sys.argv[2]))))
