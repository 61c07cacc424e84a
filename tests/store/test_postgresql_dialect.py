"""Shared statements are written in PostgreSQL's words, once for each statement and schema."""

from __future__ import annotations

import pytest

from taskqueue.store.postgresql.database import translated


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT id FROM jobs WHERE id = ?", "SELECT id FROM s.jobs WHERE id = %s"),
        ("UPDATE jobs SET seat = :seat WHERE id = :id", "UPDATE s.jobs SET seat = %(seat)s WHERE id = %(id)s"),
        ("SELECT 'a?b' FROM jobs WHERE data LIKE '%:x'", "SELECT 'a?b' FROM s.jobs WHERE data LIKE '%%:x'"),
        ("SELECT '5'::bigint FROM jobs", "SELECT '5'::bigint FROM s.jobs"),
        ("BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        ("SELECT id FROM jobs INDEXED BY jobs_created WHERE +status = 1", "SELECT id FROM s.jobs  WHERE status = 1"),
        ("DELETE FROM jobs NOT INDEXED WHERE TRUE", "DELETE FROM s.jobs  WHERE TRUE"),
        (
            "SELECT id FROM (SELECT 1 AS number) AS these CROSS JOIN jobs ON jobs.rowid = number",
            "SELECT id FROM (SELECT 1 AS number) AS these JOIN s.jobs ON jobs.rowid = number",
        ),
        (
            "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?))",
            "SELECT id FROM s.jobs WHERE id IN (SELECT json_array_elements_text(%s))",
        ),
        (
            "SELECT id FROM jobs WHERE status IN (SELECT value FROM json_each(?))",
            "SELECT id FROM s.jobs WHERE status IN (SELECT json_array_elements_text(%s)::numeric)",
        ),
        (
            "UPDATE jobs SET status = 2 WHERE rowid IN (SELECT value FROM json_each(:numbers))",
            "UPDATE s.jobs SET status = 2 WHERE rowid IN (SELECT json_array_elements_text(%(numbers)s)::bigint)",
        ),
        (
            "INSERT INTO audit (at) VALUES (?)",
            "INSERT INTO s.audit (number, at) VALUES ((SELECT coalesce(max(number), 0) + 1 FROM s.audit), %s)",
        ),
        (
            "SELECT (CASE WHEN json_valid(error) THEN json_extract(error, '$.type') END) FROM jobs",
            "SELECT (error #>> '{type}') FROM s.jobs",
        ),
        (
            "SELECT (CASE WHEN json_valid(given) THEN json_extract(given, '$.meta.\"trace-id\"') END) FROM jobs",
            "SELECT (given #>> '{meta,\"trace-id\"}') FROM s.jobs",
        ),
        (
            "SELECT queue FROM jobs WHERE id = ? AND status = 2 AND seat = ?",
            "SELECT queue FROM s.jobs WHERE id = %s AND status BETWEEN 2 AND 2 AND seat = %s",
        ),
        ("SELECT instr(job, ?) FROM jobs", "SELECT strpos(job, %s) FROM s.jobs"),
        ("SELECT 1 FROM jobs WHERE typeof(queue) = 'text'", "SELECT 1 FROM s.jobs WHERE queue IS NOT NULL"),
        ("SELECT 1 FROM tally WHERE typeof(records) != 'integer'", "SELECT 1 FROM s.tally WHERE records IS NULL"),
    ],
)
def test_a_statement_says_the_same_in_the_words_of_postgresql(statement: str, expected: str) -> None:
    assert translated(statement, "s") == expected


def test_a_statement_is_translated_once_for_each_schema() -> None:
    first = translated("SELECT name FROM leases", "one")

    assert translated("SELECT name FROM leases", "one") is first
    assert translated("SELECT name FROM leases", "two") == "SELECT name FROM two.leases"
