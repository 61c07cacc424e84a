"""Where the shop finds its services and keeps its files, from the environment."""

import os
from dataclasses import dataclass, field
from pathlib import Path


def variable(name: str, default: str) -> str:
    """Return a field with the value that the environment has when the settings are made."""
    return field(default_factory=lambda: os.environ.get(f"BOOKSHOP_{name}", default))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Read anew by each job, so that a worker needs no restart."""

    folder: str = variable("FOLDER", "/var/lib/bookshop")
    smtp: str = variable("SMTP", "127.0.0.1:25")
    prices: str = variable("PRICES", "http://127.0.0.1:8000")
    owner: str = variable("OWNER", "owner@bookshop.example")

    @property
    def database(self) -> Path:
        return Path(self.folder) / "shop.db"

    @property
    def covers(self) -> Path:
        return Path(self.folder) / "covers"

    @property
    def smtp_server(self) -> tuple[str, int]:
        host, _, port = self.smtp.partition(":")
        return host, int(port)
