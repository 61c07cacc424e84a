"""Results that are put into the data of the jobs behind them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from taskqueue import Process, Scheduler
from taskqueue import workflows as words
from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.scheduler.workflows import RESULT, RESULTS
from tests.scheduler.awaited import called
from tests.scheduler.receiving import Broken, Careful, Order, Plain, Read, Total, Translate, add

chain = partial(called, words.chain)


def message(process: Process) -> str:
    """Return the words of the error."""
    assert process.error is not None
    assert process.error.type == "taskqueue.Fail"
    return process.error.message


def gave(process: Process) -> str:
    """Return how a message names the job that gave a value."""
    return f"it is the result of job {process.id} ({process.job})"


def test_the_result_takes_its_place_in_the_data(scheduler: Scheduler) -> None:
    flow = chain(scheduler, (Plain, 7), (Plain, {"page": RESULT, "by": 2}), (Plain, RESULT), (Careful, {"page": 7}))
    last = scheduler.add_job(Careful, depends_on=flow.processes[0], receives={"page": "result"})

    scheduler.run_pending()

    assert flow.refresh().results == [7, {"page": 7, "by": 2}, {"page": 7, "by": 2}, {"page": 7}]
    assert last.refresh().result == {"page": 7}
    assert flow.processes[1].data == {"by": 2}
    assert last.options["receives"] == ["page=result"]


def test_results_are_a_list_in_the_order_of_the_members(scheduler: Scheduler) -> None:
    flow = chain(scheduler, [(Plain, 1), (Plain, 2), (Plain, 3)], (Plain, {"numbers": RESULTS}), (Plain, [RESULT][0]))
    alone = chain(scheduler, (Plain, 1), (Plain, RESULTS))

    scheduler.run_pending()

    assert flow.refresh().processes[3].result == {"numbers": [1, 2, 3]}
    assert alone.refresh().result == [1]


def test_typed_data_are_completed_and_restored(scheduler: Scheduler) -> None:
    flow = chain(scheduler, [(Read, "a"), (Read, "b")], (Translate, {"pages": RESULTS, "language": "ga"}))
    made = chain(scheduler, (Read, "a"), (Translate, Order(RESULTS)))

    scheduler.run_pending()

    assert flow.refresh().result == "ga: a of 01.07., b of 01.07."
    assert made.refresh().result == "en: a of 01.07."


def test_arguments_of_a_task_are_received(scheduler: Scheduler) -> None:
    flow = chain(scheduler, (add, {"left": 1}), (add, {"left": RESULT, "right": 5}))

    scheduler.run_pending()

    assert flow.refresh().results == [1, 6]


def test_a_class_declares_what_it_receives(scheduler: Scheduler) -> None:
    flow = chain(scheduler, [(Plain, 1), (Plain, 2)], Total)
    alone = scheduler.add_job(Total, [4, 5])
    by_path = scheduler.add_job("tests.scheduler.receiving:Total", depends_on=flow.processes[:2])

    scheduler.run_pending()

    assert flow.refresh().result == by_path.refresh().result == 3
    assert alone.refresh().result == 9


def test_a_result_that_does_not_fit_names_the_job_that_gave_it(scheduler: Scheduler) -> None:
    flow = chain(scheduler, [(Plain, 1), (Plain, "2")], Total)
    task = chain(scheduler, (Plain, "x"), (add, {"left": RESULT}))
    typed = chain(scheduler, [(Read, "a"), (Plain, {"url": "b"})], (Translate, {"pages": RESULTS}))
    text = chain(scheduler, (Plain, "x"), (Translate, {"pages": RESULT}))
    no_mapping = chain(scheduler, (Plain, "x"), (add, RESULT))

    scheduler.run_pending()

    said = message(flow.refresh().processes[2])
    assert said == f"data[1]: '2' is not an int; {gave(flow.processes[1])}"
    assert message(task.refresh().processes[1]).startswith("data['left']: 'x' is not an int; it is the result of job")
    said = message(typed.refresh().processes[2])
    assert said == f"data.pages[1].read_on is missing: Page requires it; {gave(typed.processes[1])}"
    assert message(text.refresh().processes[1]).startswith("data.pages: 'x' is not a list; it is the result of job")
    assert "pass a mapping whose keys are the function's arguments" in message(no_mapping.refresh().processes[1])


def test_a_failure_that_is_ignored_gives_nothing(scheduler: Scheduler) -> None:
    flow = chain(scheduler, [Broken, (Plain, 2)], (Plain, RESULTS), on_failure="ignore")
    typed = chain(scheduler, [Broken, (Plain, 2)], Total, on_failure="ignore")

    scheduler.run_pending()

    assert flow.refresh().result == [None, 2]
    assert message(typed.refresh().processes[2]).startswith("data[0]: None is not an int; it is the result of job")


def test_the_other_data_can_be_updated(scheduler: Scheduler) -> None:
    flow = chain(scheduler, (Read, "a"), (Translate, {"pages": RESULTS, "language": "ga"}))

    scheduler.update_job(flow.processes[1].id, data={"language": "de"})
    with pytest.raises(InvalidJob, match=r"data\['pages'\] is both passed and received"):
        scheduler.update_job(flow.processes[1].id, data={"pages": []})
    scheduler.run_pending()

    assert flow.refresh().result == "de: a of 01.07."


def test_a_copy_receives_what_its_job_received(scheduler: Scheduler) -> None:
    flow = chain(scheduler, (Plain, "x"), (add, {"left": RESULT}))
    scheduler.run_pending()

    copy = scheduler.recover_job(flow.processes[1].id)
    scheduler.run_pending()

    assert f"it is the result of job {flow.id}" in message(copy.refresh())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([(Plain, RESULT)], "is in the first level, where no job gives it a result"),
        ([[Plain, Plain], (Plain, RESULT)], r"'result' needs exactly one job in depends_on \(2 given\): use 'results'"),
        ([Plain, (Translate, {"pages": RESULTS, "language": 5})], "data.language: 5 is not a str"),
        ([Plain, (Translate, {"page": RESULTS})], "Order has no field 'page': use pages, language"),
        ([Plain, (Translate, {"language": RESULT})], "data.pages is missing: Order requires it"),
        ([Plain, (add, {"lft": RESULT})], "cannot be called with this data"),
        ([Plain, (Total, [4])], r"data is \[4\], but is also received"),
        (
            [Plain, (Plain, {"pages": [RESULT]})],
            r"data\['pages'\]\[0\] is <the result .*>: use it only for all the data",
        ),
        ([Plain, (Plain, 5, {"receives": "page=result"})], "data is 5, but parts of it are received: pass a mapping"),
    ],
)
def test_what_cannot_be_received_is_refused_when_it_is_added(scheduler: Scheduler, members: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        chain(scheduler, *members)


def test_a_result_that_is_not_there_yet_is_no_part_of_a_text() -> None:
    with pytest.raises(TypeError, match="<the result of the level before> is not known yet: receive it in the data"):
        f"page {RESULT}"
    with pytest.raises(TypeError, match="<the results of the level before> is not known yet"):
        str(RESULTS)


def test_nothing_is_received_from_no_job(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match=r"receives=\['result'\]: depends_on is empty: name a job"):
        scheduler.add_job(Plain, receives="result")
