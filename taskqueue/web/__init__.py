"""The dashboard: pages and a JSON API over a scheduler, closed by default (extra ``web``)."""

from __future__ import annotations

from taskqueue.web.application import app

__all__ = ["app"]
