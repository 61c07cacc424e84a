"""A module that cannot be imported: what it raises is longer than a record may be, and names a password."""

from __future__ import annotations

from tests.acceptance.absurd import WORDS

raise ValueError(WORDS)
