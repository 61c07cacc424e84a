"""Lets threads know the run that started them, and pools of threads the run that each call came from.

Python before 3.14 starts a thread with an empty context, and a pool runs each call in the context of its thread. Only
workers change that, and only for the log fields: other context variables are as a job's libraries expect them. Where
``around_run`` may have set some, threads and calls get all of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial, wraps
from types import MethodType
from typing import Any

from taskqueue.model.log_fields import CURRENT, RunFields

_POOLS = "concurrent.futures.thread"
_installed: set[str] = set()


def install() -> None:
    """Do so for all threads and pools of this process."""
    if "threads" in _installed:
        return
    _installed.add("threads")
    start = threading.Thread.start

    @wraps(start)
    def start_in_run(thread: threading.Thread) -> None:
        if "pools" not in _installed and _POOLS in sys.modules:  # a pool is about to start its first thread
            _wrap_pools(sys.modules[_POOLS].ThreadPoolExecutor)
        fields = CURRENT.get()
        if fields is not None:
            run = thread.run if not fields.is_hooked else partial(copy_context().run, thread.run)
            # A method, as a library that has wrapped `start` before calls its function with the thread.
            thread.run = MethodType(partial(_run_thread, run, fields), thread)  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_in_run  # type: ignore[method-assign,assignment]


def _run_thread(run: Callable[[], None], fields: RunFields, thread: threading.Thread) -> None:
    del thread.run  # it refers to the thread
    CURRENT.set(fields)
    run()


def _wrap_pools(pool: Any) -> None:
    _installed.add("pools")
    submit = pool.submit

    @wraps(submit)
    def submit_in_run(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        fields = CURRENT.get()
        if fields is not None and fields.is_hooked:
            return submit(self, copy_context().run, fn, *args, **kwargs)
        return submit(self, _InRun(fn, fields), *args, **kwargs)

    pool.submit = submit_in_run


class _InRun:
    """Calls a function for a run."""

    __slots__ = ("_call", "_fields")

    def __init__(self, call: Callable[..., Any], fields: RunFields | None) -> None:
        self._call = call
        self._fields = fields

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = CURRENT.set(self._fields)
        try:
            return self._call(*args, **kwargs)
        finally:
            CURRENT.reset(token)
