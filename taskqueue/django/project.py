"""The setting ``TASKQUEUE`` of a project: one address of the store for all its processes, and the options of its nodes.

The address becomes the variable ``TASKQUEUE_URL`` of each process, whatever it was before, so that every scheduler
without an address, every node and every command of the project is on the same store. The other keys are defaults of
the node's options, which variables and the command line override.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from taskqueue.errors import ConfigError
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.store.open import resolved
from taskqueue.store.sqlite.url import IMMEDIATE

URL = "URL"
"""The key of the address."""


def given() -> Mapping[str, Any]:
    """Return the setting, empty if the project has none. Raises ``ImproperlyConfigured``."""
    value = getattr(settings, "TASKQUEUE", {})
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(
            f"TASKQUEUE is {value!r}: write a mapping such as {{'URL': BASE_DIR / 'jobs.db', 'MAX_CHILDREN': 4}}"
        )
    return value


def address() -> str | None:
    """Return the address of the store, None if the setting has none. Raises ``ImproperlyConfigured``."""
    value = given().get(URL)
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise ImproperlyConfigured(f"TASKQUEUE['URL'] is {value!r}: pass a path or a URL")
    text = os.fspath(value)
    if text == IMMEDIATE:
        return text
    if "://" not in text and not os.path.isabs(text):
        raise ImproperlyConfigured(
            f"TASKQUEUE['URL'] is {text!r}, which is a different file in each working folder: write BASE_DIR / {text!r}"
        )
    try:
        return resolved(text)
    except ConfigError as error:
        raise ImproperlyConfigured(f"TASKQUEUE['URL']: {error}") from None


def name_store() -> None:
    """Make the address of the setting the default of this process, and of the processes that it starts."""
    url = address()
    if url is not None:
        os.environ["TASKQUEUE_URL"] = url


@cache
def scheduler() -> Scheduler:
    """Return the scheduler of the pages of this process, which is closed when the process ends."""
    opened = Scheduler()
    atexit.register(opened.close)
    return opened


def node_variables() -> dict[str, str]:
    """Return the variables for the other keys of the setting. Raises ``ConfigError`` and ``ImproperlyConfigured``."""
    from taskqueue.cli.node_options import variables_of  # late: a web process does not need a node's options

    return variables_of("TASKQUEUE", {key: value for key, value in given().items() if key != URL})
