"""``replace`` for records: the type checker sees that of ``dataclasses``, and what runs is the quicker ``changed``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the type checker knows which fields this takes, and of no other function
    from dataclasses import replace
else:
    from taskqueue.model.record import changed as replace

__all__ = ["replace"]
