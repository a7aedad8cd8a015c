"""A caller's own credential for one provider: it goes from the request's header to one server, and nowhere else."""

import re
from collections.abc import Callable
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

    def headers(self, of_key: Callable[[str], list[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that carry it: `authorization` as it is, or a key where the kind of server has its keys.
        `of_key`: the headers of a server with a key, or with none."""
        if " " in self._value:
            return [(b"authorization", self._value.encode())]
        always = of_key("")
        return [header for header in of_key(self._value) if header not in always]

    def scrub(self, text: str) -> str:
        """Return a server's words without it."""
        key = self._value.rpartition(" ")[2]
        return text.replace(key, _SHOWN) if len(key) >= _LEAST_SECRET else text
