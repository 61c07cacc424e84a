"""What an operator names is checked before anything is decided about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption


@pytest.mark.parametrize("name", ["", "  ", None, 7, "web\n1", "web\x1b[2J", "caf\udce9", "x" * 201])
def test_what_can_be_no_name_of_a_node_is_refused(scheduler: Scheduler, name: Any) -> None:
    for decide in (scheduler.drain, scheduler.undrain):
        with pytest.raises(InvalidOption, match=r"node=.*pass the name of a node"):
            decide(name)


@pytest.mark.parametrize("wait", ["soon", "5", -1, True, float("nan"), 1e12])
def test_nothing_is_decided_where_the_time_to_wait_is_none(scheduler: Scheduler, wait: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^wait=.*: pass "):
        scheduler.pause("mail", wait=wait)
    with pytest.raises(InvalidOption, match=r"^wait=.*: pass "):
        scheduler.drain("web-1", wait=wait)
    assert scheduler.controls() == []


@pytest.mark.parametrize("wait", ["5m", timedelta(minutes=5), 300, float("inf")])
def test_the_time_to_wait_is_written_as_any_other(scheduler: Scheduler, wait: Any) -> None:
    scheduler.pause("mail", wait=wait)
    scheduler.drain("web-1", wait=wait)

    assert {control.name for control in scheduler.controls()} == {"mail", "web-1"}


@pytest.mark.parametrize(("name", "limit"), [("app.mail.MailJob", 3), ("app.MailJob", None)])
def test_a_class_that_is_written_with_dots_is_no_name_of_a_limit(scheduler: Scheduler, name: str, limit: Any) -> None:
    with pytest.raises(InvalidOption, match=r"did you mean app(\.mail)?:MailJob\?"):
        scheduler.set_limit(name, limit)
    assert scheduler.controls() == []


@pytest.mark.parametrize("name", ["api.example.com", "licences"])
def test_a_shared_name_may_have_dots(scheduler: Scheduler, name: str) -> None:
    scheduler.set_limit(name, 3)

    assert len(scheduler.controls()) == 1
