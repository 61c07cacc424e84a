"""``taskqueue web``: serves the dashboard, and keeps the file of its users."""

from __future__ import annotations

import gc
import ipaddress
import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskqueue.cli import output
from taskqueue.cli.context import NewStoreContext, pass_new_store
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit

if TYPE_CHECKING:
    from taskqueue.web.users import Account, UsersFile

DEFAULT_LISTEN = "127.0.0.1:8030"

_users = click.option(
    "--users", type=click.Path(path_type=Path), envvar="TASKQUEUE_USERS", show_envvar=True, metavar="FILE",
    help="The file of users, which `taskqueue web user add` creates.",
)  # fmt: skip
_users_needed = click.option(
    "--users", type=click.Path(path_type=Path), envvar="TASKQUEUE_USERS", show_envvar=True, metavar="FILE",
    required=True, help="The file of users.",
)  # fmt: skip


@click.group("web", invoke_without_command=True, short_help="Serve the dashboard; manage its users.")
@click.option(
    "--listen", default=DEFAULT_LISTEN, show_default=True, metavar="[HOST:]PORT",
    help="Where to serve it; beyond this host only with --users or --header.",
)  # fmt: skip
@_users
@click.option("--header", metavar="NAME", help="The header in which a trusted proxy names the user.")
@click.option(
    "--header-role", type=click.Choice(["reader", "operator"]), default="reader", show_default=True,
    help="The role of users that --header names and --users does not.",
)  # fmt: skip
@click.option("--path", default="", metavar="PATH", help="The path prefix of its addresses, such as /jobs.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="A trusted proxy or network; repeatable.")
@click.option("--host-name", "hosts", multiple=True, metavar="NAME", help="A host name to answer under; repeatable.")
@click.option(
    "--mask", "secrets", multiple=True, metavar="REGEX", help="A further key whose values are masked; repeatable."
)
@click.option(
    "--addable", multiple=True, metavar="PATH", help="A class that may be added over HTTP; repeatable; default: none."
)
@click.option("--until-closed", is_flag=True, hidden=True)
@pass_new_store
def web_command(context: NewStoreContext, listen: str, until_closed: bool, **settings: Any) -> int | None:
    """Serve the dashboard, pages and JSON API, until Ctrl-C. It needs the extra web: pip install 'taskqueue-jobs[web]'.

    Without --users and --header it is served only to this host, and every user of this host is an operator. Other hosts
    are served only if users come from a file or a trusted proxy.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    if os.environ.get("TASKQUEUE_USERS") == "" and settings["users"] is None:
        raise ConfigError("the variable TASKQUEUE_USERS is empty: name the file of users, or remove it")
    host, port = _address(listen)
    settings["local"] = settings["users"] is None and settings["header"] is None
    if settings["local"] and not _is_loopback(host):
        raise ConfigError(
            f"--listen {listen} can be reached from other hosts, where every user would be an operator: "
            "pass --users or --header, or listen at 127.0.0.1"
        )
    settings["hosts"] = _hosts(host, settings["hosts"])
    return _serve(context, host, port, settings, until_closed=until_closed)


@web_command.group("user")
def _user() -> None:
    """Manage the users of the dashboard."""


@_user.command("add")
@click.argument("name")
@_users_needed
@click.option(
    "--role", type=click.Choice(["reader", "operator"]), default="reader", show_default=True,
    help="Whether the user may only look, or also act.",
)  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="The only queues an operator may act on.")
@click.option("--unmask", is_flag=True, help="May see values that look secret; each access is recorded in the audit.")
@click.option("--token", "with_token", is_flag=True, help="Make a token for programs, and print it once.")
@click.option("--no-password", is_flag=True, help="No password: the user logs in with a token or through a proxy.")
@output.json_option("JSON")
def _add(
    name: str,
    users: Path,
    role: str,
    queues: tuple[str, ...],
    unmask: bool,
    with_token: bool,
    no_password: bool,
    as_json: bool,
) -> None:
    """Add a user, or give an existing user a new role, password and token.

    On a terminal the password is asked for; otherwise it is read from the first line of standard input.
    """
    if queues and role == "reader":
        raise ConfigError(f"--queue {queues[0]} says where an operator may act: pass --role operator too")
    from_file = _file(users)
    from taskqueue.web.users import Role, User, account, with_new_token

    user = User(name=name, role=Role(role), queues=queues or None, unmask=unmask)
    account(user, None)  # the name is refused before a password is asked for
    made = account(user, None if no_password else _password())
    token = None
    if with_token:
        made, token = with_new_token(made)
    with from_file.changing() as accounts:
        is_known = name in accounts
        accounts[name] = made
    if as_json:
        output.write({**_shown(made), "token": token})
        return
    output.line(f"{'changed' if is_known else 'added'} {role} {name} in {users}")
    if token is not None:
        output.line(f"token, shown this once: {token}")


@_user.command("list")
@_users_needed
@output.json_option("JSON")
def _list(users: Path, as_json: bool) -> None:
    """List the users with their roles, queues and ways to log in."""
    accounts = _file(users).accounts()
    if as_json:
        output.write_all(_shown(account) for account in accounts.values())
        return
    for account in accounts.values():
        user = account.user
        queues = "" if user.queues is None else f", queues {', '.join(user.queues)}"
        ways = [*(["password"] if account.password else []), *(["token"] if account.tokens else [])]
        output.line(
            f"{user.name}  {user.role.value}{queues}{', unmasks' if user.unmask else ''}"
            f"  ({' and '.join(ways) or 'through a proxy'})"
        )


@_user.command("remove")
@click.argument("name")
@_users_needed
@output.json_option("JSON")
def _remove(name: str, users: Path, as_json: bool) -> int:
    """Remove a user; sessions and tokens end at once."""
    from_file = _file(users)
    with from_file.changing() as accounts:
        removed = accounts.pop(name, None)
    if as_json:
        output.write({"name": name, "removed": removed is not None})
    else:
        output.line(f"removed {name}" if removed else f"there is no user {name} in {users}", err=removed is None)
    return Exit.OK if removed else Exit.NOT_FOUND


def _serve(context: NewStoreContext, host: str, port: int, settings: dict[str, Any], *, until_closed: bool) -> int:
    try:
        from taskqueue.daemon.runtime import standard_streams
        from taskqueue.web.application import application
        from taskqueue.web.server import Server, listen
        from taskqueue.web.settings import path_from, settings_from
    except ImportError as error:
        raise _missing(error) from None
    path = path_from(settings.pop("path"))
    checked = replace(settings_from(**settings), path=path)
    server = Server(application(context.scheduler, checked, context.open_anew))
    with listen(host, port) as listening:
        standard_streams.install()  # a log that nobody reads must not keep users waiting
        if until_closed:
            server.stop_with_input()
        shown = f"[{host}]" if ":" in host else host
        whom = "every user of this host is an operator" if settings["local"] else "users have to log in"
        output.line(f"dashboard at http://{shown}:{listening.getsockname()[1]}{path}/ ({whom})")
        sys.stdout.flush()
        gc.freeze()  # modules live as long as the process: a collection that looks at them takes as long as a page
        try:
            with suppress(KeyboardInterrupt):  # it stopped because it was asked to
                server.run(sockets=[listening])
        finally:
            standard_streams.finish()
    return Exit.OK


def _address(listen: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:(?P<host>[^\[\]]*|\[[^\]]*\]):)?(?P<port>[0-9]{1,5})", listen)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"--listen {listen!r} is not an address: pass a port such as 8030, or HOST:PORT")
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts(host: str, named: tuple[str, ...]) -> list[str]:
    """Return the host names to answer to: the named ones, or the address and the names of this host."""
    if named:
        return list(named)
    own = f"[{host}]" if ":" in host else host
    return [own.lower(), "localhost", "127.0.0.1", "[::1]"]


def _file(path: Path) -> UsersFile:
    try:
        from taskqueue.web.users import UsersFile
    except ImportError as error:
        raise _missing(error) from None
    return UsersFile(path)


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"taskqueue web needs the package {error.name}: pip install 'taskqueue-jobs[web]'")


def _password() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return asked
    return "" if sys.stdin is None else sys.stdin.readline().rstrip("\r\n")


def _shown(account: Account) -> dict[str, Any]:
    user = account.user
    return {
        "name": user.name,
        "role": user.role.value,
        "queues": None if user.queues is None else list(user.queues),
        "unmask": user.unmask,
        "password": account.password is not None,
        "tokens": len(account.tokens),
    }
