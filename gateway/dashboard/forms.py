"""What comes back in a form: texts, of which empty ones were not given, as the plain data that orders are made of."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.api.parsing import refusal_of
from gateway.parts import HttpRequest

WAS = "was."
Wanted = TypeVar("Wanted", bound=msgspec.Struct)
Form = Mapping[str, list[str]]


async def form_of(request: HttpRequest) -> dict[str, list[str]]:
    """The fields of the request's form with their texts, without white space around them and without empty ones."""
    pairs = (await request.form()).multi_items()
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        texts = found.setdefault(name, [])
        if isinstance(value, str) and value.strip():
            texts.append(value.strip())
    return found


def text_of(form: Form, name: str) -> str | None:
    """The first text of a field, None for an empty one."""
    return next(iter(form.get(name, ())), None)


def list_of(form: Form, name: str) -> list[str] | None:
    """Texts with commas between them, or of several boxes of one name; None for none."""
    return [part.strip() for text in form.get(name, ()) for part in text.split(",") if part.strip()] or None


def is_changed(form: Form, name: str) -> bool:
    """Whether a field is not as its form showed it (`was.NAME`): so what somebody else changed meanwhile stays."""
    return list_of(form, name) != list_of(form, f"{WAS}{name}")


def taken(values: Mapping[str, Any], kind: type[Wanted]) -> Wanted:
    """`values` as an order of this kind, numbers being texts still. Raises `ApiError` 400 naming the field."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise refusal_of(error) from None
