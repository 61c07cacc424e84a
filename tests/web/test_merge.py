"""The merge of new HTML into a page, in a real browser: what the reader does stays, and nothing of the HTML runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from taskqueue.web.rendering import static_files

ROWS = "<table><tbody>{}</tbody></table>"
FIELD = "<textarea id='t'>{0}</textarea>"
ROW = '<tr id="{0}"><td><input id="in-{0}" value="{0}"></td></tr>'


def rows(*names: str) -> str:
    return ROWS.format("".join(ROW.format(name) for name in names))


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """Return an empty page with the script."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_content('<div id="content"></div>')
    page.add_script_tag(content=static_files()["merge.js"].content.decode() + "\nwindow.mergeHtml = mergeHtml;")
    yield page
    context.close()


def merge(page: Page, html: str) -> None:
    page.evaluate("html => mergeHtml(document.getElementById('content'), html)", html)


def content(page: Page) -> Any:
    return page.evaluate("document.getElementById('content').innerHTML")


STATES = (
    rows("a", "b", "c", "d"),
    rows("d", "c", "b", "a"),
    rows("b", "x", "d"),
    "<p>one</p><p id='k'>two</p>tail",
    "<p id='k'>two</p><ul><li>1</li><li>2</li></ul>",
    '<svg viewBox="0 0 2 2"><path d="M0 0h1"></path></svg><p class="new">three</p>',
    "",
)


def test_the_content_is_the_new_html_whatever_it_was_before(page: Page) -> None:
    for before in STATES:
        for after in STATES:
            merge(page, before)
            merge(page, after)
            assert content(page) == after.replace("'", '"')


@pytest.mark.parametrize("order", ["dcba", "badc", "bd", "xbya", "cxb"])
def test_the_field_in_use_keeps_its_focus_text_and_selection_when_rows_move(page: Page, order: str) -> None:
    merge(page, rows("a", "b", "c", "d"))
    page.locator("#in-b").fill("typed")
    page.evaluate("document.activeElement.setSelectionRange(1, 3)")

    merge(page, rows(*order))

    assert content(page) == rows(*order)
    assert page.evaluate("[document.activeElement.id, document.activeElement.value]") == ["in-b", "typed"]
    assert page.evaluate("[document.activeElement.selectionStart, document.activeElement.selectionEnd]") == [1, 3]


def test_what_the_reader_opened_ticked_or_wrote_stays(page: Page) -> None:
    html = "<details id='d'><summary>more</summary>{0}</details><input type='checkbox' id='c'>" + FIELD
    merge(page, html.format("1"))
    page.locator("summary").click()
    page.locator("#c").check()
    page.locator("#t").fill("mine")

    merge(page, html.format("2"))

    assert page.evaluate("[d.open, c.checked, t.value, t.defaultValue]") == [True, True, "mine", "2"]
    assert "2" in page.locator("details").inner_text()


def test_a_value_that_the_server_changes_is_shown_where_the_reader_is_not(page: Page) -> None:
    html = "<input id='a' value='{0}'><input id='b' value='{0}'><input type='checkbox' id='c' {1}>" + FIELD
    merge(page, html.format("1", ""))
    page.locator("#a").fill("typed")
    page.locator("#b").focus()

    merge(page, html.format("2", "checked"))

    assert page.evaluate("[a.value, c.checked, t.value]") == ["2", True, "2"]


def test_a_selection_in_text_that_does_not_change_stays(page: Page) -> None:
    merge(page, "<p>1</p><p id='k'>marked</p>")
    page.evaluate("getSelection().selectAllChildren(document.getElementById('k'))")

    merge(page, "<p>2</p><p>3</p><p id='k'>marked</p>")

    assert page.evaluate("getSelection().toString()") == "marked"


HOSTILE = (
    "<script>window.ran = 1</script>",
    "<img src='data:,' onerror='window.ran = 1'>",
    "<svg onload='window.ran = 1'><script>window.ran = 1</script></svg>",
    "<details open ontoggle='window.ran = 1'>x</details>",
    "<iframe srcdoc='<script>parent.ran = 1</script>'></iframe>",
    "<meta http-equiv='refresh' content='0;url=data:,left'>",
    "<a id='l' href=' java\nscript:window.ran = 1'>x</a>",
)


@pytest.mark.parametrize("html", HOSTILE)
def test_nothing_of_the_html_runs(page: Page, html: str) -> None:
    merge(page, "<p>before</p>")

    merge(page, html)
    page.evaluate("document.getElementById('l')?.click()")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    assert page.evaluate("window.ran") is None
    assert page.url == "about:blank"


def test_no_address_is_a_script(page: Page) -> None:
    merge(page, "<form action='JavaScript:1'><button formaction=' javascript:1' class='kept'>x</button></form>")

    assert content(page) == '<form><button class="kept">x</button></form>'
