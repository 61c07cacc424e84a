"""The JSON API: all operations in one table, from which requests are checked and the document is made."""

from __future__ import annotations

from taskqueue.web.api import figures, jobs, operations

ROUTES = (*jobs.ROUTES, *operations.ROUTES, *figures.ROUTES)
"""All operations."""
