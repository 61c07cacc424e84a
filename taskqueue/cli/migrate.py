"""``taskqueue migrate``: bring an older store to the schema of this version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import click

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.store.migration import MigrationPlan, carry_out, open_migration, open_sql_migration, pending_steps


@click.command("migrate", short_help="Migrate the store to the schema of this version.")
@click.option("--dry-run", is_flag=True, help="Only print the steps.")
@click.option("--sql", "as_sql", is_flag=True, help="Only print the steps, as SQL for PostgreSQL.")
@click.option(
    "--grants",
    type=(click.Choice(["add", "read", "node"]), str),
    multiple=True,
    metavar="KIND USER",
    help="Print the SQL that grants a PostgreSQL user the rights to `add` jobs, to `read`, or to run a `node`.",
)
@output.json_option("one JSON object")
@pass_store
def migrate_command(
    context: StoreContext, dry_run: bool, as_sql: bool, grants: Sequence[tuple[str, str]], as_json: bool
) -> None:
    """Bring the store to the schema of this version, in numbered steps.

    Before that, back up the store and stop all nodes and applications that use it.
    """
    if (as_sql or grants) and (dry_run or as_json):
        raise click.UsageError("--sql and --grants only print SQL: pass them without --dry-run and --json")
    if as_sql or grants:
        with closing(open_sql_migration(context.url)) as sql_migration:
            steps = [sql_migration.statements()] if as_sql else []
            statements = "".join([*steps, *(sql_migration.grants(role, user) for role, user in grants)])
        for line in statements.splitlines():
            output.line(line)
        return
    with closing(open_migration(context.url)) as migration:
        planned = pending_steps(migration)
        if not dry_run:
            carry_out(migration, planned)
    if as_json:
        output.write(_document(planned, dry_run=dry_run))
        return
    if not planned.steps:
        output.line(f"the store has schema {planned.found}, the schema of this version: nothing to do")
    for number, what in planned.steps.items():
        output.line(f"{'would go' if dry_run else 'went'} to schema {number}: {what}")
    if planned.in_the_way:
        output.line(f"stop the nodes of an older taskqueue first: {', '.join(planned.in_the_way)}")


def _document(planned: MigrationPlan, *, dry_run: bool) -> dict[str, object]:
    return {
        "found": planned.found,
        "known": planned.known,
        "steps": [{"schema": number, "what": what} for number, what in planned.steps.items()],
        "in_the_way": list(planned.in_the_way),
        "migrated": not dry_run and bool(planned.steps),
    }
