"""The event loop and the policy of asyncio that plain jobs find: sets back what jobs changed of them.

It uses attributes of asyncio that are not public: each public way to ask for the current loop makes one, and from
Python 3.14 on those of policies warn.
"""

from __future__ import annotations

import sys
from typing import Any


class CurrentLoop:
    """The current event loop, and the policy of asyncio before the first run, if asyncio was imported by then."""

    def __init__(self) -> None:
        self._policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)

    def set_back(self) -> str:
        """Set back the policy, forget a current loop that is of no use, and return what a job had changed.

        ``asyncio.run`` leaves no loop, and forbids that one is made; a job may have closed its own. One that is open
        stays: libraries are bound to it.
        """
        events: Any = sys.modules.get("asyncio.events")
        if events is None:
            return ""
        policy, changed = getattr(events, "_event_loop_policy", None), ""
        if policy is not self._policy:
            if self._policy is None and type(policy).__module__ == "asyncio.unix_events":
                self._policy = policy  # asyncio made it when it was needed
            else:
                events._event_loop_policy = self._policy  # noqa: SLF001
                policy, changed = self._policy, "event loop policy"
        local: Any = getattr(policy, "_local", None)
        if getattr(local, "_set_called", False):
            loop = getattr(local, "_loop", None)
            if loop is None or loop.is_closed():
                local._set_called, local._loop = False, None  # noqa: SLF001
        return changed
