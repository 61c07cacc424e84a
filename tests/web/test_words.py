"""The filters of the templates: words that people read, and text of jobs that stays text."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from taskqueue.model.record import Status
from taskqueue.web import words


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.04, "0.0 s"), (1.25, "1.2 s"), (59.4, "59 s"), (240, "4 min"), (7200, "2 h"), (None, "–")]
)
def test_a_rough_span_has_no_fraction_that_nobody_can_act_on(seconds: float | None, said: str) -> None:
    assert words.rough(seconds) == said


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (0.25, "0.2"), (5.5, "5.5"), (12.6, "13"), (1284, "1,284")])
def test_a_number_has_one_digit_behind_the_point_at_most(value: float, said: str) -> None:
    assert words.number(value) == said


def test_a_time_says_how_far_away_it_is_and_when_exactly() -> None:
    moment = datetime.now(timezone.utc) - timedelta(minutes=3)

    assert ">3 min ago</time>" in words.ago(moment)
    assert f'title="{moment:%Y-%m-%d %H:%M:%S} UTC"' in words.ago(moment)
    assert ">in 3 min</time>" in words.ago(moment + timedelta(minutes=6.2))
    assert words.ago(None) == words.clock(None) == "–"


def test_a_clock_has_the_date_of_another_day() -> None:
    assert ">2020-01-31 12:00</time>" in words.clock(datetime(2020, 1, 31, 12, tzinfo=timezone.utc))


def test_a_status_is_a_word_and_a_class_of_the_style_sheet() -> None:
    assert words.status(Status.TIMEOUT) == '<span class="status timed-out">timed out</span>'


def test_a_path_has_a_class_and_a_module_and_an_outcome_is_words() -> None:
    assert (words.name("shop.mail:Mail"), words.module("shop.mail:Mail")) == ("Mail", "shop.mail")
    assert words.outcome("TimedOut") == "timed out"
    assert words.short("6b03c1d4784457efff45be71") == "6b03c1…be71"


def test_text_of_jobs_is_escaped_and_does_not_turn_the_page_around() -> None:
    assert words.lines("<b>\u202e") == "&lt;b&gt;\\u202e"


def test_a_sentence_has_its_times_as_times_and_its_code_as_code() -> None:
    said = words.sentence("It has been waiting since 2020-01-31 12:00:00 UTC by <b>: `taskqueue resume mail` helps.")

    assert 'datetime="2020-01-31T12:00:00.000Z"' in said
    assert "by &lt;b&gt;: <code>taskqueue resume mail</code> helps." in said
    assert words.sentence("due 2020-99-31 12:00:00 UTC <b>") == "due 2020-99-31 12:00:00 UTC &lt;b&gt;"


def test_a_sentence_has_ids_outside_of_code_as_links() -> None:
    id = "6b03c1d4784457efff45be71"

    said = words.sentence(f"Job {id} holds it <b>: `taskqueue why {id}`", "/below")

    link = f'<a class="mono" href="/below/jobs/{id}">{id}</a>'
    assert said == f"Job {link} holds it &lt;b&gt;: <code>taskqueue why {id}</code>"
    assert "href" not in words.sentence(f"Job {id}")
