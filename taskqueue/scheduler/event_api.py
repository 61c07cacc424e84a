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
        """Iterate over what happens from now on, or behind ``cursor``, for ever or until ``timeout`` is over.

        With a query only events of jobs that match it when they are read. Who goes on with ``event.cursor`` of the last
        event misses nothing, and may see one again. The cursor ``"oldest"`` begins with what is kept, which is a day.
        Raises ``CursorTooOld``, ``InvalidQuery`` and, after an outage of a minute, ``StoreUnavailable``.
        """
        return self._listening.events(query, cursor, timeout)

    def read_events(self, cursor: str, limit: int = 1000) -> tuple[list[Event], str]:
        """Return up to ``limit`` events behind the cursor, and the cursor behind them, with one read and no wait.

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
        """Call ``callback``, and those that are bound with ``on``, for each of ``events``, in this call.

        Returns the cursor behind the last event once the callback has returned True, the time is over, or another
        thread has called ``stop_listening``. What a callback raises comes out of here.
        """
        return self._listening.listen(callback, query, cursor, timeout)

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Bind a callback to the events of a name, ``*`` for all; return a function that unbinds it.

        ``listen`` calls it, and so does every wait for jobs through this scheduler meanwhile: with all events, not
        only those of these jobs, and what it raises comes out there. Raises ``InvalidOption`` for a name that does not
        exist.
        """
        return self._listening.bind(event, callback)

    def stop_listening(self) -> None:
        """End every ``listen`` and ``events`` of this scheduler that is under way, in whichever thread."""
        self._listening.stop()

    def cursor(self) -> str:
        """Return the cursor of now: pass it to ``listen`` or ``events`` later to begin here."""
        return self._listening.cursor()
