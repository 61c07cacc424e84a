"""The listener's part of the public API: read events, or have callbacks called for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taskqueue.model.schedules import Duration
from taskqueue.scheduler.event import Event
from taskqueue.scheduler.event_stream import EventStream


class Events:
    """The methods for listeners; ``Scheduler`` inherits them."""

    _listening: EventStream[Event]

    def events(
        self, query: Mapping[str, Any] | None = None, cursor: str | None = None, timeout: Duration | None = None
    ) -> Iterator[Event]:
        """Iterate over events from now on, or after ``cursor``, forever or until ``timeout`` has passed.

        With a query, only events of jobs that match it when they are read. Resuming from the last ``event.cursor``
        misses no event and may repeat one. The cursor ``"oldest"`` starts with the oldest kept event; events are kept
        for a day. Raises ``CursorTooOld``, ``InvalidQuery`` and, after an outage of a minute, ``StoreUnavailable``.
        """
        return self._listening.events(query, cursor, timeout)

    def read_events(self, cursor: str, limit: int = 1000) -> tuple[list[Event], str]:
        """Return up to ``limit`` events after the cursor, and the cursor after them, with one read and no wait.

        Raises ``CursorTooOld``.
        """
        page = self._listening.page(cursor, limit)
        return list(page.events), page.cursor

    def listen(
        self,
        callback: Callable[[Event], object] | None = None,
        query: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Call ``callback``, and the callbacks bound with ``on``, for each of ``events``, in this call.

        Returns the cursor after the last event once the callback has returned True, the timeout has passed, or another
        thread has called ``stop_listening``. Exceptions of callbacks are raised here. Without ``cursor`` and ``query``,
        bound callbacks also get the events that no wait has called them with since ``on``.
        """
        return self._listening.listen(callback, query, cursor, timeout)

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Bind a callback to the events of a name, ``*`` for all; return a function that unbinds it.

        ``listen`` calls it, and so does every wait for jobs through this scheduler while it is bound: with all events
        since this call, not only events of these jobs, and with each event once, whichever wait comes first. A wait
        calls it with the ends of its jobs before it returns. Exceptions of the callback are raised there, and the
        event counts as heard. Raises ``InvalidOption`` for a name that does not exist.
        """
        unbind = self._listening.bind(event, callback)
        self._listening.place()
        return unbind

    def stop_listening(self) -> None:
        """End every ``listen`` and ``events`` of this scheduler that is in progress, in any thread."""
        self._listening.stop()

    def cursor(self) -> str:
        """Return the cursor of now: pass it to ``listen`` or ``events`` later to start here."""
        return self._listening.cursor()
