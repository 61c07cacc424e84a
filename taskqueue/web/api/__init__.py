"""The JSON API: all operations in one table, which checks requests and generates the document."""

from __future__ import annotations

from taskqueue.web.api import bulk, figures, jobs, operations

ROUTES = (*jobs.ROUTES, *bulk.ROUTES, *operations.ROUTES, *figures.ROUTES)
"""All operations."""
