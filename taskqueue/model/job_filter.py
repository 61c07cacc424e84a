"""The filter of jobs that people write: ``class:Make customer:initech status:failed``, with the same words everywhere.

A filter is a list of tokens. Several statuses, queues, classes or ids are alternatives; all other tokens must match.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple
from urllib.parse import urlencode

from taskqueue.errors import InvalidOption, InvalidQuery, Unreadable
from taskqueue.model.ids import JobId, workflow_of
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.meta import KEY_SHAPE
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.serializer import decode
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import LONGEST_NAME, nearest, or_nearest

KEYS: Mapping[str, str] = {
    "status": "waiting, later, retrying, running, failed …",
    "class": "a part of its name, or module:Class",
    "queue": "the name of a queue",
    "tag": "one of its tags",
    "error": "a part of the class or the text of its error",
    "node": "the node that runs it",
    "parent": "the id of the job that added it",
    "id": "an id, or the text that was passed as one",
    "cause": "why it is in its status",
    "since": "ended since: 90m, 2d or a time",
    "before": "ended before: 90m, 2d or a time",
    "slow": "its last attempt took longer: 5s, 2m",
    "late": "it could run and has waited for longer",
    "attempts-over": "it took more attempts",
    "query": "a query in JSON",
}
"""The keys of tokens with what their values mean; ``meta.KEY`` and ``data.KEY`` are keys, too."""

TEXT = "text"
"""The key of a token that is a single word."""

_ALIASES = {"job": "class", "seat": "node"}
"""The names of fields of a query as keys."""

_ENDED = tuple(status for status in Status if status.is_final)
_POSTPONED = {"status": int(Status.POSTPONED)}
_ALONE = {**_POSTPONED, "waiting_for": {"$exists": False}}
_RETRIED = (Cause.RETRY, Cause.CRASHED, Cause.LOST, Cause.CLEAN_UP)
_FAILED_BEFORE = {"$or": [{"cause": {"$in": _RETRIED}}, {"failures": {"$gt": 0}}]}
_NEVER_FAILED = {"$and": [*({"cause": {"$ne": cause}} for cause in _RETRIED), {"failures": 0}]}

STATUSES: Mapping[str, tuple[Status, ...]] = {
    **{status.name.lower(): (status,) for status in Status},
    "pending": tuple(status for status in Status if status.is_pending),
    "final": _ENDED,
    "ended": _ENDED,
    "bad": (Status.FAILED, Status.TIMEOUT),
    "later": (Status.POSTPONED,),
    "running": (Status.PROCESSING,),
    "timed out": (Status.TIMEOUT,),
    "scheduled": (Status.POSTPONED,),
    "retrying": (Status.POSTPONED,),
    "blocked": (Status.POSTPONED,),
    "unloadable": (Status.POSTPONED,),
}
"""The words for statuses, and the statuses of the jobs that they match."""

PARTS_OF_POSTPONED: Mapping[str, Mapping[str, Any]] = {
    "scheduled": {**_ALONE, "cause": {"$ne": Cause.UNLOADABLE}, **_NEVER_FAILED},
    "retrying": {**_ALONE, "cause": {"$ne": Cause.UNLOADABLE}, **_FAILED_BEFORE},
    "blocked": {**_POSTPONED, "waiting_for": {"$exists": True}},
    "unloadable": {**_POSTPONED, "cause": Cause.UNLOADABLE},
}
"""The words that mean some of the postponed jobs, and their queries."""

WORDS_OF_PARTS: Mapping[str, str] = {word: word for word in PARTS_OF_POSTPONED} | {"unloadable": "cannot load"}
"""The same words as people read them."""

_WORDS_READ = {shown: word for word, shown in WORDS_OF_PARTS.items()}

_FIELDS = {"parent": "parent"}
"""The fields of keys whose values are compared unchanged."""

_CLASS_PATH = re.compile(r"[^:]+:[^:]+")
_WORD = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NEEDS_QUOTES = re.compile(r'[\s"]|^[{\[]|^$')
_ALIKE = 0.75
"""How similar an unknown key must be to mean a known one; ``user`` and ``cause`` are not."""

_EXAMPLE = '{"data.to": "ann@example.org"}'


def part_of_postponed(cause: Cause, has_failed: bool) -> str:
    """Return the word for a postponed job that waits for no other job."""
    if cause is Cause.UNLOADABLE:
        return "unloadable"
    return "retrying" if has_failed or cause in _RETRIED else "scheduled"


class Token(NamedTuple):
    """One part of a filter: a key and its value."""

    key: str
    value: str

    def __str__(self) -> str:
        if self.key == "query":
            return self.value
        value = self.value
        if _NEEDS_QUOTES.search(value) or (self.key == TEXT and ":" in value):
            value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return value if self.key == TEXT else f"{self.key}:{value}"


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a list shows, and which an action is for."""

    tokens: tuple[Token, ...] = ()

    @classmethod
    def read(cls, text: str) -> JobFilter:
        """Return the filter that a text means. Raises ``InvalidQuery``."""
        return cls(tuple(_tokens(text)))

    @classmethod
    def of_arguments(cls, arguments: Iterable[str]) -> JobFilter:
        """Return the filter of a command line, where each argument is one token. Raises ``InvalidQuery``."""
        return cls(tuple(_argument(argument) for argument in arguments))

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> JobFilter:
        """Return the filter of an address: ``q`` is a text, and each parameter named like a key is a token."""
        named = [
            _token(key, value)
            for key in (*KEYS, *_ALIASES)
            if key != "query" and (value := parameters.get(key, "").strip())
        ]
        return cls((*named, *_tokens(parameters.get("q", "")), *_tokens(parameters.get("query", ""))))

    def __str__(self) -> str:
        return " ".join(map(str, self.tokens))

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def values(self, key: str) -> list[str]:
        """Return the values of all tokens with this key."""
        return [token.value for token in self.tokens if token.key == key]

    def adding(self, key: str, value: str) -> JobFilter:
        """Return the filter with this token added, unless it has it already."""
        token = _token(key, value)
        return self if token in self.tokens else JobFilter((*self.tokens, token))

    def replacing(self, key: str, value: str) -> JobFilter:
        """Return the filter with this value replacing all tokens of the key; an empty value removes them."""
        others = tuple(token for token in self.tokens if token.key != key)
        return JobFilter((Token(key, value), *others) if value else others)

    def statuses(self) -> frozenset[Status]:
        """Return the statuses that matching jobs may have, as far as tokens name them. Raises ``InvalidQuery``."""
        words = [word for value in self.values("status") for word in _status_words(value)]
        named = frozenset(status for word in words for status in STATUSES[word]) or frozenset(Status)
        is_ended = bool(self.values("since") or self.values("before"))
        return named & frozenset(_ENDED) if is_ended else named

    def query(self, now: datetime) -> dict[str, Any]:
        """Return the query; durations end at ``now``. Raises ``InvalidQuery``."""
        parts = [*self._alternatives(), *(part for token in self.tokens if (part := _part(token, now)) is not None)]
        query: dict[str, Any] = {} if not parts else parts[0] if len(parts) == 1 else {"$and": parts}
        parse(query)
        return query

    def _alternatives(self) -> Iterator[dict[str, Any]]:
        words = [word for value in self.values("status") for word in _status_words(value)]
        plain = sorted({int(status) for word in words if word not in PARTS_OF_POSTPONED for status in STATUSES[word]})
        parts = [{"status": {"$in": plain}}] if plain else []
        yield from _any_of([*parts, *(dict(PARTS_OF_POSTPONED[word]) for word in words if word in PARTS_OF_POSTPONED)])
        queues, classes = self.values("queue"), self.values("class")
        if queues:
            yield {"queue": queues[0] if len(queues) == 1 else {"$in": queues}}
        yield from _any_of([_class(value) for value in classes])
        ids = self.values("id")
        named = {
            "id": [id for id in ids if JobId.is_valid(id)],
            "id_text": [id for id in ids if not JobId.is_valid(id)],
        }
        yield from _any_of(
            [{field: {"$in": some} if len(some) > 1 else some[0]} for field, some in named.items() if some]
        )

    def address(self, **others: str) -> str:
        """Return the part of an address after the question mark, with these other parameters."""
        fields = {"q": str(self), **others}
        return urlencode({name: value for name, value in fields.items() if value})

    def says(self) -> str:
        """Return the filter in words: ``waiting jobs of queue mail``."""
        statuses = " or ".join(self.values("status"))
        words = [f"{statuses} jobs" if statuses else "jobs"]
        for key, before in _WORDS.items():
            values = self.values(key)
            if values:
                words.append(f"{before} {(' or ' if key in ('queue', 'class') else ' and ').join(values)}")
        selected = len(self.values("id"))
        if selected > 1:
            words.append(f"among the {selected} selected ones")
        others = [token for token in self.tokens if token.key not in (*_WORDS, "status", *["id"] * (selected > 1))]
        if others:
            words.append(f"that match {' '.join(map(str, others))}")
        return " ".join(words)


_WORDS = {
    "queue": "of queue",
    "class": "of class",
    "tag": "with tag",
    "node": "on node",
    "workflow": "of workflow",
    "since": "that ended since",
    "before": "that ended before",
    "error": "whose error contains",
}
"""How a sentence names the values of a key."""


class Names:
    """The names in use by jobs: for completing what is typed, and for finding what a misspelt name meant."""

    def __init__(self, records: Iterable[Record], queues: Iterable[str] = ()) -> None:
        self._values: dict[str, dict[str, None]] = {}
        for queue in queues:
            self._add("queue", queue)
        for record in records:
            self._add("class", record.job)
            self._add("queue", record.queue)
            for tag in record.tags:
                self._add("tag", tag)
            for key, value in record.meta.items():
                self._add(f"meta.{key}", value)
            if record.error is not None:
                self._add("error", record.error.type.rpartition(".")[2])
            if record.holder is not None:
                self._add("node", record.holder.seat)

    def _add(self, key: str, value: str) -> None:
        self._values.setdefault(key, {})[value] = None

    def of(self, key: str) -> list[str]:
        """Return the values of a key."""
        return list(self._values.get(key, ()))

    def tokens(self) -> list[Token]:
        """Return all values with their keys."""
        return [Token(key, value) for key, values in self._values.items() for value in values]

    def suggestions(self, word: str, most: int = 12) -> list[tuple[str, str]]:
        """Return the completions of a word, keys and tokens, each with its meaning, the best ones first."""
        written = word.replace('"', "").lower()
        key, colon, part = written.partition(":")
        key = _ALIASES.get(key, key)
        completions = {f"{name}:": about for name, about in KEYS.items() if not colon and written in name}
        completions.pop("query:", None)
        statuses = [Token("status", status) for status in STATUSES if " " not in status]
        for token in (*statuses, *self.tokens()) if written else ():
            is_of_key = bool(colon) and token.key == key and part in token.value.lower()
            if is_of_key or written in f"{token.key}:{token.value}".lower():
                completions[str(token)] = ""
        beginning = f"{key}:{part}" if colon else written
        ranked = sorted(completions, key=lambda text: not text.lower().startswith(beginning))
        return [(text, completions[text]) for text in ranked[:most]]

    def unknown(self, job_filter: JobFilter) -> list[tuple[Token, str]]:
        """Return each token that matches none of these jobs, with a sentence that names the nearest value."""
        sentences = ((token, self._unknown(token)) for token in job_filter.tokens)
        return [(token, sentence) for token, sentence in sentences if sentence]

    def _unknown(self, token: Token) -> str:
        key, value = token
        if key == "class":
            classes = self.of("class")
            if any(value in path for path in classes):
                return ""
            short = {path.rpartition(":")[2] for path in classes}
            return f"no job has class {value}{nearest(value, classes if ':' in value else short)}"
        if key in ("queue", "tag", "node") or key.startswith("meta."):
            return "" if value in self.of(key) else f"no job has {key} {value}{nearest(value, self.of(key))}"
        if _is_own(key):
            written = f"{key}:{value}"
            if written in self.of("tag") or value in self.of(f"meta.{key}"):
                return ""
            known = [*self.of("tag"), *(f"{key}:{other}" for other in self.of(f"meta.{key}"))]
            known += [f"class:{path}" for path in self.of("class") if path == written]
            return f"no job has tag or meta {written}{nearest(written, known)}"
        if key == TEXT and value.lower() in (*STATUSES, *_WORDS_READ):
            return f"no job has the word {value}: did you mean {Token('status', value.lower())}?"
        return ""


def _is_own(key: str) -> bool:
    """Return whether a key belongs to the application's tags or meta: it is no word of the language."""
    return key not in KEYS and key != TEXT and not key.startswith(("meta.", "data."))


def _tokens(text: str) -> Iterator[Token]:
    rest = text.strip()
    while rest:
        if rest[0] in "{[":
            length = _json_length(rest)
            yield Token("query", rest[:length])
        else:
            word = _WORD.match(rest)
            if word is None or rest[word.end() :][:1] == '"':
                raise InvalidQuery(f'{as_code(rest)}: a quote is not closed: write for example error:"not found"')
            length = word.end()
            yield _of_word(word[0])
        rest = rest[length:].lstrip()


def _of_word(word: str) -> Token:
    key, colon, value = word.partition(":")
    if not colon or '"' in key:
        return Token(TEXT, _unquoted(word))
    return _token(key, _unquoted(value))


def _argument(argument: str) -> Token:
    """Return the token of an argument, whose value may contain blanks, since the shell has removed the quotes."""
    tokens = list(_tokens(argument)) if argument.strip()[:1] in ('"', "{", "[") or ':"' in argument else []
    if len(tokens) == 1:
        return tokens[0]
    key, colon, value = argument.partition(":")
    return _token(key, value) if colon else Token(TEXT, argument)


def _token(key: str, value: str) -> Token:
    name = _ALIASES.get(key, key)
    name = _ALIASES.get(name.lower(), name.lower()) if name.lower() in (*KEYS, *_ALIASES) else name
    if not value.strip():
        raise InvalidQuery(f"{name}: has no value: write for example status:failed or queue:mail")
    near = get_close_matches(name[:LONGEST_NAME].lower(), KEYS, n=1, cutoff=_ALIKE) if _is_own(name) else []
    if near:
        raise InvalidQuery(
            f"there is no key {as_code(name)}: did you mean {near[0]}:{value}? "
            f"If it is a tag, write tag:{name}:{value}, and if it is a key of the meta, meta.{name}:{value}"
        )
    return Token(name, value)


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda quoted: re.sub(r"\\(.)", r"\1", quoted[1]), text)


def _json_length(text: str) -> int:
    """Return the length of the JSON at the start of the text. Raises ``InvalidQuery``."""
    try:
        _, length = json.JSONDecoder().raw_decode(text)
    except (RecursionError, ValueError) as error:
        raise InvalidQuery(f"the query is not JSON ({error}): write for example {_EXAMPLE}") from None
    return int(length)


def _status_words(value: str) -> list[str]:
    words = [_WORDS_READ.get(word.strip().lower(), word.strip().lower()) for word in value.split(",")]
    for word in words:
        if word not in STATUSES:
            near = or_nearest(word, STATUSES)
            raise InvalidQuery(f"there is no status {as_code(word)}: use {', '.join(STATUSES)}{near}")
    return words


def _any_of(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if parts:
        yield parts[0] if len(parts) == 1 else {"$or": parts}


def _class(value: str) -> dict[str, Any]:
    return {"job": value if _CLASS_PATH.fullmatch(value) else {"$contains": value}}


def _part(token: Token, now: datetime) -> dict[str, Any] | None:
    """Return the part of the query that a token means; None for keys that have alternatives."""
    key, value = token
    if key.startswith("data."):
        return {key: {"$in": _data_values(value)}}
    match key:
        case "status" | "queue" | "class" | "id":
            return None
        case "tag":
            return _tagged(value)
        case "node":
            return {"seat": value, "status": int(Status.PROCESSING)}
        case "parent":
            return {_FIELDS[key]: value}
        case "cause":
            return {"cause": _cause(value)}
        case "error":
            return {"$or": [{"error.message": {"$contains": value}}, {"error.type": {"$contains": value}}]}
        case "query":
            return _written(value)
        case "since" | "before" | "slow" | "late" | "attempts-over":
            return _figure(key, value, now)
        case "text":
            return {"$or": [{"job": {"$contains": value}}, {"id_text": value}]}
    return {key: value} if key.startswith("meta.") else _own(key, value)


def _own(key: str, value: str) -> dict[str, Any]:
    """Return the query for a key of the application: a tag, or a key of the meta."""
    is_meta = KEY_SHAPE.fullmatch(key) is not None
    tag = _tagged(f"{key}:{value}")
    return {"$or": [tag, {f"meta.{key}": value}]} if is_meta and "tags" in tag else tag


def _tagged(tag: str) -> dict[str, Any]:
    """Return the query for a tag; that of a workflow means its members, which an index has."""
    workflow = workflow_of([tag])
    return {"tags": tag} if workflow is None else {"workflow": str(workflow)}


def _figure(key: str, value: str, now: datetime) -> dict[str, Any]:
    from taskqueue.model.schedules import ago, seconds_of

    try:
        if key in ("since", "before"):
            bound = {"$gte" if key == "since" else "$lt": ago(value, now)}
            return {"status": {"$gt": int(Status.PROCESSING)}, "ended_at": bound}
        if key == "attempts-over":
            if not value.isdecimal() or len(value) > 9:
                raise InvalidOption(f"{as_code(value)} is not a number of attempts: write one such as 3")
            return {"tries": {"$gt": int(value)}}
        seconds = seconds_of(float(value) if re.fullmatch(r"\d+(\.\d+)?", value.strip()) else value)
    except InvalidOption as refused:
        raise InvalidQuery(f"{key}: {refused}") from None
    if key == "slow":
        ran = [int(Status.DONE), int(Status.FAILED), int(Status.TIMEOUT)]
        return {"status": {"$in": ran}, "took": {"$gt": seconds}}
    due = {"ready_at": {"$lt": now - timedelta(seconds=seconds)}, "cause": {"$ne": Cause.BEHIND}}
    return {"status": {"$lt": int(Status.PROCESSING)}, **due}


def _cause(value: str) -> str:
    word = value.lower().replace(" ", "_")
    causes = [cause.value for cause in Cause]
    if word not in causes:
        raise InvalidQuery(f"there is no cause {as_code(value)}: use {', '.join(causes)}{or_nearest(word, causes)}")
    return word


def _data_values(value: str) -> list[Any]:
    """Return what a value of the data may be: the text itself, and the number, boolean or null that it spells."""
    try:
        literal = json.loads(value)
    except (RecursionError, ValueError):
        return [value]
    return [value, literal] if literal is None or isinstance(literal, int | float) else [value]


def _written(text: str) -> dict[str, Any]:
    """Return the query written in JSON, with the types of Extended JSON. Raises ``InvalidQuery``."""
    try:
        json.loads(text)
        query = decode(text)
    except (RecursionError, Unreadable, ValueError) as error:
        raise InvalidQuery(f"the query is not JSON ({error}): write for example {_EXAMPLE}") from None
    if not isinstance(query, dict):
        raise InvalidQuery(f"a query is a JSON object such as {_EXAMPLE}, not {as_code(text)}")
    return query
