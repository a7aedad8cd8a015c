"""A caller's own credential for one provider: it goes from the request's header to one server, and nowhere else."""

import re
from typing import NoReturn

HEADER = "x-aio-upstream-authorization"
_FORM = re.compile(r"(?!(?:Bearer|Basic)\Z)(?:(?:Bearer|Basic) )?[\x21-\x7e]{1,8192}", re.IGNORECASE)
_SHOWN = "[credential]"
_LEAST_SECRET = 8
"""Characters: what is shorter is no secret, and may stand in any text."""


class CallerCredential:
    """What the caller sent in `HEADER`: `Bearer TOKEN` or `Basic TOKEN`, which goes on as `authorization`, or a key
    alone, which goes where the kind of server expects its keys.

    It is not shown, copied into a message, pickled or encoded, so that no record, log line or cache can hold it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Raises `ValueError`, without the value, for one of another form."""
        if not _FORM.fullmatch(value):
            raise ValueError("expected a key, or Bearer and a token, of printable ASCII and at most 8,192 characters")
        self._value = value

    def __repr__(self) -> str:
        return _SHOWN

    def __reduce__(self) -> NoReturn:
        raise TypeError("a caller's credential is never stored")

    @property
    def authorization(self) -> bytes | None:
        """The value of the header `authorization`; None for a key alone."""
        return self._value.encode() if " " in self._value else None

    @property
    def key(self) -> str:
        """The key or the token alone."""
        return self._value.rpartition(" ")[2]

    def scrub(self, text: str) -> str:
        """Return a server's words without it."""
        return text.replace(self.key, _SHOWN) if len(self.key) >= _LEAST_SECRET else text
