"""A replica set whose members are reached through proxies, by clients and by each other."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.proxy import Proxy
from tests.servers import SET_NAME, Cluster, Server


class ProxiedServer(Server):
    """A member that nobody can reach while its proxy is cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--replSet", SET_NAME)
        self.proxy = Proxy(lambda: self.port)

    @property
    def address(self) -> str:
        """Where it is reached, as ``host:port``."""
        return f"127.0.0.1:{self.proxy.port}"


class ProxiedCluster(Cluster):
    """A replica set of such members."""

    def __init__(self, folder: Path, *, size: int, election_timeout: float = 1.0) -> None:
        super().__init__(folder, size=0, election_timeout=election_timeout)
        self.reached = [ProxiedServer(folder / f"member-{number}") for number in range(size)]
        self.members = [*self.reached]

    def stop(self) -> None:
        """End all members and their proxies."""
        super().stop()
        for member in self.reached:
            member.proxy.close()
