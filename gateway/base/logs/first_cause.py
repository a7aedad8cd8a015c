"""What an error is called in the log: its kind, and what led to it."""


def with_first_cause(error: BaseException) -> str:
    """Return the error's kind and that of the error which it comes from; of the disk, the network and the database also
    its words, which hold no text of a user."""
    first, name = error, type(error).__name__
    while first.__cause__ is not None:
        first = first.__cause__
    if first is error:
        return name
    is_plain = isinstance(first, OSError) or type(first).__name__ == "OperationalError"
    return f"{name} from {type(first).__name__}{f' ({first})' if is_plain and str(first) else ''}"
