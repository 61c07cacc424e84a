"""The operators' controls as one node sees them: its drain, and the changes since the last reading."""

from __future__ import annotations

import logging

from taskqueue.daemon.node.context import NodeContext
from taskqueue.model.controls import NONE, Control, Kind

log = logging.getLogger(__name__)


class ControlsView:
    """The controls as last read. The store applies them to claims anyway; this makes a node act at once."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._controls = NONE
        self.drain: Control | None = None
        """The control that drains this node; None if there is none."""

    def refresh(self) -> list[Control] | None:
        """Read the active controls, and return the new ones; None if nothing has changed."""
        controls = self._node.breaker.call(self._node.store.controls)
        if controls is None or controls.kept == self._controls.kept:
            return None
        before, self._controls = self._controls.kept, controls
        self.drain = self._controls.drain_of(self._node.holder.seat)
        for lifted in (control for control in before if control not in self._controls.kept):
            log.info("no longer active: %s", lifted)
        new = [control for control in self._controls.kept if control not in before]
        for control in new:
            log.info("%s, by %s%s", control, control.by, f": {control.reason}" if control.reason else "")
        return new


def holds_back(control: Control) -> bool:
    """Return whether claims that have not started must be handed back because of this control."""
    return control.kind is not Kind.LIMIT
