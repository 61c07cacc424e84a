"""The stores of the tests of notifications."""

from __future__ import annotations

from tests.scheduler.conftest import blocking as scheduler
from tests.scheduler.conftest import store, url

__all__ = ["scheduler", "store", "url"]
