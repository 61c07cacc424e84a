"""Reading waiting records no further than their bytes may go: a document says how long it is before it is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from bson import decode_all

from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.documents import CODEC, Document
from taskqueue.store.selection import is_beyond

Sized: TypeAlias = tuple[Document, int]
"""A document and its length in bytes."""

ANY_SIZE = ClaimRequest(pooled=0)
"""The demand where bytes do not matter."""


def read(batches: Iterable[bytes], demand: ClaimRequest) -> list[Sized]:
    """Return the documents up to the first that goes beyond the demand for the pool, with that one."""
    found: list[Sized] = []
    total = 0
    for batch in batches:
        sizes: list[int] = []
        for size in _sizes(batch):
            sizes.append(size)
            total += size
            if is_beyond(total, len(found) + len(sizes), demand):
                return [*found, *zip(decode_all(batch[: sum(sizes)], CODEC), sizes, strict=True)]
        found += zip(decode_all(batch, CODEC), sizes, strict=True)
    return found


def _sizes(batch: bytes) -> Iterator[int]:
    """Return the length of each document, which its first four bytes say."""
    position = 0
    while position < len(batch):
        size = int.from_bytes(batch[position : position + 4], "little")
        yield size
        position += size
