"""What a catalogue says of prompts before a tier may see them: which ones are private, and which guardrails judge
them and their answers."""

from typing import Annotated, Any, Literal, get_args

import msgspec

RuleName = Literal["email", "phone", "card", "iban", "api-key", "private-key", "national-id"]
RULES: tuple[RuleName, ...] = get_args(RuleName)
Stage = Literal["request", "answer"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class PrivateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts that only local tiers may see. `rules`: what is looked for in their texts. `patterns`: further regular
    expressions, by a name that reasons show. `unreadable`: whether a prompt with something that no rule can read
    (images, audio, files, token ids) is private. `store`: whether texts of private requests may be stored, sampled and
    learned from."""

    rules: list[RuleName] = msgspec.field(default_factory=lambda: list(RULES))
    patterns: dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], str] = {}
    unreadable: bool = True
    store: bool = True


class GuardrailSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A judge of texts: a class in process (`python`, as `module:Class`, made with `options`), or a server (`url`).

    `on`: the stages that it is asked at. `fail`: what becomes of a text that it does not judge within
    `timeout_seconds`, or at all: `closed` refuses the request, `open` lets the text pass. `local`: whether what the
    server is sent stays in the operator's network. `api_key_env`: the variable that holds the server's bearer token.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    python: str | None = None
    url: str | None = None
    on: Annotated[list[Stage], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: list(STAGES))
    fail: Literal["closed", "open"] = "closed"
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0
    local: bool | None = None
    api_key_env: str | None = None
    options: dict[str, Any] = {}

    @property
    def is_local(self) -> bool:
        """Whether what it is sent stays in the operator's network: as declared, else where it runs in process."""
        return self.url is None if self.local is None else self.local
