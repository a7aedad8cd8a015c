"""The exceptions that decoding untrusted JSON can raise."""

import msgspec

# For invalid UTF-8 and for nesting too deep for the stack, msgspec raises Python's own exceptions.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
