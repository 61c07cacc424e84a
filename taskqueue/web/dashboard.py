"""The parts that every request of one dashboard uses, and the few threads in which the scheduler is called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from taskqueue.web.viewers import Viewer, Viewers

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 8
"""Calls of the scheduler that are under way at once; others wait their turn."""

MOST_FIELDS = 1000

Form = ImmutableMultiDict[str, str]


class Dashboard:
    """One dashboard: its scheduler, settings, viewers and threads."""

    def __init__(
        self, scheduler: Scheduler, settings: Settings, open_anew: Callable[[], Scheduler] | None = None
    ) -> None:
        """``open_anew`` closes the scheduler and makes another one, where the file of the store was replaced."""
        self.scheduler = scheduler
        self._open_anew = open_anew
        self.settings = settings
        self.viewers = Viewers(settings)
        self.masking = Masking(settings.secrets)
        self.login = Login(self.viewers)
        self.beats = Beats()
        self.hub = EventHub(scheduler, self.in_thread)
        self.overviews = Overviews(scheduler)
        self._threads = _new_threads()

    def actions(self, viewer: Viewer) -> Actions:
        """Return what the viewer may do."""
        return Actions(self.scheduler, self.settings, viewer, self.masking)

    async def in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make a call that may block in one of the threads; if the store was replaced, the next call opens it again."""
        used = self.scheduler
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))
        except StoreReplaced as error:
            if self._open_anew is None:
                raise
            if used is self.scheduler:
                log.warning("the next request opens the new store: %s", error.reason)
                self._change_to(self._open_anew())
            raise StoreReplaced(error.store, error.reason, "repeat it, the dashboard uses the new one now") from error

    def _change_to(self, scheduler: Scheduler) -> None:
        """Use another scheduler from now on."""
        self.scheduler = scheduler
        self.overviews = Overviews(scheduler)
        self.hub.change_to(scheduler)

    def end_threads(self) -> None:
        """End each thread after its call; an application that is started again gets others."""
        threads, self._threads = self._threads, _new_threads()
        threads.shutdown(wait=False)


def _new_threads() -> ThreadPoolExecutor:
    """Return the threads, none of which exists before the first call."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="taskqueue-web")


def root_of(request: Request) -> str:
    """Return the path that the dashboard is mounted at, "" for the top."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    """Return the path below that root."""
    return request.url.path.removeprefix(root_of(request)) or "/"


def wants_content(request: Request) -> bool:
    """Return whether the script of a page asks for the page's content alone."""
    return request.headers.get("x-part") == "content"


async def form_of(request: Request) -> Form:
    """Return the fields of a form. Raises ``Problem``."""
    if "content-type" not in request.headers and not await request.body():
        return Form()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem("unsupported-media-type", f"a form is application/x-www-form-urlencoded, not {kind[:100]!r}")
    try:
        text = (await request.body()).decode()
        return Form(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise Problem("malformed-request", f"the form cannot be read: {error}") from None
