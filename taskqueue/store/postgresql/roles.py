"""Defines which rights a database user needs: to add jobs, to read them, or for everything a node does."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from psycopg import sql

KNOWN_TO_ADD = ("id", "status", "unique_key", "job", "data", "created_at")
"""The columns of a job that a user who may only add can read: they identify an existing job."""


class Role(Enum):
    """What a database user does with the store."""

    ADD = "add"
    READ = "read"
    NODE = "node"


def grants(schema: str, role: Role, user: str) -> Sequence[str]:
    """Return the statements that give the user the rights of the role in this schema."""
    name = sql.Identifier(user).as_string()
    usage = f"GRANT USAGE ON SCHEMA {schema} TO {name};"
    match role:
        case Role.ADD:
            columns = f"SELECT ({', '.join(KNOWN_TO_ADD)})"
            return (
                usage,
                f"GRANT SELECT ON {schema}.store TO {name};",
                f"GRANT INSERT, {columns} ON {schema}.jobs TO {name};",
            )
        case Role.READ:
            return usage, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name};"
        case Role.NODE:
            return (
                usage,
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name};",
                f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {name};",
            )


def missing(role: Role | None, user: str) -> str:
    """Return the way out for a user who lacks the rights of this role, or any rights."""
    kind = "KIND" if role is None else role.value
    kinds = ", with add, read or node for KIND" if role is None else ""
    return f"have an administrator run what `taskqueue migrate --grants {kind} {user}` prints{kinds}"
