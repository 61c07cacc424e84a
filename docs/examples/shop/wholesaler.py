"""The wholesaler's service, over HTTP: it is often busy and sometimes away, and says how many requests it takes."""

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from shop import database
from shop.settings import Settings
from taskqueue import Fail, Job, Limit, Rate, Retry, retry

# The options of each job that asks the wholesaler. Limits with a name are shared by all classes that have them, in the
# whole cluster; a job that waits for one holds no worker.
WHOLESALER: dict[str, Any] = {
    "retry": retry.only_on(retry.exponential(6, "10s", jitter=0), OSError, Retry),  # any other error is a bug
    "limits": [Limit(4, name="wholesaler"), Rate(20, per=1, name="wholesaler-rate")],
    "timeout": "30s",
}


def ask(path: str, *, post_key: str | None = None) -> Any:
    """Return the answer to a GET, or to a POST that has this key; an exception says what to do about an error."""
    headers = {"Idempotency-Key": post_key} if post_key else {}
    request = Request(f"{Settings().wholesaler}{path}", headers=headers, method="POST" if post_key else "GET")
    try:
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        error.close()
        if error.code == 404:
            raise Fail(f"the wholesaler does not have {path}") from error  # no retry would change that
        if error.code == 429:
            after = error.headers["Retry-After"] or ""  # seconds, or a date, or none: then the policy says when
            raise Retry(int(after) if after.isdecimal() else None, "the wholesaler is busy") from error
        raise  # an OSError: the policy says when it is tried again


class PriceJob(Job):
    """Keeps the present price of the book ``isbn``; returns it in cents."""

    options = {"queue": "prices", **WHOLESALER}

    def start(self) -> int:
        cents: int = round(ask(f"/books/{self.data['isbn']}")["price"] * 100)
        database.set_price(self.data["isbn"], cents)
        return cents
