"""The bell: a descriptor that a listener waits on for changes of a topic, and the topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taskqueue.model.record import Record

WORK = "work"
"""The topic of the bell that rings when a job may have become claimable, also by this very connection's settle."""

STOPS = "stops"
"""The topic of the bell that rings when a running job was asked to stop."""

PLANS = "plans"
"""The topic of the bell that rings when a schedule may have another next time."""

CONTROLS = "controls"
"""The topic of the bell that rings when a control is set or cleared, and when a lease changes its holder."""

NEWS = "news"
"""The topic of the bell that rings when an event was recorded."""

ENDS = "ends"
"""The topic of the bell that rings when a job has ended, which is all that most listeners wait for."""


class Bell(Protocol):
    """A file descriptor that is readable after changes of its topic by another connection; rings are hints."""

    pause: float
    """Seconds after which a listener looks at the store without a ring."""
    keeps_rings: bool
    """Whether all rings since the bell was hung, also those of this process, wait for ``clear``."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def clear(self) -> Sequence[Record | None]:
        """Take all rings that have come; return the news of each.

        That is the record of a job of whose end alone it tells, or None: anything of its topic may have changed. A ring
        of what was told before may be left out.
        """

    def renew(self) -> bool:
        """Listen again if the bell can no longer ring, and return whether the descriptor has changed.

        Listeners call this after each pause without a ring.
        """

    def close(self) -> None:
        """Listen no more."""
