"""The operations on queues, nodes, failures and releases, each declared once: every face offers ``OPERATIONS``.

The faces are Python, asyncio, the command line, HTTP, the dashboard and ``top``. The method does the operation; the
declaration above it says how people name it, are asked before it, and are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.schedules import Duration
from taskqueue.scheduler import controls
from taskqueue.scheduler.connection import Connections, StoreOpener
from taskqueue.scheduler.wait import timeout_of
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.insight.failure_states import FailureDecision
    from taskqueue.insight.releases import Release
    from taskqueue.model.options.table import When

P = ParamSpec("P")
R = TypeVar("R")


class Target(str, Enum):
    """What an operation acts on."""

    __str__ = str.__str__

    QUEUE = "queue"
    NODE = "node"
    FAILURE = "failure"
    RELEASE = "release"

    def words(self, name: str) -> str:
        """Return the target of this name in words."""
        return f"{self} {name}" if name != EVERY_QUEUE else "every queue"

    def details(self, store: Store, name: str) -> Mapping[str, str]:
        """Return what the audit records beside the name of the target; raise ``InvalidOption`` if unknown."""
        if self is not Target.FAILURE:
            return {}
        from taskqueue.scheduler import failure_states

        group = failure_states.group_of(store, name)
        return {"error": group.fingerprint, "job": group.job}


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What faces need to offer the operation that the method below does.

    The first parameter of the method names the target. Faces pass ``reason``, ``by``, ``until`` and ``at``, and the
    command line ``wait``, to a method that has them.
    """

    target: Target
    called: str = ""
    """The name of its command and in the audit, if that is not the name of the method."""
    help: str
    """The help of its command; the first line is its summary over HTTP."""
    done: str
    """The answer in words; ``{target}`` is the target."""
    not_done: str = ""
    """The answer if the method returns False."""
    ask: str = ""
    """The sentence in the question before it; empty if it is done without a question."""
    key: str = ""
    """The key in ``top``; if its control is active, the key asks for the operation that clears it."""
    undone_by: str = ""
    """The name of the operation that undoes it, if it sets no control."""
    sets: Kind | None = None
    """The control that it sets."""
    clears: Kind | None = None
    """The control that it clears; then the method returns whether it was set."""
    is_stop: bool = False
    """Whether it is done although the audit cannot be written: any job can be stopped."""
    is_audited: bool = True
    """Whether faces keep it in the audit; False if the method does it."""

    def __call__(self, method: Callable[Concatenate[Any, P], R]) -> Operation[P, R]:
        """Declare the operation that the method does."""
        return Operation(method=method, **vars(self))


@dataclass(frozen=True, kw_only=True)
class Operation(Declaration, Generic[P, R]):
    """A declared operation: as a member of a client, its method."""

    method: Callable[Concatenate[Any, P], R]

    @overload
    def __get__(self, client: None, of: type) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: AwaitedOperations, of: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, client: BlockingOperations, of: type) -> Callable[P, R]: ...
    def __get__(self, client: object, of: type) -> Any:
        method = of._awaited(self) if issubclass(of, AwaitedOperations) else self.method  # noqa: SLF001 - of this file
        return method if client is None else MethodType(method, client)

    @property
    def name(self) -> str:
        """Return the name of its command and in the audit."""
        return self.called or self.method.__name__

    @property
    def verb(self) -> str:
        """Return what it does to its target, in a word: its name over HTTP and on buttons."""
        return self.method.__name__.partition("_")[0]

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return tuple(signature(self.method).parameters)

    def takes(self, value: str) -> bool:
        """Return whether the method has a parameter of this name."""
        return value in self._parameters

    def call(self, client: BlockingOperations, name: str | None, values: Mapping[str, Any]) -> R:
        """Do it to the target of this name, or with None to every queue, with the values that the method takes."""
        method = cast("Callable[..., R]", self.method)
        return method(client, name, **{key: value for key, value in values.items() if self.takes(key)})

    def details(self, client: BlockingOperations, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the audit records in addition to the target's name: facts of it, and the values of the method."""
        about = {key: value for key, value in values.items() if self.takes(key)}
        return {**self.target.details(client._connections.store, name), **about}  # noqa: SLF001 - of this file

    def words(self, name: str) -> str:
        """Return what it does to the target of this name, as an order."""
        return f"{self.verb.capitalize()} {self.target.words(name)}"

    def answer(self, target: str, result: object) -> str:
        """Return what was done to the target, in words."""
        return (self.not_done if result is False else self.done).format(target=target)

    def fits(self, control: Control | None) -> bool:
        """Return whether it changes something for a target with this control."""
        return (self.sets is None or control is None) and (self.clears is None or control is not None)

    def control_of(self, active: Iterable[Control], name: str) -> Control | None:
        """Return the active control of the target of this name that it sets or clears; None if there is none."""
        kind = self.sets or self.clears
        return next((control for control in active if control.kind is kind and control.name == name), None)

    def reverse(self) -> AnyOperation | None:
        """Return the operation that undoes this one, or clears the control that it sets; None if there is none."""
        if self.undone_by:
            return OPERATIONS[self.undone_by]
        return next(
            (operation for operation in OPERATIONS.values() if self.sets and operation.clears is self.sets), None
        )


AnyOperation = Operation[..., Any]


class DeclaredOperations:
    """The operations; each client inherits them."""

    _connections: Connections

    @Declaration(
        target=Target.QUEUE,
        help="""Pause a queue, or all.

        Nodes start none of its jobs until it is resumed. Running jobs continue. Jobs can still be added, and schedules
        still start them: they wait.
        """,
        ask="No node starts its jobs until it is resumed. Running jobs continue.",
        done="{target} is paused",
        key="p",
        sets=Kind.PAUSE,
        is_stop=True,
    )
    def pause(
        self, queue: str | None = None, reason: str = "", *, by: str | None = None, wait: Duration | None = None
    ) -> None:
        """Stop nodes from starting jobs of this queue, or of all queues, until ``resume``; running jobs continue.

        It is durable and holds for every claim when this returns. If ``wait`` is given, seconds or ``"5m"``, block for
        up to that long until no job of the queue is running; raises ``WaitTimeout``. ``by`` names the operator; the
        default is the user and host of this process. Schedules continue, and jobs are still added and become due: they
        wait.
        """
        self._set(Kind.PAUSE, queue, reason, by, wait)

    @Declaration(
        target=Target.QUEUE,
        help="""Resume a queue, or lift the pause of all.

        A queue that was paused both by name and with --all starts jobs again when both are resumed.
        """,
        done="{target} is resumed",
        not_done="no pause of {target} was active",
        clears=Kind.PAUSE,
    )
    def resume(self, queue: str | None = None) -> bool:
        """Lift the pause of the queue, or without a queue the pause of all queues, and return whether there was one.

        Jobs of a queue start when neither its own pause nor the pause of all queues is active.
        """
        return controls.clear(self._connections.store, Kind.PAUSE, queue)

    @Declaration(
        target=Target.NODE,
        help="""Stop a node from starting jobs.

        It starts none until it is undrained, even after a restart. Its running jobs continue. Jobs that it has claimed
        but not started go to other nodes.
        """,
        ask="It starts no more jobs. Its running jobs continue.",
        done="{target} starts no more jobs",
        key="d",
        sets=Kind.DRAIN,
        is_stop=True,
    )
    def drain(self, node: str, reason: str = "", *, by: str | None = None, wait: Duration | None = None) -> None:
        """Stop the node of this name from starting jobs until ``undrain``, even if the node is restarted.

        Its running jobs continue; jobs that it has claimed but not started go to other nodes. If ``wait`` is given,
        seconds or ``"5m"``, block for up to that long until no job is running there; raises ``WaitTimeout``.
        """
        self._set(Kind.DRAIN, node, reason, by, wait)

    @Declaration(
        target=Target.NODE,
        help="Allow a node to start jobs again.",
        done="{target} starts jobs again",
        not_done="{target} was not drained",
        clears=Kind.DRAIN,
    )
    def undrain(self, node: str) -> bool:
        """Allow the node to start jobs again, and return whether it was drained."""
        return controls.clear(self._connections.store, Kind.DRAIN, node)

    @Declaration(
        target=Target.FAILURE,
        help="""Mute an error of a class: it is no longer reported.

        It stays muted until its share of the attempts doubles, or until it happens again after it had stopped for an
        hour of the clock, for a week at most; or until a given time. Its jobs fail, are retried and are counted as
        before.
        """,
        ask="It is not reported until it grows or comes back, or until the time.",
        done="{target} is muted",
        key="m",
        undone_by="reopen",
    )
    def mute(
        self, failure: str, until: When | None = None, reason: str = "", *, by: str | None = None
    ) -> FailureDecision:
        """Report the failures of one class with one error neither as findings nor in notifications.

        ``failure`` is an id that ``taskqueue failures`` lists, or a fingerprint that one class has. ``until`` is a
        time, or a duration from now: ``"2h"``. Without it they are muted until their share of the attempts doubles, or
        until they happen again after an hour of the clock in which none happened, for a week at most. Raises
        ``InvalidOption``.
        """
        from taskqueue.scheduler import failure_states

        return failure_states.mute(self._connections.store, failure, until, reason, by)

    @Declaration(
        target=Target.FAILURE,
        help="""Mark an error of a class as resolved.

        It is no longer reported. If an attempt fails with it again, that is a finding at once, even if it is only one.
        """,
        ask="It is not reported until it happens again.",
        done="{target} is resolved",
        key="v",
        undone_by="reopen",
    )
    def resolve(self, failure: str, reason: str = "", *, by: str | None = None) -> FailureDecision:
        """Mark the failures of one class with one error as resolved, so that one more is a finding.

        Failures of the minute of this call do not count, later ones do. ``failure`` is as for ``mute``. Raises
        ``InvalidOption``.
        """
        from taskqueue.scheduler import failure_states

        return failure_states.resolve(self._connections.store, failure, reason, by)

    @Declaration(
        target=Target.FAILURE,
        help="Report an error of a class again that was muted or resolved.",
        done="{target} is reported again",
        key="o",
        not_done="{target} was neither muted nor resolved",
    )
    def reopen(self, failure: str) -> bool:
        """End the decision to mute or resolve these failures, and return whether there was one."""
        from taskqueue.scheduler import failure_states

        return failure_states.reopen(self._connections.store, failure)

    @Declaration(
        target=Target.RELEASE,
        called="release",
        help="""Mark a release: from now on, another version is in service.

        Charts show the mark, and an error that is first seen after it is reported as new since this release. Call it at
        the end of a deployment, on each host if you like: the first call counts.
        """,
        done="{target} is marked",
        undone_by="unmark",
    )
    def mark_release(self, release: str, at: When | None = None, *, by: str | None = None) -> Release:
        """Mark that a version with this name is in service from now on, and return the mark.

        ``at`` is since when instead: a time, or how long ago (``"20m"``), up to 90 days. Errors that are first seen
        after it are reported as new since this release, and charts show it. If the last release before this time has
        this name, its mark is returned unchanged. The last 100 marks are kept, for 90 days. Raises ``InvalidOption``.
        """
        from taskqueue.scheduler import releases

        return releases.mark(self._connections.store, release, at, by)

    @Declaration(
        target=Target.RELEASE,
        called="unmark",
        help="Remove the mark of a release.",
        done="{target} is no longer marked",
        not_done="{target} was not marked",
    )
    def unmark_release(self, release: str) -> bool:
        """Remove the marks of the release with this name, and return whether there was one."""
        from taskqueue.scheduler import releases

        return releases.unmark(self._connections.store, release)

    def _set(self, kind: Kind, name: str | None, reason: str, by: str | None, wait: Duration | None) -> None:
        """Set a pause or a drain, and wait up to ``wait`` until it affects no running job."""
        self._connections.refuse_if_immediate(f"{kind.value}()")
        seconds = timeout_of("wait", wait)
        control = controls.set_once(self._connections.store, kind, name, reason, by)
        if wait is not None:
            controls.until_idle(self._connections.store, control, seconds)


OPERATIONS: Mapping[str, AnyOperation] = {
    value.name: value for value in vars(DeclaredOperations).values() if isinstance(value, Operation)
}
"""All declared operations, by name."""


class BlockingOperations(DeclaredOperations):
    """The operations as calls that return when they have taken effect."""


class AwaitedOperations(DeclaredOperations):
    """The operations as calls that are awaited."""

    @staticmethod
    def _awaited(operation: AnyOperation) -> Callable[..., Any]:
        """Return the method of the operation as one that is awaited."""
        raise AssertionError(operation)  # AsyncScheduler does


class StoreOperations(BlockingOperations):
    """The operations on an open store."""

    def __init__(self, store: Store) -> None:
        self._connections = Connections(StoreOpener(open=lambda: store))


def of_target(target: Target) -> list[AnyOperation]:
    """Return the operations on such a target."""
    return [operation for operation in OPERATIONS.values() if operation.target is target]
