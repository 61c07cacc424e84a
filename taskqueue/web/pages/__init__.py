"""All pages; a new one is a function in a file of its own, a template, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from taskqueue.web.pages.overview import overview
from taskqueue.web.view import Page

PAGES: Sequence[Page] = (Page(path="/", show=overview, template="overview.html", title="Overview"),)
"""The pages in the order of the navigation."""
