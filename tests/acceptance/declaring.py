"""Jobs whose classes declare options, in a module that no test imports: only workers know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from taskqueue import Job, task


class Twice(Job):
    """Writes its attempt down, and fails at the first."""

    options: ClassVar[Any] = {"retry": 1, "retry_interval": 0, "queue": "mail", "timeout": 90}

    def start(self) -> int:
        with Path(self.data["file"]).open("a") as facts:
            facts.write(f"{self.attempt}\n")
        if self.attempt == 1:
            raise OSError("not yet")
        return self.attempt


class Single(Job):
    """Stops at a gate; only one may be pending."""

    options: ClassVar[Any] = {"unique": "single"}

    def start(self) -> str:
        return Path(self.data["gate"]).read_text()


class Mailer:
    """A class of another kind, whose ``options`` are its own affair."""

    options: ClassVar[Any] = {"smtp": "localhost"}

    def send(self, data: Any) -> Any:
        """Return the data."""
        return data


@task(retry=2, retry_interval=0, priority=-1)
def stumble(file: str) -> int:
    """Fail at the first call."""
    if not Path(file).exists():
        Path(file).touch()
        raise OSError("not yet")
    return 1
