"""Redaction: remove what the operator specifies from texts before they are stored."""

import importlib
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from inference_core.io.files import read_text_file
from quality.records.record import Record

log = logging.getLogger(__name__)

Redact = Callable[[str], str]
"""A text as it may be stored. An error drops the text."""

RedactText = Callable[[str], Awaitable[str | None]]
"""A text as it may be stored, redacted off the event loop; None if that fails."""

STRUCK = "[redacted]"
DROPPED = "[dropped: the redaction failed]"


class RedactionError(ValueError):
    """The requested redaction cannot be loaded; the message names it and gives the reason."""


def load_redaction(named: str) -> Redact:
    """Load `module:function`, which takes and returns a text, or a file of regular expressions, one per line, whose
    matches are removed; empty lines and lines starting with # are ignored. Raises `RedactionError`."""
    module, separator, function = named.partition(":")
    if separator and all(part.isidentifier() for part in module.split(".")):
        try:
            redaction = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise RedactionError(f"redaction {named!r}: {error}") from error
        if not callable(redaction):
            raise RedactionError(f"redaction {named!r} is no function")
        return _checked(redaction)
    return patterns_redaction(Path(named))


def patterns_redaction(path: Path) -> Redact:
    """Return a redaction that removes the matches of the regular expressions in `path`. Raises `RedactionError`."""
    try:
        lines = [line.strip() for line in read_text_file(path).splitlines()]
    except OSError as error:
        raise RedactionError(f"redaction file {path}: {error}") from error
    patterns = []
    for line in lines:
        if line and not line.startswith("#"):
            try:
                patterns.append(re.compile(line))
            except re.error as error:
                raise RedactionError(f"redaction file {path}: {line!r}: {error}") from error
    if not patterns:
        raise RedactionError(f"redaction file {path} has no expression")

    def redact(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(STRUCK, text)
        return text

    return redact


def redacted(record: Record, redact: Redact) -> Record:
    """Return `record` with its texts redacted, or without all texts if that fails: the rest of a conversation may
    reveal what one part said."""
    try:
        return msgspec.structs.replace(
            record,
            messages=None
            if record.messages is None
            else [message | {"content": redact(message["content"])} for message in record.messages],
            answer=None if record.answer is None else redact(record.answer),
            reasoning=None if record.reasoning is None else redact(record.reasoning),
            response_format=_every_text(record.response_format, redact),
            error=None if record.error is None else redact(record.error),
            attempts=[
                attempt if attempt.error is None else msgspec.structs.replace(attempt, error=redact(attempt.error))
                for attempt in record.attempts
            ],
        )
    except Exception:
        # The error may contain the text, so only its type is logged.
        log.error("the redaction of request %s failed; its texts are dropped", record.request_id)
        return without_texts(record)


def without_texts(record: Record) -> Record:
    """Return `record` as if its owner had not consented to storing texts."""
    attempts = [msgspec.structs.replace(attempt, error=attempt.error and DROPPED) for attempt in record.attempts]
    return msgspec.structs.replace(
        record,
        messages=None,
        answer=None,
        reasoning=None,
        response_format=None,
        error=record.error and DROPPED,
        attempts=attempts,
    )


async def redacted_text(text: str | None, redact: RedactText | None) -> str | None:
    """Return `text` as it may be stored; None if redaction fails."""
    return text if text is None or redact is None else await redact(text)


def _checked(function: Callable[[str], Any]) -> Redact:
    def redact(text: str) -> str:
        kept = function(text)
        if not isinstance(kept, str):
            raise TypeError(f"the redaction gave {type(kept).__name__}, no text")
        return kept

    return redact


def _every_text(value: Any, redact: Redact) -> Any:
    """Return `value` with every text in it redacted, except field names."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_every_text(part, redact) for part in value]
    if isinstance(value, dict):
        return {name: _every_text(part, redact) for name, part in value.items()}
    return value
