"""Who a measurement asks: a gateway of ours, a peer, or the server behind them."""

import msgspec

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


class TargetError(RuntimeError):
    """A target does not answer; the message says what came instead."""


class Target(msgspec.Struct, frozen=True):
    """Who is asked: `url` without a path, the model, and a key where one is wanted. `cache`: what is wished of the
    response cache; `repeats`: whether prompts come again. `path`: of the API that is asked. `history`: words of
    earlier turns. `headers`: more of them."""

    name: str
    url: str
    model: str
    key: str = ""
    cache: str = "off"
    repeats: bool = False
    path: str = CHAT
    history: int = 0
    headers: dict[str, str] = {}
