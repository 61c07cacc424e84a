"""Where the shop finds its services and keeps its files, from the environment."""

import os
from dataclasses import dataclass, field
from pathlib import Path


def variable(name: str, default: str) -> str:
    """Return a field with the value that the environment has when the settings are made."""
    return field(default_factory=lambda: os.environ.get(f"SHOP_{name}", default))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Made anew by each job, so that each test can have other values."""

    folder: str = variable("FOLDER", "/var/lib/shop")
    smtp: str = variable("SMTP", "127.0.0.1:25")
    wholesaler: str = variable("WHOLESALER", "http://127.0.0.1:8000")
    owner: str = variable("OWNER", "owner@shop.example")
    import_pause: str = variable("IMPORT_PAUSE", "0")
    """Seconds after each batch of an import, which customers have the database for."""

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
