"""Charts as geometry: in proportion, and nothing that happened is left out."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from taskqueue.insight.releases import Release
from taskqueue.model.record import Attempt, Holder, Status
from taskqueue.web.charts import LEAST, WIDTH, chart, marked, share_chart, share_line, timeline, trend_line
from tests.store.records import NOON, a_record


def test_bars_are_in_proportion_and_one_failure_among_many_is_seen() -> None:
    drawn = chart([("12:00", 1000, 1), ("12:01", 0, 0)], "an hour")

    [first, second] = drawn.bars
    assert first.done > 50
    assert first.failed == 1.5
    assert (second.done, second.failed, drawn.width, drawn.most) == (0, 0, 20, 1001)
    assert first.says == "12:00: 1,000 done, 1 failed"
    assert drawn.done_path == f"M1 60v-{first.done:g}h8v{first.done:g}z"
    assert drawn.failed_path == f"M1 {60 - first.done:g}v-1.5h8v1.5z"


def test_a_release_is_marked_at_its_time_by_line_name_and_words() -> None:
    drawn = chart([("", 1, 0)] * 60, "Last hour")
    times = {"v41": -1, "v42": 15, "v42.1-of-a-very-long-branch": 45, "v43": 45.5, "v44": 60}
    releases = [Release(name=name, at=NOON + timedelta(minutes=minutes), by="ann") for name, minutes in times.items()]

    shown = marked(drawn, releases, NOON, NOON + timedelta(hours=1))

    assert [(mark.x, mark.percent, mark.text) for mark in shown.marks] == [
        (150.0, 25.0, "v42"),
        (450.0, 75.0, ""),  # the name would lie over that of v43
        (455.0, 75.8, "v43"),
    ]
    said = ", ".join(f"release {name}, {NOON + timedelta(minutes=times[name]):%a %H:%M} UTC" for name in [*times][1:4])
    assert shown.says == f"Last hour; {said}"
    alone = marked(share_chart([(1, 2)] * 60, "Share"), releases[2:3], NOON, NOON + timedelta(hours=1))
    assert [mark.text for mark in alone.marks] == ["v42.1-of-a-ve…"]
    assert marked(drawn, releases[:1], NOON, NOON + timedelta(hours=1)) is drawn


def test_shares_are_a_line_to_scale_with_gaps_where_there_was_none() -> None:
    drawn = share_line([("12:00", 0.003), ("13:00", None), ("14:00", 0.0), ("15:00", 0.01)], "a day")

    assert (drawn.path, drawn.most, drawn.width) == ("M0 41.2h10M20 58h10V2h10", 0.01, 40)
    assert [bar.says for bar in drawn.bars] == ["12:00: 0.3 %", "13:00: no attempt", "14:00: 0 %", "15:00: 1 %"]
    assert drawn.says == "a day: at most 1 %"
    assert share_line([("", 0.2)], "").most == 0.2
    assert share_line([("", 1 / 40_000_000)], "an hour").says == "an hour: at most 0.0001 %"
    assert trend_line([0, 0], "").path == "M0 58h10V58h10"


def test_a_timeline_shows_waits_and_attempts_to_scale() -> None:
    began = NOON + timedelta(seconds=50)
    failed = Attempt(1, 1, "web-1", NOON + timedelta(seconds=75), "Failed", started_at=began)
    record = replace(
        a_record(created_at=NOON),
        status=Status.PROCESSING,
        holder=Holder(seat="web-1", incarnation="a"),
        started_at=NOON + timedelta(seconds=90),
        attempts=(failed,),
    )

    pieces = timeline(record, NOON + timedelta(seconds=100))

    kinds = [piece.kind for piece in pieces]
    assert kinds == ["waited", "failed", "waited", "running"]
    assert [round(piece.width) for piece in pieces] == [500, 250, 150, 100]


def test_a_run_of_no_time_is_seen_at_the_end_of_a_long_wait() -> None:
    end = NOON + timedelta(hours=1)
    done = Attempt(1, 1, "web-1", end, "Done", started_at=end)
    record = replace(a_record(created_at=NOON), status=Status.DONE, ended_at=end, attempts=(done,))

    [_, run] = timeline(record, end)

    assert (run.kind, run.width, run.x + run.width) == ("done", LEAST, WIDTH)
