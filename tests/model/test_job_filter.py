"""The filter of jobs: from tokens to a query, and back into text, an address and words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskqueue.errors import InvalidQuery
from taskqueue.model.job_filter import JobFilter, Names, Token
from taskqueue.model.record import Failure, Status
from tests.store.records import NOON, a_record

INITECH = {"$or": [{"tags": "customer:initech"}, {"meta.customer": "initech"}]}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", {}),
        ("status:failed", {"status": {"$in": [4]}}),
        ("status:bad,done", {"status": {"$in": [3, 4, 6]}}),
        ("status:failed status:timeout", {"status": {"$in": [4, 6]}}),
        ("queue:mail", {"queue": "mail"}),
        ("queue:mail queue:news", {"queue": {"$in": ["mail", "news"]}}),
        ("class:Make", {"job": {"$contains": "Make"}}),
        ("class:shop:Mail", {"job": "shop:Mail"}),
        ("job:shop:Mail", {"job": "shop:Mail"}),
        ("customer:initech", INITECH),
        ("tag:customer:initech", {"tags": "customer:initech"}),
        ("meta.customer:initech", {"meta.customer": "initech"}),
        ("data.to:ann", {"data.to": {"$in": ["ann"]}}),
        ("data.to:" + "[" * 5000, {"data.to": {"$in": ["[" * 5000]}}),
        ("data.customer.id:7", {"data.customer.id": {"$in": ["7", 7]}}),
        ("Make", {"$or": [{"job": {"$contains": "Make"}}, {"id_text": "Make"}]}),
        ("node:web-1", {"seat": "web-1", "status": 2}),
        ("cause:unloadable", {"cause": "unloadable"}),
        ("attempts-over:3", {"tries": {"$gt": 3}}),
        ("since:1h", {"status": {"$gt": 2}, "ended_at": {"$gte": NOON - timedelta(hours=1)}}),
        ("before:2d", {"status": {"$gt": 2}, "ended_at": {"$lt": NOON - timedelta(days=2)}}),
        ("slow:2m", {"status": {"$in": [3, 4, 6]}, "took": {"$gt": 120.0}}),
        ("id:invoice-7", {"id_text": "invoice-7"}),
        (f"id:{'a' * 24}", {"id": "a" * 24}),
        ('{"data.to": "ann b"}', {"data.to": "ann b"}),
        ('queue:mail {"took": {"$gt": 60}}', {"$and": [{"queue": "mail"}, {"took": {"$gt": 60}}]}),
    ],
)
def test_each_token_has_its_query(text: str, query: dict[str, Any]) -> None:
    job_filter = JobFilter.read(text)

    assert job_filter.query(NOON) == query
    assert JobFilter.read(str(job_filter)) == job_filter


def test_quotes_hold_blanks_together_and_keep_their_own_kind() -> None:
    job_filter = JobFilter.read(r'error:"connection \"x\" refused" "a:b" Mail')

    assert job_filter.tokens == (Token("error", 'connection "x" refused'), Token("text", "a:b"), Token("text", "Mail"))
    assert JobFilter.read(str(job_filter)) == job_filter


def test_arguments_are_tokens_whose_quotes_the_shell_took_away() -> None:
    job_filter = JobFilter.of_arguments(["error:connection refused", 'error:"not found"', "status:failed", "Mail"])

    assert str(job_filter) == 'error:"connection refused" error:"not found" status:failed Mail'


def test_an_address_names_tokens_one_by_one_or_all_in_one() -> None:
    job_filter = JobFilter.of({"status": "bad", "queue": " a&b ", "q": "tag:news", "other": "x", "tag": ""})

    assert str(job_filter) == "status:bad queue:a&b tag:news"
    assert job_filter.address(after="x") == "q=status%3Abad+queue%3Aa%26b+tag%3Anews&after=x"
    assert JobFilter().address(after="") == ""


def test_statuses_are_known_by_their_names_on_all_surfaces() -> None:
    for words in (("later", "postponed", "POSTPONED"), ("running", "PROCESSING"), ("timed out", "timeout")):
        assert len({str(JobFilter.of({"status": word}).query(NOON)) for word in words}) == 1
    assert JobFilter.read("status:retrying").statuses() == {Status.POSTPONED}
    assert JobFilter.read("since:1h").statuses() == {Status.DONE, Status.FAILED, Status.CANCELED, Status.TIMEOUT}
    assert JobFilter.read("queue:mail").statuses() == set(Status)


def test_a_filter_is_changed_by_token() -> None:
    job_filter = JobFilter.read("status:done queue:mail")

    assert str(job_filter.replacing("status", "failed")) == "status:failed queue:mail"
    assert str(job_filter.replacing("status", "")) == "queue:mail"
    assert str(job_filter.adding("customer", "in it").adding("customer", "in it")) == (
        'status:done queue:mail customer:"in it"'
    )


def test_a_filter_can_be_read_aloud() -> None:
    assert JobFilter().says() == "jobs"
    assert JobFilter.read("status:bad queue:mail tag:news data.to:ann").says() == (
        "bad jobs of queue mail with tag news that match data.to:ann"
    )
    assert JobFilter.read("class:shop:Mail error:vat").says() == "jobs of class shop:Mail whose error contains vat"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("status:faild", "there is no status 'faild': use waiting.*; did you mean failed"),
        ("cause:unlodable", "there is no cause 'unlodable': use .*; did you mean unloadable"),
        ("clas:Make", "there is no key 'clas': did you mean class:Make.*write tag:clas:Make.*meta.clas:Make"),
        ("Status:", "status: has no value"),
        ("{", "the query is not JSON"),
        ("[1]", "a query is a JSON object"),
        ('{"colour": 1}', "cannot name 'colour'"),
        ('error:"not found', "a quote is not closed"),
        ("since:yesterdy", "since: 'yesterdy' is not a time: pass how long ago"),
        ("slow:soon", "slow: 'soon' is not a duration"),
        ("attempts-over:few", "attempts-over: 'few' is not a number of attempts"),
        ("attempts-over:" + "9" * 5000, "is not a number of attempts"),
        ("late:" + "9" * 5000 + ":00:00", "is out of range"),
    ],
)
def test_a_filter_that_cannot_be_read_says_what_can(text: str, said: str) -> None:
    with pytest.raises(InvalidQuery, match=said):
        JobFilter.read(text).query(NOON)


@pytest.mark.parametrize("key", ["customer", "tenant", "order", "user", "region", "workflow", "state"])
def test_keys_of_the_application_need_no_prefix(key: str) -> None:
    assert JobFilter.read(f"{key}:7").query(NOON) == {"$or": [{"tags": f"{key}:7"}, {f"meta.{key}": "7"}]}


def test_the_tag_of_a_workflow_means_its_members() -> None:
    id = "65f000000000000000000000"
    for text in (f"workflow:{id}", f"tag:workflow:{id}"):
        assert JobFilter.read(text).query(NOON) == {"workflow": id}


def test_a_value_that_no_job_has_is_said_with_the_nearest_one() -> None:
    named = a_record(
        job="shop:Mail", queue="mail", tags=("customer:initech", "news"), error=Failure(type="a.B", message="")
    )
    names = Names([named], ["mail", "reports"])

    def said(text: str) -> list[str]:
        return [sentence for _, sentence in names.unknown(JobFilter.read(text))]

    assert said("class:Mial queue:mial tag:nevs") == [
        "no job has class Mial: did you mean Mail?",
        "no job has queue mial: did you mean mail?",
        "no job has tag nevs: did you mean news?",
    ]
    assert said("customer:inittech") == ["no job has tag or meta customer:inittech: did you mean customer:initech?"]
    assert said("shop:Mail") == ["no job has tag or meta shop:Mail: did you mean class:shop:Mail?"]
    assert said("Failed") == ["no job has the word Failed: did you mean status:failed?"]
    assert said('"timed out"') == ['no job has the word timed out: did you mean status:"timed out"?']
    assert said("class:Ma queue:reports customer:initech status:failed error:x data.to:y Mail") == []


def test_a_word_is_completed_by_keys_and_by_what_jobs_have() -> None:
    record = a_record(
        job="shop:MakeInvoice", queue="mail", tags=("customer:initech", "big"), given={"meta": {"plan": "gold plus"}}
    )
    names = Names([record], ["reports"])

    def tokens(word: str) -> list[str]:
        return [token for token, _ in names.suggestions(word)]

    assert tokens("")[:3] == ["status:", "class:", "queue:"]
    assert "query:" not in tokens("")
    assert tokens("cla") == ["class:", "class:shop:MakeInvoice"]
    assert tokens("make") == tokens("class:make") == tokens("job:make") == ["class:shop:MakeInvoice"]
    assert tokens("queue:") == ["queue:reports", "queue:mail"]
    assert tokens("customer:i") == tokens("initech") == ["tag:customer:initech"]
    assert tokens("status:fa") == ["status:failed"]
    assert tokens('plan:"go') == tokens("gold") == ['meta.plan:"gold plus"']
    assert tokens("nothing") == []
