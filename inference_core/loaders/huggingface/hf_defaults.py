"""What transformers makes of a config.json: the defaults of its classes, and the keys that change their logits.

The table was made from those classes, so that serving imports none of them; a test makes it again and compares.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

TABLE = Path(__file__).with_name("transformers_configs.json")


class Keys(msgspec.Struct, frozen=True):
    """The keys of one architecture. `defaults`: by key; None where the class derives the value. `effective`: changing
    them changes logits, or what the class accepts. `without_effect`: changing them changes nothing."""

    defaults: dict[str, Any]
    effective: frozenset[str]
    without_effect: frozenset[str]


class _Table(msgspec.Struct):
    ignored: frozenset[str]
    architectures: dict[str, Keys]


def keys_of(architecture: str) -> Keys:
    """Return the keys of a supported architecture."""
    return _table().architectures[architecture]


def ignored_keys() -> frozenset[str]:
    """Return keys that all classes have and that change no logits: of generation, of the file itself, of training."""
    return _table().ignored


@cache
def _table() -> _Table:
    return msgspec.json.decode(TABLE.read_bytes(), type=_Table)
