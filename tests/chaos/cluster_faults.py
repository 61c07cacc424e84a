"""Faults of a cluster besides kills: processes stop, primaries die, members are cut off, each for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.chaos.fleet import Kind
from tests.chaos.process_fault import stop_between_writes
from tests.chaos.proxied import ProxiedCluster
from tests.chaos.storm import Storm

SERVERS_SUFFER = 3.0
"""Seconds that a member of the set is away."""


class ClusterFaults:
    """Hurts one member of the set at a time, and any number of processes; each recovers after a while."""

    def __init__(self, cluster: ProxiedCluster, storm: Storm, lease: float, seed: int) -> None:
        self._cluster = cluster
        self._storm = storm
        self._stopped_for = lease + 1.0
        self._chance = random.Random(seed)
        self._recoveries: list[tuple[float, Callable[[], None]]] = []
        self._member_is_hurt = False
        storm.strikes += [self._stop_one, self._kill_primary, self._cut_off]
        storm.meanwhile.append(self._recover)
        storm.afterwards.append(self._recover_all)

    def _stop_one(self) -> str | None:
        kind = self._chance.choice(list(Kind))
        process = self._storm.one(kind)
        if process is None:
            return None
        with suppress(psutil.NoSuchProcess, AssertionError):
            stop_between_writes(process)
        self._later(self._stopped_for, lambda: _resume(process))
        return f"{kind.value} stopped"

    def _kill_primary(self) -> str | None:
        if self._member_is_hurt:
            return self._stop_one()
        self._member_is_hurt = True
        member = self._cluster.kill_primary()
        self._later(SERVERS_SUFFER, lambda: self._heal(member.start))
        return "primary killed"

    def _cut_off(self) -> str | None:
        if self._member_is_hurt:
            return self._stop_one()
        self._member_is_hurt = True
        proxy = self._chance.choice(self._cluster.reached).proxy
        proxy.cut()
        self._later(SERVERS_SUFFER, lambda: self._heal(proxy.heal))
        return "member cut off"

    def _heal(self, how: Callable[[], None]) -> None:
        how()
        self._member_is_hurt = False

    def _later(self, seconds: float, recovery: Callable[[], None]) -> None:
        self._recoveries.append((time.monotonic() + seconds, recovery))

    def _recover(self) -> None:
        now = time.monotonic()
        due = [recovery for at, recovery in self._recoveries if at <= now]
        self._recoveries = [(at, recovery) for at, recovery in self._recoveries if at > now]
        for recovery in due:
            recovery()

    def _recover_all(self) -> None:
        for _, recovery in self._recoveries:
            recovery()
        self._recoveries.clear()
        self._cluster.primary()


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
