"""``@schedule`` declares schedules where their jobs are written, and imported modules are asked for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Cron, Job, Scheduler, schedule, task
from taskqueue.errors import ConfigError, InvalidOption
from taskqueue.scheduler.declared_schedules import ATTRIBUTE, declared, import_application
from taskqueue.store import Store

SHOP = """
from taskqueue import Job, schedule, task

@schedule(cron="15 3 * * *", tz="Europe/Berlin", retry=3)
@task
def clean(days: int = 30):
    return days

@schedule("often", every="10m", data={"days": 1})
@schedule("rarely", every="1h", overlap="allow")
class Report(Job):
    def start(self):
        return self.data

class Sub(Report):
    pass

another_name = clean
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder to import modules from, which are forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names_in(folder: Path, **modules: str) -> dict[str, Any]:
    """Write and import the modules, and return what is declared."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    for name in modules:
        import_application(name)
    return dict(declared())


def test_a_declaration_is_found_where_its_job_is_defined_and_only_there(folder: Path) -> None:
    entries = names_in(folder, shop_1=SHOP, web_1="from shop_1 import *\nfrom shop_1 import clean as tidy\n")

    assert sorted(entries) == ["often", "rarely", "shop_1:clean"]
    assert entries["often"] == {"job": sys.modules["shop_1"].Report, "every": "10m", "data": {"days": 1}}
    assert entries["shop_1:clean"]["cron"] == "15 3 * * *"


def test_declared_schedules_are_a_set(folder: Path, scheduler: Scheduler, store: Store) -> None:
    scheduler.schedules(names_in(folder, shop_2=SHOP), application="shop")
    plans = {plan.name: plan for plan in store.schedules()}

    assert plans["shop_2:clean"].trigger == Cron("15 3 * * *", "Europe/Berlin")
    assert (plans["often"].template.job, plans["often"].template.data) == ("shop_2:Report", '{"days":1}')
    assert plans["rarely"].overlap.value == "allow"


def test_the_decorated_is_the_job_that_it_was(folder: Path) -> None:
    names_in(folder, shop_3=SHOP)
    shop: Any = sys.modules["shop_3"]

    assert shop.clean(days=3) == 3
    assert issubclass(shop.Sub, shop.Report)


def test_a_module_that_is_loaded_again_declares_what_it_has_now(folder: Path) -> None:
    names_in(folder, shop_4=SHOP)
    (folder / "shop_4.py").write_text(
        SHOP.replace('@schedule("rarely", every="1h", overlap="allow")\n', "# none\n\n\n")
    )
    importlib.invalidate_caches()
    importlib.reload(sys.modules["shop_4"])

    assert sorted(declared()) == ["often", "shop_4:clean"]


def test_a_name_that_two_jobs_declare_is_refused(folder: Path) -> None:
    text = "from taskqueue import schedule, task\n@schedule('nightly', every='{}')\n@task\ndef send():\n    pass\n"

    with pytest.raises(InvalidOption, match="schedule nightly is declared twice, by a_5:send and b_5:send: give one"):
        names_in(folder, a_5=text.format("1h"), b_5=text.format("1h"))


def test_a_job_that_declares_a_name_twice_is_refused(folder: Path) -> None:
    text = "from taskqueue import schedule, task\n@schedule(every='1h')\n@schedule(every='2h')\n@task\n"

    with pytest.raises(InvalidOption, match="schedule a_6:send is declared twice"):
        names_in(folder, a_6=f"{text}def send():\n    pass\n")


def test_a_module_that_cannot_be_imported_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="module a_7 cannot be imported: NameError: name 'nothing' is not defined"):
        names_in(folder, a_7="nothing\n")


def test_objects_that_answer_for_others_are_not_asked(folder: Path) -> None:
    text = (
        "class Proxy:\n    @property\n    def __class__(self):\n        raise RuntimeError('outside of a request')\n"
        "    def __getattr__(self, name):\n        raise RuntimeError('outside of a request')\n\nrequest = Proxy()\n"
    )

    assert names_in(folder, a_8=text) == {}


def plain() -> None:
    """Is no job."""


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: schedule(plain), r"schedule\(.*\): write @schedule\(cron="),  # type: ignore[arg-type]
        (lambda: schedule(every="1h")(plain), r"is not a job: write @schedule\(…\) above @task"),
        (lambda: schedule("a b", every="1h"), "a schedule's name is 'a b'"),
        (schedule, "a schedule has one trigger"),
        (lambda: schedule("x", every="1h", cron="@daily"), "a schedule has one trigger"),
        (lambda: schedule(cron="0 0 3 * * *"), "there is no field for seconds"),
        (lambda: schedule("x", crontab="@daily"), "schedule x: there is no option 'crontab': did you mean cron"),  # type: ignore[call-arg]
        (lambda: schedule(hours=3), "there is no option 'hours': did you mean every"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_declaration_is_refused_when_its_module_is_imported(declare: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        declare()


@task
def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


class Report(Job):
    """Returns a text."""

    def start(self) -> str:
        return "sent"


def test_types_of_what_is_decorated_stay() -> None:
    number: int = schedule(every="1h")(add)(1, 2)
    kind: type[Report] = schedule(every="1h")(Report)

    assert (number, kind) == (3, Report)
    for job in (add, Report):
        delattr(job, ATTRIBUTE)  # other tests ask this module, too
