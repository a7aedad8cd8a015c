"""What a tier's model can take and give, apart from text."""

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declared abilities of a tier; None: not declared, and the default of its kind of server holds.

    `vision`, `audio` and `files`: parts of messages that it reads. `tools`: function calls. `json_schema`: structured
    output. `logprobs`: log-probabilities of its tokens.
    """

    vision: bool | None = None
    audio: bool | None = None
    files: bool | None = None
    tools: bool | None = None
    json_schema: bool | None = None
    logprobs: bool | None = None
