"""Text as every store can keep it: what people and operating systems put into messages may be no valid Unicode."""

from __future__ import annotations


def clean(text: str) -> str:
    """Return the text as it can be kept: a lone surrogate, say of an undecodable file name, is written out."""
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()
