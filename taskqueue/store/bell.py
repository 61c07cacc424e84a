"""The bell: a descriptor that a listener waits on for changes of a topic."""

from __future__ import annotations

from typing import Protocol


class Bell(Protocol):
    """A file descriptor that is readable after changes of its topic by another connection; rings are hints."""

    pause: float
    """Seconds after which a listener looks at the store without a ring."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def clear(self) -> None:
        """Take all rings that have come."""

    def renew(self) -> bool:
        """Listen again if the bell can no longer ring, and return whether the descriptor has changed.

        Listeners call this after each pause without a ring.
        """

    def close(self) -> None:
        """Listen no more."""
