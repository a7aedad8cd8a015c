"""What the form of an order says: texts without the blanks around them, and always why."""

from gateway.errors import bad_request
from gateway.parts import HttpRequest

MOST_REASON = 1024


async def fields_of(request: HttpRequest) -> dict[str, str]:
    """The fields of the request's form that hold anything."""
    form = await request.form()
    return {name: value.strip() for name, value in form.items() if isinstance(value, str) and value.strip()}


def reason_of(fields: dict[str, str]) -> str:
    """Why; written down with who. Raises `ApiError` 400 for none, or a long one."""
    reason = fields.get("reason", "")
    if not 1 <= len(reason) <= MOST_REASON:
        raise bad_request(f"Say why, in 1 to {MOST_REASON} characters.", "reason", "invalid_value")
    return reason


def number_of(fields: dict[str, str], name: str, usual: float | None = None) -> float:
    """A field as a number; without it the usual one. Raises `ApiError` 400."""
    given = fields.get(name, "")
    try:
        return usual if usual is not None and not given else float(given)
    except ValueError:
        raise bad_request(f"Invalid {name}: {given[:64]!r} is no number.", name, "invalid_value") from None
