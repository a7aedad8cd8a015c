"""The most output tokens of an answer: what a server is sent where it needs a limit, and what a budget holds."""


def answer_limit(requested: int | None, published: int | None, context: int, prompt_tokens: int) -> int:
    """Return the limit of an answer to a prompt of so many tokens, at least 1.

    It is the caller's (`requested`), else the model's `published` maximum, else the room left in the `context`; never
    more than that room.
    """
    room = context - prompt_tokens
    wanted = published if requested is None else requested
    return max(1, room if wanted is None else min(wanted, room))
