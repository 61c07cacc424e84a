"""Over ninety typical mistakes, half of them by someone who knows Celery: each message names the way out."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from taskqueue import Job, Scheduler, schedule, task, workflows
from taskqueue.errors import InvalidOption
from taskqueue.model import limits as limits_of_jobs
from taskqueue.model.runnable import check

Mistake = Callable[[Any], object]


@task
def send(to: str, copies: int = 1) -> str:
    """Return whom it was sent to."""
    return to


@task
def remind() -> None:
    """Return nothing, as most tasks do."""


class Report(Job):
    def start(self) -> None:
        """Do nothing."""


class Base(DeclarativeBase):
    """The tables of an application."""


class Person(Base):
    """A row of SQLAlchemy."""

    __tablename__ = "people"
    name: Mapped[str] = mapped_column(primary_key=True)


def declared_class(**attributes: object) -> None:
    """Check a class with these attributes as it is checked when a job of it is added."""
    check(type("Attributes", (Report,), attributes))


def bound(self: Any, to: str) -> None:
    """Take what ``bind=True`` passes in Celery."""


mail: Any = send
"""The task, as code that no type checker has read uses it."""

flows: Any = workflows
limits: Any = limits_of_jobs


def imported(name: str) -> object:
    """Do as ``from taskqueue import name``."""
    return getattr(importlib.import_module("taskqueue"), name)


OF_CELERY: dict[str, tuple[Mistake, str]] = {
    "delay": (lambda s: mail.delay("ann"), "to add a job write send.add(scheduler, …)"),
    "delay_on_commit": (lambda s: mail.delay_on_commit("ann"), "transaction.on_commit(lambda: send.add(scheduler, …))"),
    "apply_async": (lambda s: mail.apply_async(["ann"], countdown=5), "with options send.using(…).add(scheduler, …)"),
    "countdown": (lambda s: mail.using(countdown=5).add(s, "ann"), "did you mean at='+5 seconds'?"),
    "countdown among arguments": (lambda s: mail.add(s, "ann", countdown=5), "send.using(at=…).add(scheduler, …)"),
    "signature": (lambda s: mail.s("ann"), "a workflow takes the task and its data, (task, {'to': 'ann'})"),
    "chord": (lambda s: flows.chord(s, [], send), "group(scheduler, members, then=member)"),
    "members one by one": (lambda s: flows.group(s, (send, None), (send, None)), "group(scheduler, [(job, data), …])"),
    "shared_task": (lambda s: imported("shared_task"), "from taskqueue import task"),
    "Celery": (lambda s: imported("Celery"), "from taskqueue import Scheduler"),
    "chain": (lambda s: imported("chain"), "workflows.chain(scheduler, …)"),
    "crontab": (lambda s: imported("crontab"), "@schedule(cron='0 3 * * *')"),
    "AsyncResult": (lambda s: imported("AsyncResult"), "scheduler.get_job(id)"),
    "broker": (lambda s: Scheduler(broker="redis://host"), "takes the address of the store"),  # type: ignore[call-arg]
    "address of a broker": (lambda s: Scheduler("redis://host/0").count_jobs({}), "write sqlite:///path"),
    "autoretry_for": (lambda s: task(autoretry_for=(OSError,))(send.function), "did you mean retry_on?"),  # type: ignore[call-overload]
    "rate_limit": (lambda s: task(rate_limit="10/m")(send.function), "did you mean limits='10/1m'?"),  # type: ignore[call-overload]
    "get": (lambda s: mail.add(s, "ann").get(timeout=1), "wait(timeout, raise_on_error=True)"),
    "revoke": (lambda s: s.revoke("id"), "cancel_job(id)"),
    "SUCCESS": (lambda s: s.find_jobs({"status": "SUCCESS"}), "did you mean DONE?"),
    "eta": (lambda s: mail.using(eta=datetime(2030, 1, 1, tzinfo=timezone.utc)).add(s, "ann"), "did you mean at?"),
    "self without bind": (lambda s: task(bound), "write @task(context=True)"),
    "track_started": (lambda s: task(track_started=True)(send.function), "a job that runs is PROCESSING"),  # type: ignore[call-overload]
    "shadow": (lambda s: mail.using(shadow="Mail").add(s, "ann"), "@task(name='Send a letter')"),
    "timelimit": (lambda s: mail.using(timelimit=60).add(s, "ann"), "did you mean timeout?"),
    "forget": (lambda s: mail.add(s, "ann").forget(), "--keep-done"),
    "schedule of beat": (lambda s: s.schedule("n", send, {"to": "ann"}, schedule=60), "did you mean every or cron?"),
}

OF_BEGINNERS: dict[str, tuple[Mistake, str]] = {
    "no scheduler": (lambda s: mail.add("ann"), "write send.add(scheduler, …)"),
    "the class of schedulers": (lambda s: mail.add(Scheduler, "ann"), "write send.add(scheduler, …)"),
    "a misspelt option": (lambda s: mail.using(prioity=3).add(s, "ann"), "did you mean priority?"),
    "a misspelt argument": (lambda s: mail.add(s, too="ann"), "missing a required argument: 'to'; did you mean to?"),
    "a misspelt argument with a default": (lambda s: mail.add(s, "ann", copys=2), "did you mean copies?"),
    "data by name": (lambda s: s.add_job(send, to="ann"), "add_job(send, {'to': 'ann'})"),
    "data called name": (lambda s: s.add_job(send, name="ann"), "add_job(send, {'name': 'ann'})"),
    "data as a list": (lambda s: s.add_job(send, ["ann"]), "pass a mapping"),
    "a dotted path": (lambda s: s.add_job("shop.send"), "did you mean shop:send?"),
    "an object as data": (lambda s: s.add_job("shop:send", object()), "cannot be stored"),
    "a time without zone": (lambda s: mail.using(at=datetime(2030, 1, 1)).add(s, "ann"), "timezone.utc"),  # noqa: DTZ001
    "seconds as a time": (lambda s: mail.using(at=60).add(s, "ann"), "write '+60 seconds'"),
    "an end in the past": (
        lambda s: mail.using(expires=datetime(2020, 1, 1, tzinfo=timezone.utc)).add(s, "ann"),
        "pass a later one",
    ),
    "a number as text": (lambda s: task(retry="3")(send.function), "pass the number of further attempts"),  # type: ignore[call-overload]
    "cron as a period": (lambda s: s.schedule("n", send, {"to": "ann"}, every="0 3 * * *"), "cron='0 3 * * *'"),
    "hours of a schedule": (lambda s: s.schedule("n", send, {"to": "ann"}, hour=3), "pass cron='15 3 * * mon'"),
    "a city as a time zone": (
        lambda s: s.schedule("n", send, {"to": "ann"}, cron="0 3 * * *", tz="Berlin"),
        "did you mean Europe/Berlin?",
    ),
    "a time zone in small letters": (
        lambda s: s.schedule("n", send, {"to": "ann"}, cron="0 3 * * *", tz="europe/berlin"),
        "did you mean Europe/Berlin?",
    ),
    "a lambda": (lambda s: task(lambda: None), "write it with def and @task"),
    "a name for a function": (lambda s: task("shop.send"), "options go by name, @task(queue='mail')"),  # type: ignore[call-overload]
    "a class without start": (lambda s: s.add_job(type("Empty", (Job,), {"__module__": __name__})), "define it"),
    "a task as a dependency": (lambda s: mail.using(depends_on=send).add(s, "ann"), "pass a Process"),
    "a misspelt status": (lambda s: s.find_jobs({"status": "FAILD"}), "did you mean FAILED?"),
}


OF_CELERY_TOO: dict[str, tuple[Mistake, str]] = {
    "a called task": (lambda s: s.add_job(remind()), "pass the task or the class itself"),
    "a called task beside itself": (lambda s: s.add_job(send, send("ann")), "pass a mapping"),
    "arguments one by one": (lambda s: s.add_job(send, "ann", 2), "send.add(scheduler, 'ann', 2)"),
    "partial": (lambda s: s.add_job(functools.partial(send, "ann")), "its arguments as data"),
    "delay with options": (lambda s: mail.using(queue="mail").delay("ann"), "send.using(…).add(scheduler, …)"),
    "queue of a task": (lambda s: task(queue="mail")(remind.function).queue, "remind.options['queue']"),  # type: ignore[attr-defined]
    "rate as text": (lambda s: limits.Rate("10/m"), "Rate(10, per='1m')"),
    "rate_limit as text": (lambda s: mail.using(rate_limit="10/m").add(s, "ann"), "limits='10/1m'"),
    "rate_limit of another kind": (lambda s: mail.using(rate_limit="10/minute").add(s, "ann"), "did you mean limits?"),
    "rate_limit with a time": (lambda s: mail.using(rate_limit="10/10s").add(s, "ann"), "did you mean limits?"),
    "autoretry without retry": (lambda s: mail.using(retry_on=OSError).add(s, "ann"), "pass retry"),
    "list of countdowns": (lambda s: mail.using(retry=[1, 10]).add(s, "ann"), "retry.exponential(8)"),
    "chain hands on": (lambda s: flows.chain(s, (send, {"to": "ann"}), send), "workflows.RESULT"),
    "a called member": (lambda s: flows.group(s, [remind(), remind()]), "not what a call of it returns"),
    "result outside": (lambda s: s.add_job("shop:send", flows.RESULT), "a member of a workflow"),
    "cron of a job": (lambda s: mail.using(cron="0 3 * * *").add(s, "ann"), "scheduler.schedule(name, job, cron="),
    "every of a job": (lambda s: mail.using(every="1h").add(s, "ann"), "interval='1h'"),
    "task options": (lambda s: declared_class(max_retries=3), "did you mean options = {'retry': …}?"),
    "exceptions": (lambda s: imported("exceptions"), "from taskqueue import errors"),
    "enqueue": (lambda s: imported("enqueue"), "scheduler.add_job(job, data)"),
    "settings": (lambda s: imported("settings"), "options are arguments of a scheduler"),
    "a signature as a job": (lambda s: s.add_job((send, {"to": "ann"})), "pass a subclass of Job"),
}

OF_BEGINNERS_TOO: dict[str, tuple[Mistake, str]] = {
    "a generator": (lambda s: s.add_job("shop:send", (name for name in "ab")), "make it a list"),
    "a set": (lambda s: s.add_job("shop:send", {"to": {"ann"}}), "make it a list"),
    "keys of a mapping": (lambda s: s.add_job("shop:send", {"ann": 1}.keys()), "make it a list"),
    "a path": (lambda s: s.add_job("shop:send", Path("ann")), "declare the type in the job"),
    "a row": (lambda s: s.add_job("shop:send", {"to": Person(name="ann")}), "pass its key"),
    "not a number": (lambda s: s.add_job("shop:send", float("nan")), "pass None or text"),
    "a time in data without zone": (lambda s: s.add_job("shop:send", datetime(2030, 1, 1)), "timezone.utc"),  # noqa: DTZ001
    "a file": (lambda s: s.add_job("shop/jobs.py:send"), "did you mean shop.jobs:send?"),
    "a file in this folder": (lambda s: s.add_job("shop.py:send"), "did you mean shop:send?"),
    "a call as a path": (lambda s: s.add_job("shop:send()"), "did you mean shop:send?"),
    "an instance": (lambda s: s.add_job(Report()), "pass the class, and what it needs as data"),
    "a module": (lambda s: s.add_job(importlib), "pass a subclass of Job"),
    "a builtin": (lambda s: s.add_job(print), "decorate it with @task"),
    "minutes as a time": (lambda s: mail.using(at="5m").add(s, "ann"), "write '+5m'"),
    "a date as a time": (lambda s: mail.using(at=date(2030, 1, 1)).add(s, "ann"), "pass an aware datetime"),
    "a local time": (lambda s: mail.using(at="2030-01-01 10:00").add(s, "ann"), "'2030-01-01 10:00 UTC'"),
    "a priority in words": (lambda s: mail.using(priority="high").add(s, "ann"), "from -20 to 20"),
    "several queues": (lambda s: mail.using(queue=["a", "b"]).add(s, "ann"), "pass a name"),
    "unique as a switch": (lambda s: mail.using(unique=True).add(s, "ann"), "pass text"),
    "a decorator without call": (lambda s: schedule(mail), "write @schedule(cron="),
    "schedule below task": (lambda s: schedule(every="1h")(send.function), "write @schedule(…) above @task"),
}


ALL = {**OF_CELERY, **OF_CELERY_TOO, **OF_BEGINNERS, **OF_BEGINNERS_TOO}


def test_there_are_over_ninety() -> None:
    assert (len(OF_CELERY) + len(OF_CELERY_TOO), len(ALL)) == (49, 93)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("error")
def test_a_mistake_is_answered_with_the_way_out(scheduler: Scheduler, name: str) -> None:
    mistake, way_out = ALL[name]

    with pytest.raises(Exception) as refused:  # noqa: PT011 - each has a type of its own
        mistake(scheduler)

    assert way_out in str(refused.value)
    assert scheduler.count_jobs({"status": {"$ne": "WAITING"}}) == 0


def test_retry_on_as_a_default_is_for_the_jobs_that_are_retried(url: str) -> None:
    with Scheduler(url, retry_on=OSError) as scheduler:
        mail.add(scheduler, "ann")
        mail.using(retry=3).add(scheduler, "ann")

        with pytest.raises(InvalidOption, match="pass retry"):
            mail.using(retry_on=ValueError).add(scheduler, "ann")
