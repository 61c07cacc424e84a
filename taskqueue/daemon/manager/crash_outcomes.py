"""Outcomes that the manager reports for a worker that died or did not stop; detects kills for lack of memory."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taskqueue.daemon.manager.runs import CurrentRun
from taskqueue.daemon.manager.worker_handle import EndReason
from taskqueue.daemon.protocol.messages import Ended, EndKind, changed
from taskqueue.daemon.runtime import cgroup
from taskqueue.daemon.runtime.child_process import ChildExit
from taskqueue.execution.conditions import TOO_LONG
from taskqueue.execution.executor import overdue
from taskqueue.model.record import Failure
from taskqueue.model.wording import percent

MIB = 1024 * 1024


def fits_stop(outcome: str, reason: str) -> bool:
    """Return whether the outcome is the one that a run stopped for ``reason`` must have."""
    if reason == "cancel":
        return outcome == "Canceled"
    return reason != "timeout" or outcome in ("TimedOut", "CheckFailed")


def overruled_by_stop(ended: Ended, reason: str, current: CurrentRun) -> Ended:
    """Return the outcome that counts: the timeout or cancel came before the worker reported another one."""
    outcome, fields = _of_stop(reason, current, "and ended as it was asked to")
    return changed(ended, outcome=outcome, fields=fields)


def stalled(ended: Ended) -> Ended:
    """Return the end of a run that exceeded its ``stall_timeout``, not its ``timeout``."""
    return changed(ended, outcome="Stalled")


def by_foreign_signal(ended: Ended, message: str = "") -> Ended:
    """Return the end of a run that a SIGTERM of another process interrupted, unless its worker gives a reason.

    ``message`` describes a signal that was not for the worker.
    """
    if ended.fields.get("failure") is not None:
        return ended
    message = message or f"worker {ended.pid} was asked to exit by a SIGTERM that neither its node nor its manager sent"
    return changed(ended, fields={"failure": asdict(Failure(type="taskqueue.Interrupted", message=message))})


def after_earlier_run(ended: Ended) -> Ended:
    """Return the end of a run whose worker died because of an earlier run."""
    message = ended.fields["failure"]["message"]
    failure = Failure(type="taskqueue.Interrupted", message=f"an earlier job ended the worker of this one: {message}")
    return changed(ended, outcome="Interrupted", fields={"failure": asdict(failure)})


def with_limit(ended: Ended, current: CurrentRun) -> Ended:
    """Return the end of a run that took too long, with the limit it exceeded in its message."""
    failure = ended.fields["failure"]
    original = failure["message"]
    message = _limit_exceeded(current) if original in ("", "timeout") else f"{original} ({_limit_exceeded(current)})"
    return changed(ended, fields={**ended.fields, "failure": {**failure, "message": message}})


def of_death(current: CurrentRun, reason: str, exit: ChildExit, grace: float, cause: str = "") -> Ended:
    """Return the end of a run whose worker died; ``cause`` says in words why it died, if known."""
    run, started = current.queued.run, current.started
    if reason:
        how = f"and its worker, {exit}, did not end within the {grace:g} s of grace"
        outcome, fields = _of_stop(reason, current, how)
    else:
        outcome, fields = "Crashed", {"failure": asdict(_crash(current, exit, cause))}
    return Ended(
        id=run.id,
        claims=run.claims,
        outcome="Stalled" if outcome == "TimedOut" and current.has_stalled else outcome,
        fields=fields,
        pid=started.pid,
        started_at=started.at,
        exit=str(exit),
        peak_memory=exit.peak_memory,
    )


def cause_of(killed_for: str, running: int) -> str:
    """Return why a worker with this many running jobs died; empty if there is nothing to say."""
    if running < 2:
        return killed_for
    beside = f"{running} jobs ran in it at once, and the crash counts for each"
    return f"{killed_for}; {beside}" if killed_for else f"{beside}: which one ended it is not known"


def _of_stop(reason: str, current: CurrentRun, how: str) -> tuple[str, dict[str, Any]]:
    if reason == "cancel":
        return "Canceled", {}
    if reason == "timeout" and current.is_checking:
        return "CheckFailed", {"failure": asdict(overdue(f"{TOO_LONG} {how}"))}
    if reason == "timeout":
        return "TimedOut", {"failure": asdict(overdue(f"{_limit_exceeded(current)} {how}"))}
    return "Interrupted", {}


def _limit_exceeded(current: CurrentRun) -> str:
    run = current.queued.run
    if current.has_stalled:
        return f"the attempt gave no sign of progress for its stall_timeout of {run.stall_timeout:g} s"
    limit = "its time" if run.timeout is None else f"its timeout of {run.timeout:g} s"
    return f"the attempt took longer than {limit}"


def _crash(current: CurrentRun, exit: ChildExit, cause: str) -> Failure:
    """Return the failure that describes the death of a worker."""
    verb = "was" if exit.signal is not None else "has"
    facts = [f"worker {current.started.pid} {verb} {exit} while the job ran"]
    if cause:
        facts.append(cause)
    elif exit.signal == signal.SIGKILL:
        facts.append("a process killed it, perhaps itself, or the kernel did for lack of memory")
    facts.append(f"peak memory {exit.peak_memory / MIB:.0f} MiB")
    note = f" ({current.progress_message})" if current.progress_message else ""
    facts.append(f"last progress {percent(current.progress / 100)}{note}")
    return Failure(type="taskqueue.WorkerCrashed", message="; ".join(facts))


class OomKills:
    """Compares the kernel's counter of OOM kills with its value at the last call."""

    def __init__(self, proc: Path = cgroup.PROC, cgroups: Path = cgroup.CGROUPS) -> None:
        self._of_host = proc / "vmstat"
        self._of_cgroup = cgroup.oom_kills_file(proc, cgroups)
        self._known = self._counts()

    def explain_kill(self) -> EndReason:
        """Return the sender of a SIGKILL that did not come from the manager; call this soon after it."""
        (own_before, host_before), self._known = self._known, self._counts()
        own, host = self._known
        if own is not None and own_before is not None:
            if own > own_before:
                words = "the kernel killed it for lack of memory (an OOM kill in its cgroup)"
                return EndReason(words, EndKind.OUT_OF_MEMORY)
            return EndReason("a process killed it, perhaps itself: the kernel made no OOM kill in its cgroup")
        if host is None or host_before is None:
            return EndReason("a process killed it, perhaps itself, or the kernel did for lack of memory")
        if host > host_before:
            words = "the kernel killed a process of this host for lack of memory at that time, probably this one"
            return EndReason(words, EndKind.OUT_OF_MEMORY)
        return EndReason("a process killed it, perhaps itself: the kernel made no OOM kill on this host")

    def reset(self) -> None:
        """Start from the current value of the counter."""
        self._known = self._counts()

    def _counts(self) -> tuple[int | None, int | None]:
        if self._of_cgroup is not None:
            return cgroup.oom_kills(self._of_cgroup), None
        return None, cgroup.oom_kills(self._of_host)
