"""The diagrams of the pages, which GitHub draws in the browser with mermaid: Graphviz draws them once for the site."""

from __future__ import annotations

import re
import subprocess

BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME, SHAPE = r"\[\*\]|\w+", r"[\[(].+?[\])]+"
ARROW = re.compile(
    rf"(?P<start>{NAME})(?P<shape>{SHAPE})? --(?: (?P<word>.+?) --)?> "
    rf"(?P<end>{NAME})(?P<other>{SHAPE})?(?:: (?P<label>.+))?"
)
DIRECTIONS = {"stateDiagram-v2": "TB", "flowchart LR": "LR"}
POINT = "[*]"
LETTERS = 28
"""About how many letters of a label stand on a line."""


def drawn(_page: str, text: str) -> str:
    """Return the page with a picture in the place of each diagram."""
    return BLOCK.sub(lambda block: _picture(block[1]), text)


def graph(diagram: str) -> str:
    """Return a diagram of mermaid in the language of Graphviz. Raises ``ValueError`` for a line that is no arrow."""
    first, *lines = diagram.strip().splitlines()
    look = ('bgcolor="transparent"', 'node [shape="box", style="rounded"]')
    parts = ["digraph {", f'rankdir="{DIRECTIONS[first]}"', *look]
    for line in map(str.strip, lines):
        arrow = ARROW.fullmatch(line)
        if arrow is None:
            raise ValueError(f"no arrow of a diagram: {line!r}")
        start, end = (f"{side} of {arrow[side]}" if arrow[side] == POINT else arrow[side] for side in ("start", "end"))
        parts += [*_node(start, arrow["shape"]), *_node(end, arrow["other"])]
        parts.append(f'"{start}" -> "{end}" [label="{_folded(arrow["word"] or arrow["label"] or "")}"]')
    return "\n".join([*parts, "}"])


def _node(name: str, shape: str | None) -> list[str]:
    """Return what is said of a node: a point is where jobs begin or end, round brackets are a store."""
    if name.endswith(POINT):
        return [f'"{name}" [shape="point", width=0.12]']
    if shape is None:
        return []
    form = ', shape="cylinder", style=""' if shape.startswith("[(") else ""
    return [f'"{name}" [label="{shape.strip("[()]")}"{form}]']


def _folded(label: str) -> str:
    """Return a label in lines that are not too long."""
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + len(word) >= LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\\n".join(lines)


def _picture(diagram: str) -> str:
    ran = subprocess.run(["dot", "-Tsvg"], input=graph(diagram), capture_output=True, text=True, check=True)
    svg = ran.stdout[ran.stdout.index("<svg") :]
    return f'```{{raw}} html\n<div class="diagram">{svg}</div>\n```'
