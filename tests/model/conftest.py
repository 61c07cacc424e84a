"""The scheduler that tests of the layer above have, for what is seen through it."""

from __future__ import annotations

from tests.scheduler.conftest import scheduler, store, url

__all__ = ["scheduler", "store", "url"]
