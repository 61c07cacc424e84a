"""The store of one scheduler in this process, opened when it is first needed; a fork opens its own."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.scheduler.end_listener import Listener
from taskqueue.store import Store
from taskqueue.store.caller_transaction import open_on_connection
from taskqueue.store.open import MONGODB_SCHEMES, SERVER_SCHEMES, default_url, exists, open_store, resolved
from taskqueue.store.sqlite.url import IMMEDIATE

if TYPE_CHECKING:
    from taskqueue.scheduler.immediate import ImmediateMode


@dataclass(frozen=True, kw_only=True)
class StoreOpener:
    """An address for ``Scheduler`` that opens the store in its own way, such as with another clock."""

    open: Callable[[], Store]


class Connection:
    """A store and the listeners on it, one for all threads of a process and one for each event loop."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self.opened: Store | None = None
        """The store, once it was needed."""
        self.heard: Listener | None = None
        """The listener of all threads, once it was needed."""
        self._of_loops: WeakKeyDictionary[Listener, None] = WeakKeyDictionary()
        """Other threads add theirs at the same time: only ``keyrefs`` can be iterated safely."""

    def store(self) -> Store:
        """Return the store, open."""
        with self._lock:
            self.opened = self.opened or self._opener()
        return self.opened

    def listener(self) -> Listener:
        """Return the listener of all threads, which opens its bell with the first wait."""
        store = self.store()
        with self._lock:
            self.heard = self.heard or Listener(store)
        return self.heard

    def listener_of_loop(self) -> Listener:
        """Return a listener for an event loop."""
        listener = Listener(self.store())
        self._of_loops[listener] = None
        return listener

    def listeners(self) -> list[Listener]:
        """Return all listeners."""
        of_loops = [listener for reference in self._of_loops.keyrefs() if (listener := reference()) is not None]
        return [*of_loops, *([] if self.heard is None else [self.heard])]

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            for listener in self.listeners():
                listener.close()
            if self.opened is not None:
                self.opened.close()


class Connections:
    """The connections of one scheduler, one for each process that it was used in.

    Those of a parent are kept as they are and never closed: their descriptors and locks are the parent's.
    """

    def __init__(self, place: Any, borrowed: Any = None, is_immediate: bool = False) -> None:
        self._immediate = _immediate(place, borrowed, is_immediate)
        if self._immediate is not None:
            self._opener = _opener_or_stand_in(place, self._immediate.url)
        else:
            self._opener = _opener(place) if borrowed is None else _borrower(place, borrowed)
        if place is None and borrowed is None:
            _UNADDRESSED[self] = None
        self._is_borrowed = borrowed is not None
        self._place = place
        self._of_process: dict[int, Connection] = {}
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Return whether this process has opened a store; never on the application's own connection."""
        connection = None if self._is_borrowed else self._of_process.get(os.getpid())
        return connection is not None and connection.opened is not None

    @property
    def immediate(self) -> ImmediateMode | None:
        """The mode in which jobs run when they are added; None if nodes run them, or a test has its own store."""
        return None if self._place is None and _stand_in is not None else self._immediate

    def refuse_if_immediate(self, call: str) -> None:
        """Raise ``InvalidOption`` for a call that needs time or a node."""
        if self.immediate is not None:
            raise self.immediate.refusal(call)

    @property
    def is_embedded(self) -> bool:
        """Whether the store is a file of this host, as far as its address says."""
        place = default_url() if self._place is None else self._place
        return isinstance(place, str | os.PathLike) and not os.fspath(place).startswith(SERVER_SCHEMES)

    @property
    def store(self) -> Store:
        """The store in this process."""
        connection = self._of_process.get(os.getpid())
        opened = None if connection is None else connection.opened
        return opened or self._current().store()

    @property
    def listener(self) -> Listener:
        """The listener in this process."""
        connection = self._of_process.get(os.getpid())
        heard = None if connection is None else connection.heard
        return heard or self._current().listener()

    @property
    def store_and_silence(self) -> tuple[Store, object | None]:
        """The store in this process, and the current silence of its listener; one look for both, as each add takes it.

        The silence is None without a listener, or if it hears nothing of new jobs.
        """
        connection = self._of_process.get(os.getpid())
        if connection is None or connection.opened is None:
            return self._current().store(), None
        heard = None if self._is_borrowed else connection.heard
        return connection.opened, None if heard is None else heard.silence

    def listener_of_loop(self) -> Listener:
        """Return a listener for an event loop of this process."""
        return self._current().listener_of_loop()

    @contextmanager
    def existing(self) -> Iterator[Store]:
        """Yield the store; if there is none at this address, yield an empty one in a temporary folder."""
        place = self._place
        is_address = (
            not self._is_borrowed and _stand_in is None and (place is None or isinstance(place, str | os.PathLike))
        )
        if self.is_open or not is_address or exists(None if place is None else os.fspath(place)):
            yield self.store
            return
        from tempfile import TemporaryDirectory  # few programs look at a store that is not there

        with TemporaryDirectory(prefix="taskqueue-") as folder, closing(open_store(f"{folder}/jobs.db")) as store:
            yield store

    def another(self) -> Connections | None:
        """Return further connections to the same store; None if its calls never wait for each other, or it is lent."""
        place = default_url() if self._place is None else self._place
        is_lent = self._is_borrowed or (self._place is None and _stand_in is not None)
        if is_lent or self._immediate is not None or not isinstance(place, str | os.PathLike):
            return None
        if os.fspath(place).startswith(MONGODB_SCHEMES):
            return None
        other = object.__new__(Connections)
        vars(other).update({**vars(self), "_of_process": {}})  # it opens the same file, whatever the folder is now
        if self in _UNADDRESSED:
            _UNADDRESSED[other] = None
        return other

    def wake(self) -> None:
        """Make all waits look now: this process may have ended a job, and its ring may come later or be lost."""
        for listener in self._current().listeners():
            listener.wake()

    def doubt(self) -> None:
        """Make all waits read every job, since some were removed."""
        for listener in self._current().listeners():
            listener.doubt()

    def close(self) -> None:
        """Close this process's store; the scheduler is not used again."""
        self._closed = True
        self.leave_store()

    def leave_store(self) -> None:
        """Close this process's store; the next call opens it again."""
        connection = self._of_process.pop(os.getpid(), None)
        if connection is not None:
            connection.close()

    def __repr__(self) -> str:
        connection = self._of_process.get(os.getpid())
        return "not opened" if connection is None or connection.opened is None else connection.opened.url

    def _current(self) -> Connection:
        if self._closed:
            raise StoreUnavailable("of this scheduler", "it was closed", "create a new Scheduler")
        connection = self._of_process.get(os.getpid())
        # setdefault is one step for all threads, without a lock that a fork could copy while it is held
        return connection or self._of_process.setdefault(os.getpid(), Connection(self._opener))


_UNADDRESSED: WeakKeyDictionary[Connections, None] = WeakKeyDictionary()
"""The connections that were made without an address, wherever the application made them."""

_stand_in: StoreOpener | None = None
"""The store that these open instead of their own, in a test."""


@contextmanager
def standing_in(opener: StoreOpener) -> Iterator[None]:
    """Make every scheduler without an address use this store in the block, even an older one: for tests.

    An application makes its scheduler when a module is imported, before there is a test that could name its store.
    """
    global _stand_in
    before, _stand_in = _stand_in, opener
    _leave_stores()
    try:
        yield
    finally:
        _stand_in = before
        _leave_stores()


def _leave_stores() -> None:
    for reference in _UNADDRESSED.keyrefs():
        if (connections := reference()) is not None:
            connections.leave_store()


def leave_open(connections: Connections) -> None:
    """Close the store that a collected scheduler left open in this process, and warn."""
    if not connections.is_open:
        return
    words = f"unclosed Scheduler on {connections!r}: write 'with Scheduler(…) as scheduler:', or call its close()"
    try:
        connections.close()
    finally:
        warnings.warn(words, ResourceWarning, stacklevel=2)


def _borrower(place: Any, connection: Any) -> Callable[[], Store]:
    """Return a function that opens the store on the application's own connection; raise its errors now."""
    if place is not None:
        raise ConfigError("Scheduler got both an address and a connection: pass only one")
    store = open_on_connection(connection)
    return lambda: store


def _immediate(place: Any, borrowed: Any, is_wanted: bool) -> ImmediateMode | None:
    """Return the mode that the caller asks for with ``immediate=True``, or with the address ``immediate:``."""
    if type(is_wanted) is not bool:
        raise ConfigError(f"immediate={is_wanted!r}: pass True or False")
    if is_wanted and (place is not None or borrowed is not None):
        raise ConfigError("immediate=True has a store of its own: leave out the address and the connection")
    address = os.environ.get("TASKQUEUE_URL") if place is None and borrowed is None else place
    if not is_wanted and not (isinstance(address, str) and address == IMMEDIATE):
        return None
    from taskqueue.scheduler import immediate  # imported here: few programs run jobs

    return immediate.ImmediateMode("immediate=True") if is_wanted else immediate.of_process()


def _opener_or_stand_in(place: Any, url: str) -> Callable[[], Store]:
    """Return a function that opens the store, or what stands in for it in a test if no address was passed."""
    return lambda: open_store(url) if place is not None or _stand_in is None else _stand_in.open()


def _opener(place: Any) -> Callable[[], Store]:
    """Return a function that opens the store; read the address now, as folder and environment may change."""
    if place is None:
        address = os.environ.get("TASKQUEUE_URL") and resolved()
        return lambda: open_store(address or None) if _stand_in is None else _stand_in.open()
    if isinstance(place, str | os.PathLike):
        address = resolved(os.fspath(place))
        return lambda: open_store(address)
    if type(place).__module__.partition(".")[0] == "pymongo":
        from taskqueue.store.mongodb import open_mongodb

        return lambda: open_mongodb(place)
    if isinstance(place, StoreOpener):
        return place.open
    raise ConfigError(
        f"{place!r} does not name a store: pass a path, sqlite:///…, postgresql://…/database, mongodb://…/database "
        "or a pymongo database"
    )
