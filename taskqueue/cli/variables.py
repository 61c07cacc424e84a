"""Reports mistyped variables ``TASKQUEUE_…``, which no option reads.

It is separate from the options of a node because every command checks its variables and few import those options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches

from taskqueue.errors import ConfigError
from taskqueue.model.raw_value import flaw_of
from taskqueue.store.redaction import concealed

PREFIX = "TASKQUEUE_"

_OF_ALL = (
    *("TASKQUEUE_URL", "TASKQUEUE_RUNTIME_DIR", "TASKQUEUE_USERS"),
    *("TASKQUEUE_NOTIFY_KEY", "TASKQUEUE_NOTIFY_KEY_FILE"),
    *("TASKQUEUE_NOTIFY_PASSWORD", "TASKQUEUE_NOTIFY_PASSWORD_FILE"),
)
"""Variables that are not options of a node, or also belong to commands."""


def check() -> None:
    """Raise ``ConfigError`` for values with quotes or spaces that a shell would have removed; ignore empty ones."""
    for name, value in os.environ.items():
        if not name.startswith(PREFIX) or not value:
            continue
        flaw = flaw_of(value)
        if name == "TASKQUEUE_RUNTIME_DIR" and not flaw and not os.path.isabs(value):
            flaw = "is not an absolute path: pass one such as /run/taskqueue"
        if flaw and name.removeprefix(PREFIX) in _known():
            shown = "…" if name == "TASKQUEUE_NOTIFY" else repr(concealed(value))  # the path of a webhook may be secret
            raise ConfigError(f"the variable {name}={shown} {flaw}")


def unread() -> Iterator[str]:
    """Yield a sentence for each of these variables that taskqueue does not know; its value is not shown."""
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in _OF_ALL]
    if not given:
        return
    names = _known()
    for name in sorted({name.removeprefix(PREFIX) for name in given} - {*names}):
        near = get_close_matches(name, names, n=1)
        way_out = f"did you mean {PREFIX}{near[0]}?" if near else f"use {', '.join(PREFIX + other for other in names)}"
        yield f"unknown variable {PREFIX}{name}: {way_out}"


def _known() -> list[str]:
    """Return the names of our variables without the prefix."""
    from taskqueue.cli.node_options import NODE  # imported late: most commands do not need them

    return sorted(["CONFIG", "RUNTIME_DIR", "USERS", *(str(option.envvar).removeprefix(PREFIX) for option in NODE)])
