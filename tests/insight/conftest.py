"""The clients and stores of the scheduler's tests: questions are asked through a client."""

from __future__ import annotations

from tests.scheduler.conftest import blocking, scheduler, store, url

__all__ = ["blocking", "scheduler", "store", "url"]
