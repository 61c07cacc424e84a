"""Parses the address of a store, and hides the passwords in it, even if it is mistyped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from taskqueue.errors import ConfigError
from taskqueue.model.raw_value import flaw_of

ESCAPE = "correct the URL: a port is a number, and / ? # @ : in user and password are written as %XX"
"""What to do about the URL of a server that cannot be read."""

_SCHEME = re.compile(r"\s*[a-z][\w+.-]*:/+", re.IGNORECASE)
_PASSWORD = re.compile(r"^([^:]*):.*@", re.DOTALL)
"""Everything between the first colon after the scheme and the last ``@``: a password may hold any character."""

_NO_PORT = re.compile(r"^([^:/?#@\[]*):(?!\d+(?:[,/?#]|$))[^,/?#]*")
"""Matches a non-numeric port: the password of an address that lacks its server."""

_WRONG_PORT = re.compile(r"^[^\[]*:(?!\d+(?:,|$))")
"""Matches a list of servers with a port that is not a number: it is a part of a password."""

_OPTION = (
    r"(?i)(?<![^?&;=])(?=[^?&;=]*=)"
    r"(authMechanismProperties|taskqueue\.direct(?==[^&;]*%40)|[^?&;=]*(?:pass|pwd|secret|token)[^?&;=]*)=[^&;]*"
)
"""The address of another server may have a password, and be written with %XX.

The lookbehind and lookahead keep the time for a long word from growing with the square of its length."""
_WORD = re.compile(r"\S+")
_BEFORE_PASSWORD = re.compile(r"[a-z][\w+.-]{0,30}:/+[^\s:@/]*:", re.IGNORECASE)
"""The bound, below which any scheme ends, keeps the time for a long word from growing with the square of its length."""


def concealed(address: str) -> str:
    """Return the address with ``***`` in place of passwords and other secrets."""
    scheme = _SCHEME.match(address)
    begin, rest = ("", address) if scheme is None else (scheme[0], address[scheme.end() :])
    shown = _PASSWORD.sub(r"\1:***@", rest)
    if shown == rest and begin:
        shown = _NO_PORT.sub(r"\1:***", rest)
    return begin + (re.sub(_OPTION, r"\1=***", shown) if "=" in shown else shown)


def concealed_in(text: str) -> str:
    """Return the text with the secrets of its addresses concealed; one without an address costs next to nothing."""
    return _WORD.sub(_concealed_word, text) if ":/" in text and "@" in text else text


def _concealed_word(found: re.Match[str]) -> str:
    """Return the word with ``***`` from the first user in it to its last ``@``: in time that grows with its length."""
    word = found[0]
    end = word.rfind("@")
    before = None if end < 0 or ":/" not in word else _BEFORE_PASSWORD.search(word, 0, end)
    return word if before is None else f"{word[: before.end()]}***{word[end:]}"


def concealed_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with its ``--url`` concealed."""
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before == "--url":
            shown.append(concealed(argument))
        elif argument.startswith("--url="):
            shown.append(f"--url={concealed(argument.removeprefix('--url='))}")
        else:
            shown.append(argument)
    return shown


def without_url(arguments: Sequence[str]) -> list[str]:
    """Return a command line without ``--url``, for a process that finds the address in its environment."""
    return [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if before != "--url" and argument != "--url" and not argument.startswith("--url=")
    ]


def split(address: str) -> SplitResult:
    """Return the parts of a URL; raise ``ConfigError`` for one that cannot be taken apart."""
    try:
        return urlsplit(address)
    except ValueError:  # its words may hold a part of the password
        raise ConfigError(
            f"{concealed(address)} is not the address of a store: write sqlite:///path, postgresql://host/database or "
            "mongodb://host/database, and characters such as / ? # @ : [ in user and password as %XX"
        ) from None


def check_plain(url: str, parts: SplitResult) -> None:
    """Refuse addresses in which a driver would take part of a password for a name, or which it cannot read."""
    user, _, servers = parts.netloc.rpartition("@")
    if "@" in user + parts.path + parts.fragment or _WRONG_PORT.search(servers):
        raise ConfigError(f"{concealed(url)} cannot be read: {ESCAPE}")
    flaw = flaw_of(url)
    if not flaw and re.search(r"\s", servers + parts.path + parts.query):
        flaw = "has a space: remove it, or write %20"
    if flaw:
        raise ConfigError(f"the store {concealed(url)!r} {flaw}")
    if parts.fragment:
        raise ConfigError(f"'#{parts.fragment}' of {concealed(url)} is not read: {ESCAPE}")


def reveals(text: str, address: str) -> bool:
    """Return whether the text reveals a concealed part of the address."""
    parts, shown = (set(re.split(r"[:/?#@&=,;]", url)) for url in (address, concealed(address)))
    return any(part in text for part in parts - shown if part)
