"""How JSON is written and `oneOf` is read, unless a schema sets something else under `x-guidance`."""

from typing import Any

# The format of `json.dumps`, which models have seen most on one line. With free white space a small model may write
# nothing else, and hardly any token is forced. `oneOf` is read as `anyOf`: its branches are made exclusive before, and
# finished answers are validated.
JSON_STYLE: Any = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": True,
}
