"""Reads submitted forms: texts (an empty one counts as not given), turned into the plain data of a command."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from litestar.response import Response

from gateway.base.errors import ApiError, bad_request
from gateway.base.numbers import number
from gateway.edge.asgi import HttpRequest
from gateway.inference.api.reading.parsing import refusal_of

WAS = "was."
MOST_REASON = 1024
Wanted = TypeVar("Wanted", bound=msgspec.Struct)
Form = Mapping[str, list[str]]


class WrongField(msgspec.Struct, frozen=True, kw_only=True):
    """A form that was refused: its action, the field that is wrong, why, and what it held."""

    form: str
    field: str
    message: str
    given: Form

    def text(self, name: str) -> str:
        """Return what was written into a field."""
        return text_of(self.given, name) or ""


async def filled_in(
    request: HttpRequest,
    work: Callable[[Form], Awaitable[Response[Any]]],
    again: Callable[[WrongField, int], Awaitable[Response[Any]]],
) -> Response[Any]:
    """Return what `work` makes of the submitted form; where a field of it is wrong, the page that has the form, by
    `again` with the status. Raises `ApiError` where it is about no field."""
    form = await form_of(request)
    try:
        return await work(form)
    except ApiError as error:
        field = (error.body.param or "").removeprefix("terms.").partition(".")[0].partition("[")[0]
        if field not in form:
            raise
        wrong = WrongField(form=request.scope["path"], field=field, message=error.body.message, given=form)
        return await again(wrong, error.status)


async def form_of(request: HttpRequest) -> dict[str, list[str]]:
    """Return the form's fields with their texts, stripped and without empty ones."""
    pairs = (await request.form()).multi_items()
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        texts = found.setdefault(name, [])
        if isinstance(value, str) and value.strip():
            texts.append(value.strip())
    return found


def text_of(form: Form, name: str) -> str | None:
    """Return the first text of a field, None for an empty one."""
    return next(iter(form.get(name, ())), None)


async def fields_of(request: HttpRequest) -> dict[str, str]:
    """Return the form's non-empty fields, where each has one text."""
    form = await form_of(request)
    return {name: texts[0] for name, texts in form.items() if texts}


def given_of(form: Form, *names: str) -> dict[str, str]:
    """Return the first texts of those fields that are not empty."""
    return {name: text for name in names if (text := text_of(form, name)) is not None}


def list_of(form: Form, name: str) -> list[str] | None:
    """Return texts separated by commas, or of several boxes of one name; None for none."""
    return [part.strip() for text in form.get(name, ()) for part in text.split(",") if part.strip()] or None


def is_changed(form: Form, name: str) -> bool:
    """Return whether a field differs from what its form showed (`was.NAME`), so that a concurrent change is kept."""
    return list_of(form, name) != list_of(form, f"{WAS}{name}")


def taken(values: Mapping[str, Any], kind: type[Wanted]) -> Wanted:
    """Convert `values` (numbers still as text) to this command. Raises `ApiError` 400 naming the field."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal_of(error) from None


def reason_of(fields: dict[str, str]) -> str:
    """Return the reason that is recorded with the change. Raises `ApiError` 400 for a missing or too long one."""
    reason = fields.get("reason", "")
    if not 1 <= len(reason) <= MOST_REASON:
        raise bad_request(f"Give a reason of 1 to {MOST_REASON} characters.", "reason", "invalid_value")
    return reason


def number_of(fields: dict[str, str], name: str, most: float, usual: float | None = None) -> float:
    """Return a field as a number from 0 to `most`; the default without it. Raises `ApiError` 400."""
    given = fields.get(name, "")
    return usual if usual is not None and not given else number(given, name, 0, most)
