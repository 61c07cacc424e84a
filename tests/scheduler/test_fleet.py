"""What an operator names is checked before anything is decided about it."""

from __future__ import annotations

from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption


@pytest.mark.parametrize("name", ["", "  ", None, 7, "web\n1", "web\x1b[2J", "caf\udce9", "x" * 201])
def test_what_can_be_no_name_of_a_node_is_refused(scheduler: Scheduler, name: Any) -> None:
    for decide in (scheduler.drain, scheduler.undrain):
        with pytest.raises(InvalidOption, match=r"node=.*pass the name of a node"):
            decide(name)


@pytest.mark.parametrize(("name", "limit"), [("app.mail.MailJob", 3), ("app.MailJob", None)])
def test_a_class_that_is_written_with_dots_is_no_name_of_a_limit(scheduler: Scheduler, name: str, limit: Any) -> None:
    with pytest.raises(InvalidOption, match=r"did you mean app(\.mail)?:MailJob\?"):
        scheduler.set_limit(name, limit)
    assert scheduler.controls() == []


@pytest.mark.parametrize("name", ["api.example.com", "licences"])
def test_a_shared_name_may_have_dots(scheduler: Scheduler, name: str) -> None:
    scheduler.set_limit(name, 3)

    assert len(scheduler.controls()) == 1
