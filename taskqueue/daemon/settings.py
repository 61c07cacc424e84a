"""The settings of one node: plain values from command line, environment or file, checked together."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from taskqueue.errors import ConfigError, InvalidOption
from taskqueue.model.options import named, validators, value_of


class PoolMode(str, Enum):
    """How the number of workers follows the work."""

    STATIC = "static"  # min_children, always
    DYNAMIC = "dynamic"  # between min_children and max_children, by demand
    ONDEMAND = "ondemand"  # none idle, one for each job, at most max_children


class Lead(Enum):
    """When a node claims jobs: whenever it has its seat, or only while it also leads the cluster."""

    HOST = "host"
    CLUSTER = "cluster"


class Order(Enum):
    """Which queue has the next turn on a node: by shares of its runs, or by the oldest job of all queues."""

    FAIR = "fair"
    STRICT = "strict"


def _present_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise ConfigError("the current folder was removed: start the node in another one, or pass --chdir") from None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a node; durations in seconds, sizes in bytes. Raise ``ConfigError`` for a bad value."""

    url: str | None = None
    """The store; None means ``TASKQUEUE_URL``, or else the embedded database of this user."""
    name: str = field(default_factory=socket.gethostname)
    lead: Lead = Lead.HOST
    pm: PoolMode = PoolMode.DYNAMIC
    min_children: int = 1
    max_children: int = 2
    queues: Mapping[str, int | None] = field(default_factory=dict)
    """Each queue to work on with the most of its jobs at once (None: no bound); empty means every queue."""
    order: Order = Order.FAIR
    preload: tuple[str, ...] = ()
    bootstrap: Path | None = None
    schedules: str | None = None
    """The module whose declared schedules are applied when the node has its seat; None for no module."""
    outbox: tuple[str, ...] = ()
    """The outboxes, each ``module:name``, whose jobs the node moves to the store while it leads."""
    allow: tuple[str, ...] = ()
    """Modules whose jobs may run here, each with its submodules; empty means every module."""
    chdir: Path = field(default_factory=_present_folder)
    finish: float = 5.0
    grace: float = 4.0
    lease: float = 30.0
    max_jobs_per_child: int = 0
    """Jobs after which a worker is replaced; 0 means never."""
    max_memory: int = 0
    """Resident bytes above which a worker is replaced after its job; 0 means never."""
    idle_timeout: float = 30.0
    burst: bool = False
    """Run what is due now, and leave."""
    capture_output: bool = False
    """Keep what jobs print as log lines."""
    unroutable_after: float = 3600.0
    """Seconds for which a job whose class cannot be loaded is tried again."""
    keep_done: float = 5 * 86_400.0
    keep_failed: float = 30 * 86_400.0
    metrics: str | None = None
    """Where metrics and health are served by HTTP, ``host:port`` or ``port`` for this host alone; None: nowhere."""
    notify: tuple[str, ...] = field(default=(), repr=False)
    """The receivers of notifications; their addresses may be secret."""

    @property
    def slots(self) -> int:
        """Return how many jobs can run at once, not counting those with ``force_spawn``."""
        return self.min_children if self.pm is PoolMode.STATIC else self.max_children

    @property
    def floor(self) -> int:
        """Return how many workers are kept without work; in mode ``ondemand`` none, whatever ``min_children`` is."""
        return 0 if self.pm is PoolMode.ONDEMAND else self.min_children

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Return host and port of the metrics; None without them."""
        if self.metrics is None:
            return None
        host, _, port = self.metrics.rpartition(":")
        return host.strip("[]") or "127.0.0.1", int(port)

    def __post_init__(self) -> None:
        _can_be_a_node(self.name)
        _at_least("min_children", self.min_children, 0)
        _at_least("max_children", self.max_children, 1)
        if self.min_children > self.max_children:
            raise ConfigError(
                f"--min-children {self.min_children} is more than --max-children {self.max_children}: "
                "lower one or raise the other"
            )
        if self.slots < 1:
            raise ConfigError("--pm static with --min-children 0 runs no job: pass --min-children 1 or more")
        for name, least in _LEAST.items():
            _at_least(name, getattr(self, name), least)
        for queue, bound in self.queues.items():
            _can_be_a_queue(queue)
            if bound is not None:
                _bounded(queue, bound)
        _can_be_an_address(self.metrics)
        for module in self.preload:
            _is_module("preload", module)
        if self.schedules is not None:
            _is_module("schedules", self.schedules)
        for path in self.outbox:
            _is_outbox(path)
        for prefix in self.allow:
            _is_module("allow", prefix)
        _can_be_receivers(self.notify)


_LEAST: Mapping[str, float] = {
    "finish": 0,
    "grace": 0,
    "lease": 2,
    "max_jobs_per_child": 0,
    "max_memory": 0,
    "idle_timeout": 0,
    "unroutable_after": 0,
    "keep_done": 0,
    "keep_failed": 0,
}


def _option(name: str) -> str:
    """Return the name of the option, as people write it."""
    return f"--{name.replace('_', '-')}"


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < float("inf"):
        raise ConfigError(f"{_option(name)} {value:g} is out of range: pass {least:g} or more")


def _bounded(queue: str, bound: int) -> None:
    if bound < 1:
        raise ConfigError(f"--work-on {queue}={bound} is out of range: pass 1 or more")


def _can_be_a_queue(name: str) -> None:
    """Refuse a name that no job can have as its queue: the node would never get a job."""
    try:
        value_of("queue", name)
    except InvalidOption as refused:
        raise ConfigError(f"--work-on: {refused}") from None


def _can_be_an_address(value: str | None) -> None:
    """Refuse a value that is neither a port nor host and port."""
    port = "" if value is None else value.rpartition(":")[2]
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 2**16
    if value is not None and not (is_port and value.isprintable()):
        raise ConfigError(f"--metrics {value!r} is not an address: pass a port such as 9464, or HOST:PORT")


def _can_be_receivers(texts: tuple[str, ...]) -> None:
    if texts:
        from taskqueue.notifications import receiver_of  # few nodes send notifications

        for text in texts:
            receiver_of(text)


def _is_module(name: str, value: str) -> None:
    if not all(part.isidentifier() for part in value.split(".")):
        raise ConfigError(f"{_option(name)} {value!r} is not the name of a module: pass one such as shop or shop.mail")


def _is_outbox(path: str) -> None:
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ConfigError(f"--outbox {path!r} is not the path of an outbox: pass MODULE:NAME, such as shop.jobs:outbox")


def _can_be_a_node(name: str) -> None:
    try:
        named("name", name, validators.node)
    except InvalidOption as refused:
        raise ConfigError(str(refused)) from None
