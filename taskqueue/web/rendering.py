"""Renders the templates, and serves the static files under addresses that change with their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import JSONResponse, Response

from taskqueue.model.serializer import clean
from taskqueue.web.words import FILTERS

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""The content type of each static file by its suffix; others are not served."""

FOR_EVER = "public, max-age=31536000, immutable"


class StaticFile(NamedTuple):
    """A file of ``taskqueue/web/static``."""

    content: bytes
    type: str
    digest: str


@cache
def environment() -> Environment:
    """Return the environment of the templates: everything is escaped, and an unknown name is an error."""
    made = Environment(
        loader=PackageLoader("taskqueue.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    return made


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the static files by name."""
    files_by_name = {}
    for file in files("taskqueue.web").joinpath("static").iterdir():
        kind = next((kind for suffix, kind in TYPES.items() if file.name.endswith(suffix)), None)
        if kind is not None:
            content = file.read_bytes()
            files_by_name[file.name] = StaticFile(content, kind, hashlib.sha256(content).hexdigest()[:16])
    return files_by_name


def rendered(template: str, root: str, values: Mapping[str, Any]) -> str:
    """Return the template filled in; ``static(NAME)`` is the address of a static file in it."""

    def static(name: str) -> str:
        return f"{root}/static/{static_files()[name].digest}/{name}"

    return clean(environment().get_template(template).render(**values, root=root, static=static))


class JsonResponse(JSONResponse):
    """JSON in which a lone surrogate of a stored text is an escape: otherwise the rest could not be shown."""

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return clean(text).encode()


def static_response(digest: str, name: str) -> Response:
    """Return the static file; browsers keep it forever if the address contains its digest."""
    file = static_files().get(name)
    if file is None:
        return Response("there is no such file", 404, media_type="text/plain")
    caching = FOR_EVER if digest == file.digest else "no-cache"
    return Response(file.content, headers={"cache-control": caching, "content-type": file.type})
