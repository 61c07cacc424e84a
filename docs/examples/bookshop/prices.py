"""Asks the wholesaler for a price, over HTTP; the service is often busy and sometimes gone."""

import json
from urllib.error import HTTPError
from urllib.request import urlopen

from bookshop import database
from bookshop.settings import Settings
from taskqueue import Fail, Job, Limit, Retry, retry


class PriceJob(Job):
    """Keeps the present price of the book ``isbn``; returns it in cents."""

    options = {
        "retry": retry.only_on(retry.exponential(6, "10s", jitter=0), OSError, Retry),
        "limits": [Limit(4, name="wholesaler")],
        "timeout": "30s",
    }

    def start(self) -> int:
        isbn = self.data["isbn"]
        try:
            with urlopen(f"{Settings().prices}/books/{isbn}", timeout=10) as answer:
                cents = round(json.load(answer)["price"] * 100)
        except HTTPError as error:
            error.close()
            if error.code == 404:
                raise Fail(f"the wholesaler does not have {isbn}") from error
            if error.code == 429:
                raise Retry(delay=float(error.headers["Retry-After"])) from error
            raise
        database.set_price(isbn, cents)
        return cents
