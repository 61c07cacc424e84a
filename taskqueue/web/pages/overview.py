"""The overview: is it working, is it keeping up, what needs me."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.web.view import View


def overview(view: View) -> Mapping[str, Any]:
    """Return how many jobs each queue has in each status, and what is paused, drained or limited otherwise.

    Everything comes from counts that the store keeps, so that it takes as long with a million jobs as with ten:
    ``stats`` reads the tally, and the controls are few.
    """
    stats = view.scheduler.stats()
    controls = view.scheduler.controls()
    return {
        "total": stats["total"],
        "statuses": stats["statuses"],
        "queues": stats["queues"],
        "waiting_since": stats["waiting_since"],
        "controls": controls,
    }
