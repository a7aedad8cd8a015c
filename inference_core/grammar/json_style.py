"""The white space of constrained JSON, unless its schema sets another under `x-guidance`."""

from typing import Any

# The format of `json.dumps`, which models have seen most on one line. With free white space a small model may write
# nothing else, and hardly any token is forced.
JSON_STYLE: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
