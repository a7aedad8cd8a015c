"""What decoding untrusted JSON can raise."""

import msgspec

# msgspec leaves bytes that are no UTF-8, and nesting too deep for the stack, to Python's own errors.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
