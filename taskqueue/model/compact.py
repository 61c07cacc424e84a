"""Write plain values as JSON text without blanks, for what is written for each job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def _writer() -> Callable[[Any], str]:
    """Return ``JSONEncoder.encode``, set up once: by itself it sets its C part up anew for every call."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another interpreter than CPython
        return _encoder.encode
    string = json.encoder.encode_basestring
    chunks = make(None, _encoder.default, string, None, ":", ",", False, False, True)

    def write(value: Any) -> str:
        return "".join(chunks(value, 0))

    return write


dumps = _writer()
"""Return the value as JSON text; raises ``TypeError`` for what JSON does not have."""
