"""Numbers as text: those that callers write are read whole, into a range that every later use can hold; and money.

JSON bodies declare their ranges in their types; texts (query parameters, headers, form fields) are read here.
"""

import re
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from gateway.base.errors import ApiError, bad_request

MOST_EPOCH = 4_102_444_800.0
"""The year 2100: of times in the future, calendars and both databases hold every one up to it."""
EpochSeconds = Annotated[float, Meta(ge=0, le=MOST_EPOCH)]

# Neither digits of other scripts, nor underscores, nor spaces; and no text on which conversion takes long.
_WHOLE = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,32}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


def usd_text(usd: float) -> str:
    """Return US dollars with six decimals, or as many more as a cost below a micro-dollar has."""
    text = f"{usd:.12f}"
    return text[:-6] + text[-6:].rstrip("0")


def utc_text(at: float) -> str:
    """Return epoch seconds as a date and a time: 2026-01-31 12:00:00 UTC; as a number if no calendar has them."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(at)


def whole_number(text: str, name: str, least: int, most: int) -> int:
    """Return the integer that `text`, the value of the parameter `name`, is. Raises `ApiError` 400 unless it is one
    from `least` to `most`."""
    if _WHOLE.fullmatch(text):
        value = int(text)
        if least <= value <= most:
            return value
    raise _refused(text, name, f"a whole number from {least} to {most}")


def number(text: str, name: str, least: float, most: float, also: str = "") -> float:
    """Return the number that `text`, the value of the parameter `name`, is. Raises `ApiError` 400 unless it is one
    from `least` to `most`. `also`: what else is allowed, for the message."""
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if least <= value <= most:
            return value
    raise _refused(text, name, f"a number from {least:.15g} to {most:.15g}{also}")


def whole_seconds(at: float | None) -> int | None:
    """Return a stored time in whole epoch seconds; None for none, and for one that no clock shows."""
    return int(at) if at is not None and -MOST_EPOCH <= at <= MOST_EPOCH else None


def is_number(text: str) -> bool:
    """Return whether `text` is a number, of whatever size."""
    return _DECIMAL.fullmatch(text) is not None


def epoch_seconds(text: str, name: str) -> float:
    """Return the time that `text` is. Raises `ApiError` 400 unless it is one of 1970 to 2100, in epoch seconds."""
    return number(text, name, 0, MOST_EPOCH)


def _refused(text: str, name: str, allowed: str) -> ApiError:
    return bad_request(f"Invalid {name}: {text[:64]!r} is not {allowed}.", name, "invalid_value")
