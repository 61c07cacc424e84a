"""Counts constructions that read translated in docstrings, comments and pages; each has a budget that only falls."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

BUDGETS = {
    r"\bbehind\b": 20,
    r"\banew\b": 6,
    r"\bgo(es)? on\b": 14,
    r"\bmeanwhile\b": 7,
    r"\bbesides\b": 5,
    r"\bfor ever\b": 5,
    r"\b(is|are) over\b": 9,
    r"\b(is|are) to (be|end)\b": 2,
    r"\bso (many|long|much)\b(?! (as|that)\b)": 11,
    r"\bwhere (it|they|there|one|that|no)\b": 33,
    r"\bthose that\b": 18,
    r"\bwithout one\b": 4,
    r"\b[Ww]ho (has|is|was|had|wants|asks|reads|waits)\b": 6,
    r"\bTell whether\b": 0,
    r"\b[Hh]eed(s|ed)?\b": 0,
}
"""How often each may stand in the code and the pages. Lower a number after removing some; never raise one."""

RIGHT = ("left behind", "leave behind", "leaves behind", "stays behind", "behind a proxy", "behind nginx", "| `behind`")
"""Parts of a line in which such a word is right; the line is not counted."""


def lines() -> Iterator[str]:
    """Yield each line of the docstrings and comments of the package, and of the prose of the pages."""
    for path in sorted((CHECKOUT / "taskqueue").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield from docstring.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.string
    for page in [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        yield from prose.splitlines()


def excess() -> dict[str, str]:
    """Return each construction that stands more often than its budget allows, with the numbers."""
    counted = [line for line in lines() if not any(part in line for part in RIGHT)]
    found = {pattern: sum(len(re.findall(pattern, line)) for line in counted) for pattern in BUDGETS}
    return {pattern: f"{found[pattern]} of {budget}" for pattern, budget in BUDGETS.items() if found[pattern] > budget}
