"""Words of Celery, RQ, Huey and Dramatiq that mean nothing here, each with its equivalent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("countdown", "delay", "delay_seconds", "eta", "run_at", "scheduled_time"), "at"),
    **dict.fromkeys(("max_retries", "retries", "retry_backoff", "retry_backoff_max", "retry_jitter"), "retry"),
    **dict.fromkeys(("retry_kwargs", "retry_policy", "min_backoff", "max_backoff", "backoff"), "retry"),
    **dict.fromkeys(("default_retry_delay", "retry_delay"), "retry_interval"),
    **dict.fromkeys(("autoretry_for", "dont_autoretry_for", "retry_when", "throws", "retry_for"), "retry_on"),
    **dict.fromkeys(("expire", "max_age", "ttl"), "expires"),
    **dict.fromkeys(("time_limit", "timelimit", "soft_time_limit", "job_timeout"), "timeout"),
    **dict.fromkeys(("rate_limit", "max_concurrency"), "limits"),
    **dict.fromkeys(("acks_late", "task_acks_late", "reject_on_worker_lost"), "on_crash"),
    **dict.fromkeys(("job_id", "task_id"), "id"),
    **dict.fromkeys(("queue_name", "routing_key", "exchange"), "queue"),
    "at_front": "priority",
    "headers": "meta",
}
"""Options of a job, each with the option here."""

_HOOKS = "add a job with depends_on, or define on_success and on_last_failure on a class of jobs"
_DATA = "send.add(scheduler, 'ann') takes arguments, and add_job(send, {'to': 'ann'}) a mapping of them"
_RESULTS = "the result is a part of the job, which nodes keep for --keep-done and --keep-failed"

_STORE = "Scheduler('postgresql://host/db') takes the address of the store, which has both jobs and results"

WAYS: Mapping[str, str] = {
    "bind": "call current_job() in the task, or declare it with @task(context=True)",
    **dict.fromkeys(("link", "link_error", "on_success", "on_failure", "pipe_target"), _HOOKS),
    **dict.fromkeys(("ignore_result", "store_results", "result_ttl", "failure_ttl", "result_expires"), _RESULTS),
    **dict.fromkeys(("cron", "crontab"), "scheduler.schedule(name, job, cron='0 3 * * *') starts jobs again and again"),
    **dict.fromkeys(
        ("every", "run_every"), "interval='1h' runs this job again and again, and scheduler.schedule() has every='1h'"
    ),
    "base": "subclass Job instead of writing a function",
    **dict.fromkeys(("args", "kwargs"), _DATA),
    **dict.fromkeys(("broker", "broker_url", "backend", "result_backend", "redis", "connection_pool"), _STORE),
    **dict.fromkeys(
        ("task_routes", "include", "imports"), "queue goes with each task, class or call; nodes import jobs"
    ),
    "serializer": "data are JSON with dates, Decimal, bytes and declared types",
    "track_started": "a job that runs is PROCESSING, without an option",
    "shadow": "@task(name='Send a letter') names the jobs of a task for people",
}
"""Options of a job without an equivalent here, each with another way to achieve the same."""

COMMAND_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("c", "concurrency", "workers", "processes", "threads", "autoscale", "max-workers"), "max-children"
    ),
    **dict.fromkeys(("Q", "queue", "queues"), "work-on"),
    **dict.fromkeys(("broker", "broker-url", "redis-url", "database-url"), "url"),
    **dict.fromkeys(("n", "hostname"), "name"),
    **dict.fromkeys(("l", "loglevel", "logging-level"), "log-level"),
    **dict.fromkeys(("P", "pool", "worker-type"), "pm"),
    **dict.fromkeys(("max-tasks-per-child", "max-jobs", "maxtasksperchild"), "max-jobs-per-child"),
    "max-memory-per-child": "max-memory",
    **dict.fromkeys(("A", "app", "include", "require"), "bootstrap"),
    **dict.fromkeys(("p", "port", "address", "bind", "host"), "listen"),
    **dict.fromkeys(("args", "kwargs"), "data"),
    "state": "status",
    "q": "queue",
}
"""Options of commands, each with the option here."""

COMMAND_WAYS: Mapping[str, str] = {
    **dict.fromkeys(
        ("D", "daemon", "daemonize", "detach", "pidfile"),
        "it runs in the foreground: `taskqueue systemd` writes a unit that starts it in the background",
    ),
    **dict.fromkeys(("B", "beat", "with-scheduler"), "every node starts jobs at their times and by their schedules"),
    **dict.fromkeys(("offset", "skip", "page"), "`list --limit 0` shows all jobs, and scheduler.find_jobs has pages"),
    **dict.fromkeys(
        ("p", "port", "host", "address", "bind"),
        "`taskqueue web --listen PORT` serves the dashboard, and `taskqueue-node --metrics PORT` metrics",
    ),
    **dict.fromkeys(
        ("Q", "queue", "queues"), "`list queue:mail` shows the jobs of a queue, `cancel --query queue:mail` ends them"
    ),
    **dict.fromkeys(("A", "app"), "jobs are found by their import path, in the folder of the node or in --chdir"),
}
"""Options of commands without an equivalent here, each with another way to achieve the same."""

OF_TASKS: Mapping[str, str] = {
    "retry": "raise Retry(60) in the task, with the option retry, to run it again",
    "request": "current_job() has id, attempt and meta",
    "update_state": "current_job() has progress(50, 'half') and checkpoint(state)",
    **dict.fromkeys(
        ("s", "si", "signature", "subtask"), "a workflow takes the task and its data, (task, {'to': 'ann'})"
    ),
    **dict.fromkeys(("map", "starmap", "chunks"), "workflows.map(scheduler, task, items) adds a job for each item"),
    **dict.fromkeys(("apply", "call_local", "run"), "call the task itself to run it here and now"),
    "AsyncResult": "get_job(id) of a scheduler returns a job",
    "delay_on_commit": "transaction.on_commit(lambda: send.add(scheduler, …)) adds it after the commit of Django",
    "name": "a job is known by the import path of its function, and @task(name=…) names it for people",
    "backend": "results are in the store of the scheduler",
}
"""Attributes of a task; any other attribute counts as a way to add a job."""

OF_JOBS: Mapping[str, str] = {
    "retry": "raise Retry(60), with the option retry, to run it again",
    "request": "a job has id, attempt and meta by itself",
    "update_state": "progress(50, 'half') and checkpoint(state) report what a job does",
    "get_id": "its id is the attribute id",
    "retries": "its attempt is the attribute attempt, from 1",
    "save_meta": "progress(50, 'half') and checkpoint(state) report what a job does",
    "apply_async": "add_job of its scheduler adds a job",
    "delay": "add_job of its scheduler adds a job",
}
"""Attributes of a running job."""

_WAIT = "wait(timeout, raise_on_error=True) waits, and then result has the value"

OF_PROCESSES: Mapping[str, str] = {
    **dict.fromkeys(("get", "get_result", "return_value", "join", "latest_result"), _WAIT),
    **dict.fromkeys(("state", "get_status", "ready", "is_finished"), "status, is_final and is_pending say its state"),
    "successful": "is_done says whether it has succeeded",
    **dict.fromkeys(("revoke", "abort", "delete"), "cancel() ends it"),
    "forget": "nodes remove it, with its result, after --keep-done",
    **dict.fromkeys(("traceback", "exc_info"), "error has its type, message and traceback"),
    **dict.fromkeys(("get_id", "task_id", "job_id"), "its id is the attribute id"),
    "requeue": "scheduler.recover_job(id) adds a copy of it",
    **dict.fromkeys(("name", "task_name", "func_name", "task"), "job is the import path of its class or function"),
    **dict.fromkeys(("args", "kwargs"), "data has what was passed to add_job"),
    **dict.fromkeys(("done", "failed", "canceled"), "is_done, is_failed and is_canceled say how it has ended"),
    "schedule": "scheduled_time says whether a schedule started it, and job what runs",
    "info": "progress, progress_message and result say what is known",
}
"""Attributes of the handle of a job."""

_ADD = "add_job(job, data, **options) adds a job"
_ADD_LATER = "add_job(job, data, at='+10 minutes') adds a job for later"

OF_SCHEDULERS: Mapping[str, str] = {
    **dict.fromkeys(("enqueue", "enqueue_call", "send_task", "apply_async", "send", "delay", "enqueue_job"), _ADD),
    "add": _ADD,
    **dict.fromkeys(("enqueue_at", "enqueue_in"), _ADD_LATER),
    **dict.fromkeys(("enqueue_many", "send_many"), "add_jobs([(job, data), …]) adds many"),
    **dict.fromkeys(("fetch_job", "AsyncResult", "result"), "get_job(id) returns a job"),
    "task": "decorate functions with task of the module taskqueue; they need no scheduler",
    **dict.fromkeys(("periodic_task", "add_periodic_task", "cron"), "schedule(name, job, cron='0 3 * * *') does so"),
    **dict.fromkeys(("empty", "purge"), "cancel_jobs(query) ends waiting jobs, and flush() removes all"),
    **dict.fromkeys(("run", "start", "work", "worker_main"), "`taskqueue-node` or `taskqueue run FILE` runs jobs"),
    **dict.fromkeys(("conf", "config_from_object"), "options are arguments of the scheduler, and variables of a node"),
    **dict.fromkeys(("revoke", "abort", "terminate"), "cancel_job(id) ends a job, also a running one"),
    **dict.fromkeys(("control", "inspect"), "cancel_job(id), pause(queue), drain(node) and nodes() do so"),
    "autodiscover_tasks": "nodes import each job by its path when they run it",
}
"""Attributes of a scheduler."""


OF_MODULE: Mapping[str, str] = {
    **dict.fromkeys(("shared_task", "job", "actor", "db_task"), "from taskqueue import task"),
    **dict.fromkeys(
        ("Celery", "Huey", "Queue", "Worker", "RedisHuey", "SqliteHuey"), "from taskqueue import Scheduler"
    ),
    **dict.fromkeys(("AsyncResult", "EagerResult", "ResultSet"), "scheduler.get_job(id) returns a job"),
    **dict.fromkeys(("chain", "group", "chord"), "from taskqueue import workflows: workflows.chain(scheduler, …)"),
    **dict.fromkeys(("signature", "subtask"), "a workflow takes the task and its data, (task, {'to': 'ann'})"),
    **dict.fromkeys(("crontab", "periodic_task"), "from taskqueue import schedule: @schedule(cron='0 3 * * *')"),
    **dict.fromkeys(("current_task", "get_current_job", "get_current_task"), "from taskqueue import current_job"),
    **dict.fromkeys(("enqueue", "send_task"), "scheduler.add_job(job, data) adds a job"),
    "exceptions": "from taskqueue import errors",
    "settings": "options are arguments of a scheduler, and variables of a node",
}
"""Names that are imported from another system."""

OF_CLASSES = (
    *("acks_late", "autoretry_for", "default_retry_delay", "max_retries", "rate_limit", "retry_backoff"),
    *("retry_kwargs", "soft_time_limit", "time_limit"),
)
"""Options that a class of Celery's tasks has as attributes; each leads to an option here by ``OPTIONS``."""

OF_WORKFLOWS: Mapping[str, str] = {
    "chord": "group(scheduler, members, then=member) runs one after all others",
    "chunks": "map(scheduler, job, items, batch=100) gives each job some of the items",
    "starmap": "map(scheduler, job, items) adds a job for each item",
    **dict.fromkeys(("signature", "subtask"), "a member is the task and its data, (task, {'to': 'ann'})"),
}
"""Functions of workflows."""

OF_STATUSES: Mapping[str, str] = {
    **dict.fromkeys(("SUCCESS", "SUCCESSFUL", "FINISHED", "COMPLETED", "COMPLETE"), "DONE"),
    **dict.fromkeys(("FAILURE", "ERROR"), "FAILED"),
    **dict.fromkeys(("PENDING", "QUEUED", "RECEIVED", "READY"), "WAITING"),
    **dict.fromkeys(("STARTED", "RUNNING", "ACTIVE"), "PROCESSING"),
    **dict.fromkeys(("RETRY", "SCHEDULED", "DEFERRED"), "POSTPONED"),
    **dict.fromkeys(("REVOKED", "ABORTED", "CANCELLED", "STOPPED"), "CANCELED"),
}
"""States of a job, each with the status here."""


_PAUSE = ("countdown", "delay", "delay_seconds", "seconds", "after", "eta", "at", "pause", "defer")
_REASON = ("exc", "message", "msg", "error")
_FIELDS = ("minute", "hour", "day", "month", "weekday", "day_of_week", "day_of_month", "month_of_year")
_UNITS = ("weeks", "days", "hours", "minutes", "seconds", "period", "every")
_ZONE = dict.fromkeys(("timezone", "zone", "time_zone"), "tz='Europe/Zurich'")
_TIMES = dict.fromkeys(("max_retries", "retries", "attempts", "max_attempts", "max", "count"), "times=3")
_INTERVAL = dict.fromkeys((*_PAUSE, "backoff", "wait", "retry_delay"), "interval='5m'")
_POLICY = {**_TIMES, **_INTERVAL}
_COUNT = dict.fromkeys(("limit", "max", "max_concurrency", "concurrency", "number", "times"), "count=5")
_KEY = dict.fromkeys(("key", "per_key", "group"), "by='customer'")

ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "Retry": {**dict.fromkeys(_PAUSE, "delay=60"), **dict.fromkeys(_REASON, "reason='…'")},
    "Snooze": dict.fromkeys(_PAUSE, "seconds=60"),
    "Fail": dict.fromkeys(_REASON, "reason='…'"),
    "Cron": {**dict.fromkeys(_FIELDS, "expr='15 3 * * mon'"), "cron": "expr='15 3 * * mon'", **_ZONE},
    "Every": dict.fromkeys(_UNITS, "interval='90m'"),
    "Limit": {**_COUNT, **_KEY},
    "Rate": {**_COUNT, **_KEY, **dict.fromkeys(("period", "seconds", "interval", "every"), "per='1m'")},
    "many_times": _POLICY,
    "forever": _INTERVAL,
    "exponential": {
        **_POLICY,
        **dict.fromkeys(("base", "multiplier"), "factor=2"),
        **dict.fromkeys(("maximum", "max_backoff", "max_delay", "retry_backoff_max"), "longest='1h'"),
    },
}
"""Arguments of classes and of the functions of ``retry``, each with the argument here."""


EXAMPLES: Mapping[str, str] = {"Rate": "Rate(10, per='1m')"}
"""A call of a class whose arguments another system writes as one text."""


def explained(function: Callable[_Arguments, _Returned], name: str = "") -> Callable[_Arguments, _Returned]:
    """Return the function, or a class's ``__init__``, with an error for an unknown argument that names the one here."""
    name = name or function.__qualname__.removesuffix(".__init__")
    words, example = ARGUMENTS[name], EXAMPLES.get(name)

    @functools.wraps(function)
    def call(*args: _Arguments.args, **arguments: _Arguments.kwargs) -> _Returned:
        try:
            return function(*args, **arguments)
        except TypeError as error:
            way = _way_out(function, arguments, words) or (None if arguments else example)
            if way is None or error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise TypeError(f"{error}: did you mean {way}?") from None

    return call


def _way_out(function: Callable[..., object], arguments: Mapping[str, Any], words: Mapping[str, str]) -> str | None:
    """Return the argument that is meant by the first unknown one; None if there is none."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return next((words[name] for name in arguments if name not in known and name in words), None)


def missing(owner: object, name: str, words: Mapping[str, str]) -> AttributeError:
    """Return the error for a missing attribute, with the equivalent if it is a word of another system."""
    way = words.get(name)
    hint = f": {way}" if way else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)
