"""Refusals of servers of every kind, by number: genuine and repeated words, envelopes of providers, codes and typed
fields; and a server in this process that gives them."""

import json
from random import Random
from typing import Any, NamedTuple

import httpx

Body = dict[str, Any]
# What would change a limit, a parameter, or the health of a tier for all.
MEANINGS = (
    "max_tokens: 900 > 5, which is the maximum allowed number of output tokens",
    "This model supports at most 2 completion tokens, whereas you provided 900.",
    "max_tokens must be less than or equal to `3`",
    "This model's maximum context length is 10 tokens. However, your messages resulted in 20 tokens.",
    "prompt is too long: 900 tokens > 3 maximum",
    "Your credit balance is too low. Please recharge.",
    "Insufficient balance",
    "余额不足",
    "Rate limit exceeded. Too many requests. Please try again in 3600s.",
    "The engine is currently overloaded",
    "Incorrect API key provided. Invalid api key.",
    "API key not valid. Please pass a valid API key.",
    "The model m does not exist. Model not found.",
    "model m has been decommissioned",
    "Unsupported parameter: 'top_p' is not supported with this model.",
    "`temperature` is deprecated for this model.",
    "Unknown parameter: 'metadata'.",
    "Unrecognized request arguments supplied: seed, user, presence_penalty",
    "response_format is not supported by this model",
    "This model does not support tool_choice",
    "'stop' is not supported with this model",
    "Invalid n value (currently only n = 1 is supported)",
    "`reasoning_effort` must be one of `none` or `default`",
    "Unsupported JSON schema fields: {'type'}",
    "System role not supported",
    "This model is only supported in v1/responses",
    "temperature: range: 0..1",
    "[{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted'}]",
)
_TEMPLATES = (
    "1 validation error for messages.0.content: Value error [type=value_error, input_value={said!r}, input_type=str]",
    "Invalid value: {said}",
    "unknown variant `{said}`, expected `enabled` or `disabled` at line 1 column 120",
    'could not read "{said}" as a text',
    "bad input: {quoted}",
    "{upper}",
    "{head}... is not what was expected",
    "'{head}...{tail}' is not what was expected",
    "input should be safe, got '…{tail}'",
)
_FIELDS = ("temperature", "top_p", "seed", "metadata", "user", "store", "stop", "response_format", "messages", None)
_CODES = ("unsupported_parameter", "unknown_parameter", "invalid_value", "string_above_max_length", "invalid_type",
          "context_length_exceeded", "unsupported_value", "1210", 400, None)  # fmt: skip
_EXTRAS = ("extra_forbidden", "value_error", "less_than_equal")


class Refusal(NamedTuple):
    """`said`: what its caller writes. `status` 200: an event of a stream. `times`: how many requests it refuses."""

    said: str
    status: int
    body: Body
    times: int


def refusal(number: int) -> Refusal:
    """The refusal of a number."""
    draw = Random(number)
    meaning = draw.choice(MEANINGS)
    words = meaning
    if is_echo := draw.random() < 0.6:
        at = 2 * len(meaning) // 3
        words = draw.choice(_TEMPLATES).format(
            said=meaning, quoted=json.dumps(meaning), upper=repr(meaning.upper()), head=meaning[:at], tail=meaning[-at:]
        )  # fmt: skip
    field, code = draw.choice(_FIELDS), draw.choice(_CODES)
    error = {"message": words, "type": "invalid_request_error", "param": field, "code": code}
    listed = {"type": draw.choice(_EXTRAS), "loc": ["body", field or "x"], "msg": words, "input": meaning}
    sent = {"type": "extra_forbidden", "loc": ["body", "seed"], "retry_after": 300}
    envelope = draw.choice([
        {"error": error}, {"type": "error", "error": error}, {"detail": [listed]}, {"detail": words},
        {"object": "error", "message": words, "code": code}, {"error": words}, {"error": {"code": 400, "message": words,
        "status": "INVALID_ARGUMENT"}}, {"error": error | {"input": sent, "metadata": {"raw": words}}},
        {"fault": {"faultstring": words}}, {"message": words}, {"error": error, "body": sent},
    ])  # fmt: skip
    status = draw.choice([400, 400, 400, 413, 422, 200])
    return Refusal(meaning if is_echo else f"number {number}", status, envelope, draw.choice([1, 1, 2, 9]))


class ScriptedServer(httpx.AsyncBaseTransport):
    """Refuses requests in whose messages one of `pending` stands, as long as that one says, and answers all others.
    `bodies`: what it got."""

    def __init__(self) -> None:
        self.pending: Refusal | None = None
        self.refused = 0
        self.bodies: list[Body] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.bodies.append(body)
        pending = self.pending
        if pending is None or self.refused >= pending.times or pending.said not in _texts(body):
            message = {"role": "assistant", "content": "ok"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}] * body.get("n", 1)
            return httpx.Response(200, json={"object": "chat.completion", "choices": choices})
        self.refused += 1
        if pending.status == 200:
            event = f"data: {json.dumps(pending.body)}\n\n".encode()
            return httpx.Response(200, content=event, headers={"content-type": "text/event-stream"})
        return httpx.Response(pending.status, json=pending.body)


def _texts(body: Body) -> list[Any]:
    return [message["content"] for message in body["messages"]] + [*body.get("metadata", {}).values()]
