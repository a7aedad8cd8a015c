"""The most tokens of one choice of an answer."""


def answer_limit(requested: int | None, published: int | None, context: int, prompt_tokens: int) -> int:
    """Return the caller's limit, else the model's published maximum, else the room left in the context; at least 1."""
    room = context - prompt_tokens
    limit = requested if requested is not None else published if published is not None else room
    return max(1, limit)
