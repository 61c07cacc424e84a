"""The API: its operations, shapes and problems as the OpenAPI document has them, with a command for each operation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taskqueue.web.api.openapi import ALWAYS, OF_BODIES, document
from taskqueue.web.view import View

TYPES = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "{…}", "array": "[…]"}
"""The types of JSON in words; others are their own."""

EXAMPLES = {"string": "TEXT", "integer": 5, "boolean": True, "object": {}, "array": []}
"""Values for types of which a schema gives no example."""

USUAL = {str(status) for status in (*ALWAYS, *OF_BODIES)}
"""The statuses of problems that are not named with each operation."""


def api(view: View) -> Mapping[str, Any]:
    """Return the document in the form in which the page shows it."""
    found = document(view.root)
    subjects: dict[str, list[dict[str, Any]]] = {}
    problems: dict[str, str] = {}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            shown = _operation(method.upper(), path, operation, has_tokens=view.has_tokens)
            subjects.setdefault(operation["tags"][0], []).append(shown)
            for status, answer in operation["responses"].items():
                if status >= "400":
                    problems[status] = answer["description"]
    return {
        "address": f"{view.site}{found['servers'][0]['url']}",
        "subjects": subjects,
        "shapes": {name: shape(schema) for name, schema in found["components"]["schemas"].items()},
        "problems": dict(sorted(problems.items())),
        "usual": USUAL,
        "has_tokens": view.has_tokens,
    }


def _operation(method: str, path: str, operation: Mapping[str, Any], *, has_tokens: bool) -> dict[str, Any]:
    body = operation.get("requestBody")
    [answer] = operation["responses"]["200"]["content"].items()
    return {
        "name": operation["operationId"],
        "method": method,
        "path": path,
        "says": operation["summary"],
        "users": operation["description"],
        "parameters": [{**one, "shape": shape(one["schema"])} for one in operation["parameters"]],
        "body": "" if body is None else shape(_schema(body)),
        "needs_body": body is not None and body["required"],
        "answers": [status for status in operation["responses"] if status < "300"],
        "answer": shape(answer[1]["schema"]),
        "is_stream": answer[0] == "text/event-stream",
        "problems": [status for status in operation["responses"] if status >= "400" and status not in USUAL],
        "curl": " ".join(_curl(method, path, operation, answer[0], has_tokens=has_tokens)),
    }


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = body["content"]["application/json"]["schema"]
    return found


def _curl(method: str, path: str, operation: Mapping[str, Any], answer: str, *, has_tokens: bool) -> list[str]:
    """Return the words of a command with examples of what is needed, and of parameters that have examples."""
    words = ["curl", "-sSN" if answer == "text/event-stream" else "-sS"]
    if method != "GET":
        words.append(f"-X {method}")
    if has_tokens:
        words.append('-H "Authorization: Bearer $TOKEN"')
    elif method != "GET":
        words.append('-H "X-CSRF-Token: $CSRF"')
    given = [one for one in operation["parameters"] if "examples" in one["schema"]]
    words += [f'-H "{one["name"]}: {one["schema"]["examples"][0]}"' for one in given if one["in"] == "header"]
    if "requestBody" in operation:
        example = json.dumps(_example(_schema(operation["requestBody"])))
        words.append(f"-H 'Content-Type: application/json' -d '{example}'")
    query = "&".join(f"{one['name']}={one['schema']['examples'][0]}" for one in given if one["in"] == "query")
    asked = path.replace("{", "$").replace("}", "").replace("$id", "$ID").replace("$name", "$NAME")
    return [*words, f'"$API{asked}{f"?{query}" if query else ""}"']


def _example(schema: Mapping[str, Any]) -> Any:
    """Return a value that keeps to the schema: of an object its least keys."""
    if "examples" in schema or "enum" in schema:
        return schema.get("examples", schema.get("enum"))[0]
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if "properties" not in schema:
        return EXAMPLES[kind]
    least = schema["required"] or list(schema["properties"])[-1:] * schema.get("minProperties", 0)
    return {name: _example(schema["properties"][name]) for name in least}


def shape(schema: Mapping[str, Any], indent: str = "") -> str:
    """Return a schema as text: the keys of an object line by line, with ``?`` behind those that may be missing."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(shape(one, indent) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "items" in schema:
        return f"[{shape(schema['items'], indent)}, …]"
    if "properties" in schema:
        return _object(schema, indent)
    if "additionalProperties" in schema:
        return f"{{NAME: {shape(schema['additionalProperties'], indent)}, …}}"
    kinds = schema.get("type", "anything")
    words = " or ".join(TYPES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    return words.replace("text", "time") if schema.get("format") == "date-time" else words


def _object(schema: Mapping[str, Any], indent: str) -> str:
    if not schema["properties"]:
        return "{}"
    lines = []
    for name, one in schema["properties"].items():
        missing = "" if name in schema["required"] else "?"
        about = f"  // {one['description']}" if "description" in one else ""
        lines.append(f"{indent}  {name}{missing}: {shape(one, f'{indent}  ')}{about}")
    return "\n".join(["{", *lines, f"{indent}}}"])
