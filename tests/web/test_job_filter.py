"""The filter of the list of jobs: from an address to a query, and back into an address and words."""

from __future__ import annotations

import pytest

from taskqueue.errors import InvalidQuery
from taskqueue.web.job_filter import JobFilter


def test_all_parts_of_a_filter_hold_together() -> None:
    wanted = JobFilter.of({"status": "bad", "queue": " mail ", "tag": "news", "q": '{"data.to": "ann"}', "other": "x"})

    assert wanted.query() == {
        "$and": [{"status": {"$in": [4, 6]}}, {"queue": "mail"}, {"tags": "news"}, {"data.to": "ann"}]
    }
    assert wanted.says() == 'bad jobs of queue mail with tag news that match {"data.to": "ann"}'


def test_an_empty_filter_is_all_jobs() -> None:
    assert JobFilter().query() == {}
    assert JobFilter().says() == "jobs"


@pytest.mark.parametrize(("name", "word"), [("FAILED", "failed"), ("POSTPONED", "later"), ("PROCESSING", "running")])
def test_a_status_has_its_name_in_json_as_well(name: str, word: str) -> None:
    assert JobFilter.of({"status": name}) == JobFilter.of({"status": word})


def test_a_filter_goes_into_an_address_with_changes() -> None:
    wanted = JobFilter(queue="a&b", status="done")

    assert wanted.address(status="", after="x") == "queue=a%26b&after=x"
    assert wanted.fields() == {"status": "done", "queue": "a&b"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"status": "lost"}, "status='lost': use waiting"),
        ({"q": "{"}, "the query is not JSON"),
        ({"q": "[1]"}, "a query is a mapping of fields"),
        ({"q": '{"colour": 1}'}, "cannot name 'colour'"),
        ({"since": "yesterday"}, "pass milliseconds"),
        ({"since": "9" * 30}, "pass milliseconds"),
    ],
)
def test_a_filter_that_cannot_be_read_says_what_can(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidQuery, match=said):
        JobFilter.of(given).query()
