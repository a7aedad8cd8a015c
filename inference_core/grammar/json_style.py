"""How constrained JSON is laid out, unless its schema says otherwise under `x-guidance`."""

from typing import Any

# As `json.dumps` writes it, which is what models have read most of in one line. White space at will would let a small
# model write nothing else, and leaves hardly a token forced.
JSON_STYLE: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
