"""Writes the shared statements of the relational store as PostgreSQL reads them: once for each, then from a cache."""

from __future__ import annotations

import functools
import re

TABLES = (
    *("jobs", "slots", "waits", "tally", "logs", "counted", "history", "turns", "events", "plans", "controls"),
    *("leases", "audit", "store"),
)
NUMBERED = "events|turns|audit"
"""The tables whose rows are numbered in the order of commits: the greatest number and one, under the store's lock."""

NUMBERS = (
    *("status", "forced", "rank", "ready_at", "claims", "failures", "crashes", "priority", "created_at", "started_at"),
    *("ended_at", "expires_at", "progress"),
)
_STEP = re.compile(r'"[^"]*"|\w+')
"""A step of the path to a value in JSON."""

_LIST = r"json_each\((\?|:\w+|'[^']*')\)"
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*BEGIN\s*$", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        (r"\b(?:NOT INDEXED|INDEXED BY \w+)", ""),
        (r"(?<=[\s(])\+(?=[a-z])", ""),
        (r"\bCROSS JOIN (\w+(?: AS \w+)?) ON\b", r"JOIN \1 ON"),
        (
            rf"INSERT INTO ({NUMBERED}) \((?!number)([^)]*)\)\s*VALUES \(",
            r"INSERT INTO \1 (number, \2) VALUES ((SELECT coalesce(max(number), 0) + 1 FROM \1), ",
        ),
        (
            rf"(\b(?:{'|'.join(NUMBERS)})|1000\.0 END\)|ELSE 0 END\)) IN \(SELECT value FROM {_LIST}\)",
            r"\1 IN (SELECT json_array_elements_text(\2)::numeric)",
        ),
        (rf"\browid IN \(SELECT value FROM {_LIST}\)", r"rowid IN (SELECT json_array_elements_text(\1)::bigint)"),
        (rf"SELECT value AS number FROM {_LIST}", r"SELECT json_array_elements_text(\1)::bigint AS number"),
        (
            rf"FROM {_LIST} AS these JOIN jobs ON jobs\.rowid",
            r"FROM (SELECT json_array_elements_text(\1)::bigint AS value) AS these JOIN jobs ON jobs.rowid",
        ),
        (rf"FROM {_LIST} AS (\w+)", r"FROM (SELECT json_array_elements_text(\1) AS value) AS \2"),
        (rf"SELECT value FROM {_LIST}", r"SELECT json_array_elements_text(\1)"),
        (
            r"json_each\(CASE WHEN json_valid\(([\w.]+)\) THEN \1 END\)(?: AS (\w+))?",
            lambda found: (
                f"(SELECT json_array_elements_text(CASE WHEN json_typeof({found[1]}) = 'array' THEN {found[1]} END) "
                f"AS value) AS {found[2] or 'element'}"
            ),
        ),
        (
            r"\(CASE WHEN json_valid\(([\w.]+)\) THEN json_extract\(\1, '\$\.([^']+)'\) END\)",
            lambda found: f"({found[1]} #>> '{{{','.join(_STEP.findall(found[2]))}}}')",
        ),
        (r"\binstr\(", "strpos("),
        (r"\w+ < x''", "TRUE"),
        (r"\b(started_at|ended_at|claims|failures|crashes|progress_at) = new\.(column\d+)", r"\1 = new.\2::bigint"),
        (r"\bprogress = new\.(column\d+)", r"progress = new.\1::double precision"),
        (r"\btypeof\(([\w.]+)\) = '\w+'", r"\1 IS NOT NULL"),
        (r"\btypeof\(([\w.]+)\) != '\w+'", r"\1 IS NULL"),
        (r"\bifnull\(", "coalesce("),
        (r"(\S+) IS NOT (\?|:\w+)", r"\1 IS DISTINCT FROM \2"),
        (r"(\S+) IS (\?|:\w+)", r"\1 IS NOT DISTINCT FROM \2"),
    )
)
_TEXTS = re.compile(r"('[^']*')")
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE|ON) ({'|'.join(TABLES)})\b(?!\.)")
_NAME = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@functools.lru_cache(maxsize=2048)
def translated(statement: str, schema: str) -> str:
    """Return the statement with the tables of this schema, in the words of PostgreSQL and its driver."""
    for pattern, replacement in _RULES:
        statement = pattern.sub(replacement, statement)
    statement = _TABLE.sub(rf"\1 {schema}.\2", statement).replace("%", "%%")
    parts = _TEXTS.split(statement)
    parts[::2] = (_NAME.sub(r"%(\1)s", part).replace("?", "%s") for part in parts[::2])
    return "".join(parts)
