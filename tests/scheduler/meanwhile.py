"""Something that goes on beside a test, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.scheduler.playing import LIMIT


class Meanwhile:
    """Something that goes on in a thread; leaving the block waits for it and raises its error."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._error: BaseException | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.result = self._act()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Meanwhile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
