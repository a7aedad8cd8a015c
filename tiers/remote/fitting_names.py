"""Names of tools and ids of calls in the characters and the length that a server takes: the same for the same one."""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from tiers.remote.rules import Names, Rules

_DIGEST_CHARS = 8
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def fitting_name(name: str, names: Names) -> str:
    """Return `name` in the characters and the length that a server takes: the same for the same name, and another for
    another one."""
    characters, most = names
    clean = re.sub(rf"[^{characters}]", "_", name)
    clean = clean if clean[:1].isalpha() else f"_{clean}"
    return f"{clean[: most - _DIGEST_CHARS - 1]}_{_digest(name, _DIGEST_CHARS)}"


def fitting_id(call_id: str, rules: Rules, occurrence: int) -> str:
    """Return an id of a call in the form that a server takes. `occurrence`: how many calls before had the same id."""
    said = f"{call_id}\0{occurrence}" if occurrence else call_id
    if rules.call_id_length:
        return _digest(said, rules.call_id_length)
    return f"call_{_digest(said, 24)}"


def _digest(text: str, length: int) -> str:
    """Letters and digits alone."""
    number = int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=32).digest(), "big")
    found = ""
    while len(found) < length:
        number, digit = divmod(number, len(_ALPHABET))
        found += _ALPHABET[digit]
    return found


@cache
def fits(names: Names, length: int = 0) -> Callable[[str], Any]:
    """Return what tells of a text whether it is in these characters, and of this `length`, or of any up to the most."""
    characters, most = names
    return re.compile(rf"[{characters}]{{{length or 1},{length or most}}}").fullmatch
