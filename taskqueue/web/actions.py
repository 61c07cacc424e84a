"""Everything that can be done through the dashboard: one method each, for the pages and the API alike.

Each checks the user's rights, records the action in the audit, and does it.
"""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption, JobNotFound, ScheduleNotFound, WrongStatus
from taskqueue.model.controls import Kind
from taskqueue.model.ids import JobId, id_of_text, new_id
from taskqueue.model.options import value_of
from taskqueue.model.options.update import check_data_may_change
from taskqueue.model.record import OnFailure, Record, Status
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.serializer import decode
from taskqueue.model.wording import nearest
from taskqueue.scheduler import bulk_actions, schedules, workflows
from taskqueue.scheduler.audit_trail import acting, shown_query
from taskqueue.scheduler.bulk_actions import BulkActionState, Plan
from taskqueue.scheduler.changes import SAME_DATA, WAITS_AGAIN, after_update, is_data_of, typed_data
from taskqueue.scheduler.operations import AnyOperation, Target
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.schedule import Schedule
from taskqueue.scheduler.scheduler import Scheduler
from taskqueue.scheduler.search import Preview, preview
from taskqueue.web.masking import Masking
from taskqueue.web.problems import Problem
from taskqueue.web.settings import Settings
from taskqueue.web.users import Role
from taskqueue.web.viewers import Viewer

log = logging.getLogger(__name__)

SAMPLE = 5
"""How many of all matching jobs, and of the next times of a schedule, are shown."""

MOST_AT_ONCE = 1000
"""How many postponed jobs are started, or given up, together."""

STARTABLE: Mapping[str, Any] = {"status": int(Status.POSTPONED), "waiting_for": {"$exists": False}}
"""Jobs that wait for a time only, such as a pause before they are tried again."""

ONLY: Mapping[str, Mapping[str, Any]] = {"give-up": WAITS_AGAIN, "start-now": STARTABLE}
"""The queries of actions that concern only some of the matching jobs."""

FOLLOWED_AT_ONCE = 200
"""How many jobs have their children and dependents read at once; a query takes up to 500 values."""

KEY_FOR = "1d"
"""How long the key of an added job stays taken."""


@dataclass(frozen=True)
class Actions:
    """The actions of one viewer."""

    scheduler: Scheduler
    settings: Settings
    viewer: Viewer
    masking: Masking

    def add_job(self, job: str, data: Any, options: Mapping[str, Any], key: str | None = None) -> Process:
        """Add a job of an allowed class; with a ``key`` the same request adds it once, for a day."""
        self._check(options.get("queue"))
        self.check_class(job)
        given = dict(options)
        if key is not None:
            given.update(unique=_unique(self.viewer.user.name, key), unique_for=KEY_FOR)
        value = typed_data(job, data)
        id = value_of("id", given.get("id")) or new_id()
        given["id"] = id
        with self._acting("add", str(id_of_text(job, id) if isinstance(id, str) else id), job=job, key=key):
            process = self.scheduler.add_job(job, value, **given)
        if process.existed and (process.job != job or not is_data_of(process.snapshot, value)):
            raise Problem(
                "key-reused", f"the idempotency key belongs to job {process.id}, a different one: pass a new key"
            )
        return process

    def cancel_job(self, id: str, reason: str = "") -> Process:
        """Cancel a waiting job, or ask a running one to end."""
        process = self._job(id)
        if process.status > Status.PROCESSING:
            return process
        self._check_followers([process.id])
        with self._acting("cancel", str(process.id), job=process.job, reason=reason):
            return self.scheduler.cancel_job(process.id, self._reason(reason))

    def give_up_job(self, id: str, reason: str = "") -> Process:
        """End a job that waits to run again as failed."""
        process = self._job(id)
        self._check_followers([process.id])
        with self._acting("give up", str(process.id), job=process.job, reason=reason):
            return self.scheduler.give_up_job(process.id, self._give_up_reason(reason))

    def run_again(self, id: str, at: Any = None, data: Any = SAME_DATA) -> Process:
        """Run an ended job once more as a copy, with other data if they are passed, and return the copy."""
        process = self._job(id)
        self._check_declared(process.snapshot)
        given = data if data is SAME_DATA else self._data(process, data)
        with self._acting("run again", str(process.id), job=process.job, edited=data is not SAME_DATA):
            return self.scheduler.recover_job(process.id, at, data=given)

    def run_failed_part_again(self, id: str) -> list[Process]:
        """Run the failed part of a workflow again, which its id or the id of a member names; return the copies."""
        self._check_role()
        workflow = workflows.find(self.scheduler, id)
        if self.viewer.user.queues is not None:
            for member in workflow.processes:
                self._check(member.queue)
                self._check_declared(member.snapshot)
        with self._acting("run failed part again", str(workflow.id), job=workflow.processes[0].job):
            return self.scheduler.recover_workflow(workflow.id)

    def update_job(self, id: str, changes: Mapping[str, Any]) -> Process:
        """Change ``priority``, ``at``, ``queue``, ``tags`` or ``data`` of a waiting job."""
        process, given = self._update(id, changes)
        with self._acting("update", str(process.id), job=process.job, changed=sorted(changes)):
            return self.scheduler.update_job(process.id, **given)

    def preview_update(self, id: str, changes: Mapping[str, Any], now: datetime) -> Record:
        """Return the record as ``update_job`` would leave it; raise as it does, and change nothing."""
        process, given = self._update(id, changes)
        return after_update(process.snapshot, given, now)

    def _update(self, id: str, changes: Mapping[str, Any]) -> tuple[Process, dict[str, Any]]:
        """Return the job and its changes, with values for masks, if the user may make them."""
        process = self._job(id)
        if "queue" in changes:
            self._check(changes["queue"])
        else:
            self._check_declared(process.snapshot)
        given = dict(changes)
        if "data" in given:
            given["data"] = self._data(process, given["data"])
        return process, given

    @property
    def addable(self) -> list[str]:
        """Return the classes whose jobs may be added here, by name."""
        return sorted(self.settings.addable)

    def may_add(self, job: str) -> bool:
        """Return whether jobs of this class, or with data of the user's own, may be added here."""
        return job in self.settings.addable

    def unmask_job(self, id: str) -> Process:
        """Return the job for viewing its secret values, which needs a right of its own."""
        user = self.viewer.user
        if not user.unmask:
            raise Problem("forbidden", f"user {user.name} may not see secret values: a user with --unmask can")
        process = self.scheduler.get_job(id)
        with self._acting("unmask", str(process.id), job=process.job):
            return process

    def matching(
        self, action: str, query: Mapping[str, Any], at: datetime | None, looks_at: int | None = None
    ) -> Preview:
        """Return how many jobs an action on all that match concerns, those before ``at`` or all, and some of them.

        ``looks_at`` bounds how many jobs are looked at. Unless it does, the sample of an action that concerns up to
        ``MOST_AT_ONCE`` has the first of these.
        """
        order = "created_at" if action in ONLY else "-created_at"
        return preview(self.scheduler, self._meant(action, query, at), SAMPLE, looks_at, order)

    def act_on_matching(self, action: str, query: Mapping[str, Any], at: datetime, reason: str = "") -> int:
        """Do ``cancel``, ``give-up``, ``run-again`` or ``start-now`` to the jobs that match; return how many.

        Only jobs that were added, or for ``run-again`` had ended, before ``at`` are concerned; at most ``MOST_AT_ONCE``
        are given up or started at once, the oldest first. Jobs that another user has run again are left out, and so are
        their copies, even if the copies have ended since.
        """
        meant, shown = self._meant(action, query, at), shown_query(query, self.masking)
        if action in ONLY:
            return self._act_on_each(action, meant, shown, reason)
        if action == "run-again":
            self._check_all_declared(meant)
            with self._acting("run again", "jobs", query=shown):
                return len(self.scheduler.recover_jobs(meant))
        if action != "cancel":
            raise ValueError(f"action={action!r}: use cancel, {', '.join(ONLY)} or run-again")
        if self.viewer.user.queues is not None:
            self._check_followers([process.id for process in self.scheduler.get_jobs(meant)])
        with self._acting("cancel", "jobs", query=shown, number=self.scheduler.count_jobs(meant), reason=reason):
            return self.scheduler.cancel_jobs(meant, self._reason(reason))

    def _act_on_each(self, action: str, meant: Mapping[str, Any], shown: Any, reason: str) -> int:
        processes = self.scheduler.find_jobs(meant, order="created_at", limit=MOST_AT_ONCE)
        if action == "start-now":
            for process in processes:
                self._check_declared(process.snapshot)
            with self._acting("start now", "jobs", query=shown, number=len(processes)):
                return _number(processes, lambda process: self.scheduler.update_job(process.id, at=None))
        self._check_followers([process.id for process in processes])
        said = self._give_up_reason(reason)
        with self._acting("give up", "jobs", query=shown, number=len(processes), reason=reason):
            return _number(processes, lambda process: self.scheduler.give_up_job(process.id, said))

    def begin_bulk_action(self, name: str, query: Mapping[str, Any], at: datetime, given: Mapping[str, Any]) -> None:
        """Begin a bulk action of this name on the jobs that match and ended before ``at``, as ``given`` plans it."""
        meant = self._meant("run-again", query, at)
        plan = self._plan(given)
        self._check_all_declared(meant)
        bulk_actions.check_name(name)
        user, shown = self.viewer.user, shown_query(query, self.masking)
        with self._acting("begin bulk action", name, query=shown, plan=plan.says):
            bulk_actions.begin(self.scheduler, name, meant, plan, user.name, user.queues)

    def continue_bulk_action(self, name: str, given: Mapping[str, Any]) -> None:
        """Run the jobs again that no stage of a bulk action has looked at, as ``given`` plans it."""
        action = self._bulk_action(name)
        plan, user = self._plan(given), self.viewer.user
        with self._acting("continue bulk action", name, plan=plan.says):
            bulk_actions.add_rest(self.scheduler, name, plan, user.name, action.first.queues)

    def stop_bulk_action(self, name: str, reason: str = "") -> None:
        """Cancel the copies of a bulk action that have not started."""
        action = self._bulk_action(name)
        if self.viewer.user.queues is not None:
            queries = [bulk_actions.unstarted(results.stage.record.id) for results in action.stages]
            self._check_followers([process.id for query in queries for process in self.scheduler.get_jobs(query)])
        said = self._reason(reason or f"bulk action {name} stopped")
        with self._acting("stop bulk action", name, reason=reason):
            bulk_actions.stop(self.scheduler, name, said)

    def operate(self, operation: AnyOperation, name: str, values: Mapping[str, Any]) -> Any:
        """Do a declared operation to the target of this name, or with "" to all queues, and return its result."""
        self._check(name or None if operation.target is Target.QUEUE else None)
        if operation.target is Target.NODE:
            self._check_node(name)
        try:
            about = operation.details(self.scheduler, name, values)
        except InvalidOption as refused:
            raise Problem("not-found", str(refused)) from None
        with self._acting(operation.name, name, **about) if operation.is_audited else nullcontext():
            return operation.call(self.scheduler, name or None, {**values, "by": self.viewer.user.name})

    def set_limit(self, name: str, limit: int | str | None, reason: str = "") -> None:
        """Set a limit's number, or with None restore the declared one."""
        self._check(None)
        with self._acting("limit", name, limit=limit, reason=reason):
            self.scheduler.set_limit(name, limit, reason, by=self.viewer.user.name)

    def define_schedule(self, name: str, job: str, data: Any, options: Mapping[str, Any]) -> Schedule:
        """Define a schedule of an allowed class, or redefine the one of this name."""
        value = self._data_of_schedule(name, job, data, options)
        with self._acting("schedule", name, job=job):
            return self.scheduler.schedule(name, job, value, **options)

    def preview_schedule(
        self, name: str, job: str, data: Any, options: Mapping[str, Any], now: datetime
    ) -> list[datetime]:
        """Return the next times of the schedule that ``define_schedule`` would define; raise as it does."""
        value = self._data_of_schedule(name, job, data, options)
        plan = schedules.plan_of(name, job, value, options, {}, now)
        old: NamedSchedule | None = None
        with suppress(ScheduleNotFound):
            old = self.scheduler.get_schedule(name).snapshot
        after, _ = schedules.defined(old, plan, now)
        return schedules.preview(after, SAMPLE, now)

    def remove_schedule(self, name: str) -> None:
        """Remove a schedule; jobs that it has started stay."""
        schedule = self._schedule(name)
        with self._acting("remove schedule", name):
            schedule.remove()

    def trigger_schedule(self, name: str) -> Process:
        """Start a job of a schedule now, and return the job."""
        schedule = self._schedule(name)
        with self._acting("trigger", name):
            return schedule.trigger()

    def pause_schedule(self, name: str, reason: str = "") -> Schedule:
        """Stop a schedule from starting jobs."""
        schedule = self._schedule(name)
        with self._acting("pause schedule", name, reason=reason):
            return schedule.pause(reason)

    def resume_schedule(self, name: str) -> Schedule:
        """Let a schedule start jobs again."""
        schedule = self._schedule(name)
        with self._acting("resume schedule", name):
            return schedule.resume()

    def _job(self, id: str) -> Process:
        """Return the job; raise ``JobNotFound``, and ``Problem`` if the user may not act on it."""
        self._check_role()
        process = self.scheduler.get_job(id)
        self._check(process.queue)
        return process

    def _check_node(self, node: str) -> None:
        """Raise ``Problem`` for an unknown node: a drain of a misspelt name would do nothing."""
        drained = {control.name for control in self.scheduler.controls() if control.kind is Kind.DRAIN}
        nodes = drained | {state.name for state in self.scheduler.nodes()}
        if node not in nodes:
            command = f"`taskqueue drain {shlex.quote(node)}` drains one that is still to start"
            raise Problem("node-not-found", f"there is no node {node!r}{nearest(node, nodes) or ':'} {command}")

    def _data(self, process: Process, value: Any) -> Any:
        """Return edited data: values that were masked as they were, and all of the type that the job declares.

        A user who sends other data to a class can do what a new job of the class can: the class must be addable.
        """
        self.check_class(process.job)
        before = decode(process.snapshot.data)
        if value != self.masking.masked(before):  # even the same data: the answer must not confirm a guess of a secret
            check_data_may_change(process.snapshot)
        return typed_data(process.job, self.masking.restored(value, before))

    def _data_of_schedule(self, name: str, job: str, data: Any, options: Mapping[str, Any]) -> Any:
        """Return the data of the jobs of a schedule that the user may define, with the values for masks."""
        self._check(options.get("queue"))
        old: Any = None
        with suppress(ScheduleNotFound):
            template = self.scheduler.get_schedule(name).snapshot.template
            self._check(template.queue)
            old = decode(template.data) if template.job == job else None
        self.check_class(job)
        return typed_data(job, self.masking.restored(data, old))

    def _schedule(self, name: str) -> Schedule:
        self._check_role()
        schedule = self.scheduler.get_schedule(name)
        self._check(schedule.snapshot.template.queue)
        self._check_declared(schedule.snapshot.template)
        return schedule

    def _meant(self, action: str, query: Mapping[str, Any], at: datetime | None) -> Mapping[str, Any]:
        """Return the query for jobs that match, the user may act on, and ended, or were added, before this time.

        A job of the same millisecond may have been added after the count.
        """
        self._check_role()
        ended = action == "run-again"
        status = {"$gt" if ended else "$lte": int(Status.PROCESSING)}
        parts: list[Mapping[str, Any]] = [query, {"status": status}]
        if action in ONLY:
            parts.append(ONLY[action])
        if at is not None:  # a count without it may need the tally alone
            parts.append({"ended_at" if ended else "created_at": {"$lt": at}})
        if self.viewer.user.queues is not None:
            parts.append({"queue": {"$in": list(self.viewer.user.queues)}})
        return {"$and": parts}

    def _plan(self, given: Mapping[str, Any]) -> Plan:
        """Return the plan of a stage, whose copies run in a queue that the user may act on."""
        plan = bulk_actions.plan_of(self.scheduler, given)
        if plan.queue is not None:
            self._check(plan.queue)
        return plan

    def _bulk_action(self, name: str) -> BulkActionState:
        """Return a bulk action if the user may act on all its jobs and copies."""
        self._check_role()
        action = bulk_actions.read(self.scheduler, name)
        for stage in (results.stage for results in action.stages):
            queues: list[str | None] = [None] if stage.queues is None else [*stage.queues]
            for queue in [*queues, stage.plan.queue] if stage.plan.queue else queues:
                self._check(queue)
        return action

    def _check_role(self) -> None:
        if self.viewer.user.role is not Role.OPERATOR:
            raise Problem("forbidden", f"user {self.viewer.user.name} is a reader: an operator can do this")

    def _check(self, queue: str | None) -> None:
        """Refuse an action that the user may not do to this queue; None stands for things without a single queue."""
        self._check_role()
        user = self.viewer.user
        if not user.may_act_on(queue):
            allowed = ", ".join(user.queues or ())
            what = "this concerns more" if queue is None else f"this is queue {queue}"
            raise Problem("forbidden", f"user {user.name} may act only on the queues {allowed}: {what}")

    def check_class(self, job: str) -> None:
        """Refuse jobs of a class that may not be added here."""
        if not self.may_add(job):
            allowed = ", ".join(self.addable) or "none"
            says = f"jobs of {job} may not be added here: allowed are {allowed}; start it with --addable {job}"
            raise Problem("class-not-allowed", says)

    def _check_declared(self, record: Record) -> None:
        """Refuse to start a job whose class may yet declare another queue, unless the user may act on all queues."""
        user = self.viewer.user
        if user.queues is not None and record.options.undeclared and "queue" not in record.given:
            raise Problem(
                "forbidden",
                f"user {user.name} may act only on the queues {', '.join(user.queues)}: {record.job} was added by its "
                "path without a queue, and may declare another: an operator of all queues can do this",
            )

    def _check_all_declared(self, query: Mapping[str, Any]) -> None:
        """Refuse to start the jobs that match if it would be refused for one of them."""
        if self.viewer.user.queues is not None:
            for process in self.scheduler.get_jobs(query):
                self._check_declared(process.snapshot)

    def _check_followers(self, ids: list[JobId]) -> None:
        """Refuse to cancel jobs if that would end pending jobs in queues that the user may not act on."""
        if self.viewer.user.queues is None:
            return
        seen, unseen = set(ids), list(ids)
        while unseen:
            followers = self._followers(unseen[-FOLLOWED_AT_ONCE:])
            del unseen[-FOLLOWED_AT_ONCE:]
            for follower in followers:
                if not self.viewer.user.may_act_on(follower.queue):
                    self._refuse_follower(follower)
                if follower.id not in seen:
                    seen.add(follower.id)
                    unseen.append(follower.id)

    def _followers(self, ids: list[JobId]) -> list[Process]:
        """Return the pending jobs that are canceled with these: their children, and jobs that depend on them."""
        texts = [str(id) for id in ids]
        pending = {"status": {"$lte": int(Status.PROCESSING)}}
        children = self.scheduler.get_jobs({"parent": {"$in": texts}, **pending})
        dependents = self.scheduler.get_jobs({"waiting_for": {"$in": texts}, **pending})
        canceled = (
            dependent
            for dependent in dependents
            if any(job.id in ids and job.on_failure is OnFailure.CANCEL for job in dependent.snapshot.depends_on)
        )
        return [*children, *canceled]

    def _refuse_follower(self, follower: Process) -> None:
        user = self.viewer.user
        raise Problem(
            "forbidden",
            f"user {user.name} may act only on the queues {', '.join(user.queues or ())}: job {follower.id} of queue "
            f"{follower.queue} would be canceled, too: an operator of all queues can do this",
        )

    def _reason(self, reason: str) -> str:
        """Return the reason that is stored with a job, which names the user."""
        name = self.viewer.user.name
        return f"{reason} ({name})" if reason else f"canceled by {name}"

    def _give_up_reason(self, reason: str) -> str:
        return f"given up by {self.viewer.user.name}{reason and f': {reason}'}"

    def _acting(self, action: str, target: str, **about: Any) -> AbstractContextManager[None]:
        """Record in the audit who does what to what in the block."""
        return acting(self._keep, action, target, about)

    def _keep(self, action: str, target: str, about: Mapping[str, Any]) -> None:
        user, address = self.viewer.user.name, self.viewer.address
        log.info("%s of %r by %s from %s: %s", action, target, user, address, about)
        self.scheduler.record_action(action, target, by=user, source=address, about=about)


def _number(processes: Iterable[Process], act: Callable[[Process], Any]) -> int:
    """Do it to each job, and return to how many: others have just started, or were canceled."""
    number = 0
    for process in processes:
        with suppress(WrongStatus, JobNotFound):
            act(process)
            number += 1
    return number


def _unique(user: str, key: str) -> str:
    """Return the unique key for an idempotency key of a user, which no other user and key have.

    A name may have any characters and be as long as a unique key may: its hash stands for it.
    """
    return f"http:{hashlib.sha256(user.encode()).hexdigest()[:32]}:{key}"
