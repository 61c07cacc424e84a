"""The parts that every request of one dashboard uses, and the threads in which its blocking calls are made."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from typing_extensions import ParamSpec

from taskqueue.errors import StoreReplaced
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.web.actions import Actions
from taskqueue.web.event_hub import EventHub
from taskqueue.web.login import Login
from taskqueue.web.masking import Masking
from taskqueue.web.overviews import Beats, Overviews
from taskqueue.web.problems import Problem
from taskqueue.web.settings import Settings
from taskqueue.web.user_shares import RETRY_AFTER, SharedThreads, UserConnections, network_of, too_many_requests
from taskqueue.web.viewers import Viewer, Viewers, address_of

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 8
OF_USER = 3
"""Maximum number of concurrent calls of the scheduler, in total and per user; others wait their turn."""

MOST_OF_USER = 100
"""Calls of one user that run and wait at once."""

FIGURE_THREADS = 2
"""Maximum number of concurrent calls that compute figures of a time, which may take seconds; one per user."""

NODE_THREADS = 8
NODES_OF_USER = 2
"""Maximum number of concurrent requests to nodes, in total and per user; one per job: a stopped node takes seconds."""

LOGIN_THREADS = 2
LOGINS_OF_ADDRESS = 8
MOST_LOGINS = 64
"""Maximum number of passwords that are checked at once; the most logins that run or wait, per address and in total."""

STRANGER_THREADS = 2
OF_STRANGERS = 20
MOST_STRANGERS = 200
"""Maximum number of pages for people without a login that are made at once (one per address) and that wait, per
address and in total."""

LARGEST_LOGIN = 16 * 1024
"""Bytes of the form of a login or a logout: it is read in the event loop."""

MOST_FIELDS = 1000

Form = ImmutableMultiDict[str, str]


class Dashboard:
    """One dashboard: its scheduler, settings, viewers and threads."""

    def __init__(
        self, scheduler: Scheduler, settings: Settings, open_anew: Callable[[], Scheduler] | None = None
    ) -> None:
        """``open_anew`` closes the scheduler and returns another one, if the file of the store was replaced."""
        self._scheduler = scheduler
        self._connections = UserConnections(scheduler)
        self._of_call = threading.local()
        self._open_anew = open_anew
        self.settings = settings
        self.viewers = Viewers(settings)
        self.masking = Masking(settings.secrets)
        self.login = Login(self.viewers)
        self.beats = Beats()
        self.hub = EventHub(scheduler, self._read_events)
        self.overviews = Overviews(scheduler)
        self._threads = SharedThreads("taskqueue-web", THREADS, OF_USER, MOST_OF_USER)
        self._figure_threads = SharedThreads("taskqueue-web-figures", FIGURE_THREADS, 1, MOST_OF_USER)
        self._stranger_threads = SharedThreads(
            "taskqueue-web-strangers", STRANGER_THREADS, 1, OF_STRANGERS, MOST_STRANGERS
        )
        self._node_threads = SharedThreads("taskqueue-web-node", NODE_THREADS, NODES_OF_USER, NODES_OF_USER)
        self._login_threads = SharedThreads("taskqueue-web-login", LOGIN_THREADS, 1, LOGINS_OF_ADDRESS, MOST_LOGINS)
        self._event_threads = SharedThreads("taskqueue-web-events", 1, 1, MOST_OF_USER)
        self._asked: set[str] = set()
        """The jobs whose node is being asked."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the user for whom this thread makes a call; in other threads, the one of the dashboard."""
        of_call: Scheduler = getattr(self._of_call, "scheduler", self._scheduler)
        return of_call

    def actions(self, viewer: Viewer) -> Actions:
        """Return what the viewer may do."""
        return Actions(self.scheduler, self.settings, viewer, self.masking)

    async def in_thread(self, viewer: Viewer, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that may block, in a thread from the viewer's share. Raises ``Problem`` if there are too many."""
        return await self._in(self._threads, viewer.user.name, self._connected(viewer, call, *args, **kwargs))

    async def compute(self, viewer: Viewer, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that computes figures, one at a time for a user. Raises ``Problem`` if there are too many."""
        return await self._in(self._figure_threads, viewer.user.name, self._connected(viewer, call, *args, **kwargs))

    async def for_stranger(self, request: Request, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a page for somebody without a login, in the share of the address. Raises ``Problem``."""
        key = network_of(address_of(request))
        return await self._in(self._stranger_threads, key, partial(call, *args, **kwargs), OF_STRANGERS)

    async def ask_node(self, viewer: Viewer, job: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that waits for the node of a job, in separate threads. Raises ``Problem`` for too many."""
        name, job = viewer.user.name, job.lower()
        if job in self._asked:
            raise too_many_requests(f"the node of job {job[:100]} is already being asked: try again in a second")
        future = self._node_threads.submit(name, self._connected(viewer, call, *args, **kwargs))
        if future is None:
            raise too_many_requests(f"{NODES_OF_USER} requests of {name} already wait for nodes: try again in a second")
        self._asked.add(job)
        future.add_done_callback(lambda _: self._asked.discard(job))
        return await self._awaited(future)

    async def log_in(self, request: Request, name: str, password: str) -> str:
        """Return the id of a new session (``Login.begin``), checked in threads that nothing else needs."""
        call = partial(self.login.begin, request, name, password)
        future = self._login_threads.submit(network_of(address_of(request)), call)
        if future is None:
            raise Problem("too-many-logins", "too many logins at once: try again in a second", RETRY_AFTER)
        return await self._awaited(future)

    def _connected(self, viewer: Viewer, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Return the call with the scheduler of the viewer: others do not wait until the store has answered it."""

        def connected() -> R:
            with self._connections.of(viewer.user.name) as scheduler:
                self._of_call.scheduler = scheduler
                try:
                    return call(*args, **kwargs)
                finally:
                    del self._of_call.scheduler

        return connected

    async def _read_events(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Read events for all open pages and streams, whatever users request."""
        return await self._in(self._event_threads, "all streams", partial(call, *args, **kwargs))

    async def _in(self, threads: SharedThreads, key: str, call: Callable[[], R], most: int = MOST_OF_USER) -> R:
        future = threads.submit(key, call)
        if future is None:
            raise too_many_requests(f"{most} requests of {key} are already waiting: send fewer at once")
        return await self._awaited(future)

    async def _awaited(self, future: Future[R]) -> R:
        """Return the result of a call; if the store was replaced, the next call opens it again."""
        used = self._scheduler
        try:
            return await asyncio.wrap_future(future)
        except StoreReplaced as error:
            if self._open_anew is None:
                raise
            if used is self._scheduler:
                log.warning("the next request opens the new store: %s", error.reason)
                self._change_to(self._open_anew())
            raise StoreReplaced(
                error.store, error.reason, "repeat the request: the dashboard now uses the new one"
            ) from error

    def _change_to(self, scheduler: Scheduler) -> None:
        """Use another scheduler from now on."""
        self._connections.end()
        self._scheduler, self._connections = scheduler, UserConnections(scheduler)
        self.overviews = Overviews(scheduler)
        self.hub.change_to(scheduler)

    def end_threads(self) -> None:
        """End each thread and each connection after its call; an application that is started again gets new ones."""
        for threads in vars(self).values():
            if isinstance(threads, SharedThreads):
                threads.end()
        self._connections.end()
        self._connections = UserConnections(self._scheduler)


def root_of(request: Request) -> str:
    """Return the path that the dashboard is mounted at, "" for the top."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    """Return the path below that root."""
    return request.url.path.removeprefix(root_of(request)) or "/"


def wants_content(request: Request) -> bool:
    """Return whether the script of a page asks for the page's content alone."""
    return request.headers.get("x-part") == "content"


async def small_form_of(request: Request) -> Form:
    """Return the fields of a form of a few fields, of which not much is kept in memory. Raises ``Problem``."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_LOGIN:
            raise Problem("body-too-large", f"the form is larger than {LARGEST_LOGIN:,} bytes: send name and password")
    return form_in(request, body)


def form_in(request: Request, body: bytes) -> Form:
    """Return the fields of a form. Raises ``Problem``."""
    if "content-type" not in request.headers and not body:
        return Form()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem("unsupported-media-type", f"a form must be application/x-www-form-urlencoded, not {kind[:100]!r}")
    try:
        return Form(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise Problem("malformed-request", f"the form cannot be read: {error}") from None
