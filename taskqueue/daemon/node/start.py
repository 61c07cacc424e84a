"""Start a node: fork its manager, open its store, run it, and re-execute the program if a reload asked for it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Collection, Iterator

from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.node import signals_of_jobs
from taskqueue.daemon.node.manager_handle import ForkedManager
from taskqueue.daemon.node.node import Node
from taskqueue.daemon.node.signals_of_jobs import SignalFile
from taskqueue.daemon.runtime import child_process, standard_streams
from taskqueue.daemon.settings import Settings
from taskqueue.exit_codes import Exit
from taskqueue.insight import host
from taskqueue.model import log_fields
from taskqueue.model.lazy_dataclass import make_all
from taskqueue.store.open import open_store
from taskqueue.store.redaction import without_url

log = logging.getLogger(__name__)

COLLECT_AFTER = 50_000
"""New objects after which Python collects garbage. A turn makes thousands and no cycles; with Python's default of 700
the collections took a twentieth of the node's time."""


def run(settings: Settings, *, announce: Callable[[str], None], keep: Collection[int] = ()) -> int:
    """Run the node until a signal or an error stops it, and return the exit code (see ``exit_codes``).

    ``announce`` gets the lines of the start banner; manager and workers keep the descriptors in ``keep``, e.g. those of
    a log file. Raise ``ConfigError`` or ``StoreUnavailable`` at the start.
    """
    child_process.require_descriptors()
    child_process.require_linux()
    _check_receivers(settings)
    log_fields.install()
    log_fields.set_node(settings.name)
    make_all()
    gc.freeze()  # a collection while the store is opened would write to the pages shared with manager and workers
    siblings = {pid: host.born_at(pid) for pid in child_process.children()}
    forked = ForkedManager(*fork_manager(settings, keep), siblings)
    signals_of_jobs.hold()  # manager and workers must get them; threads of the store must not
    with contextlib.ExitStack() as undone:
        undone.callback(forked.end)
        undone.callback(signals_of_jobs.release)
        with _stoppable(forked):
            store = open_store(settings.url)
        undone.callback(store.close)
        node = Node(settings, store, forked)
        node.monitor.listen()
        undone.pop_all()
    for line in node.banner():
        announce(line)
    gc.freeze()  # objects made so far live as long as the process: no collection looks at them again
    gc.set_threshold(COLLECT_AFTER)
    child_process.become_subreaper()  # last: after an error this process may continue with something else
    code = node.run()
    standard_streams.finish()
    if node.restarts:
        log.info("re-executing to reload preloaded modules")
        arguments = without_url(sys.orig_argv[1:])  # every user of the host can read the password in them
        if settings.url is not None and arguments != sys.orig_argv[1:]:
            os.environ["TASKQUEUE_URL"] = settings.url
        signals_of_jobs.release(signals_of_jobs.STOPS)  # another reload waits for the new program
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - there is no shell
    return code


@contextlib.contextmanager
def _stoppable(forked: ForkedManager) -> Iterator[None]:
    """Exit at the first signal that stops a node, in a thread: opening a store may wait long, in C code as well."""
    signals, opened = SignalFile(signals_of_jobs.STOPS), os.eventfd(0)

    def exit_when_stopped() -> None:
        poll = select.poll()  # not select(), which ends at descriptor 1023
        for descriptor in (signals.fileno(), opened):
            poll.register(descriptor, select.POLLIN)
        if signals.fileno() in dict(poll.poll()):
            log.info("stopped while the store was being opened")
            forked.end()
            standard_streams.finish()
            os._exit(Exit.OK)

    thread = threading.Thread(target=exit_when_stopped, name="stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(opened, 1)
        thread.join()
        signals.close()
        os.close(opened)


def _check_receivers(settings: Settings) -> None:
    """Raise ``ConfigError`` if a receiver of notifications lacks its key, its password or its program."""
    if settings.notify:
        from taskqueue.notifications import receiver_of  # few nodes send notifications

        for text in settings.notify:
            receiver_of(text).check(os.environ)
