"""OpenAI's API as a remote wire, and what vLLM, SGLang and TensorRT-LLM's own server do differently."""

from typing import Any

import msgspec

from tiers.errors import TierError
from tiers.openai_format import Chunk, parse_chunk, parse_error, request_body
from tiers.remote_wire import RemoteWire, WireCall
from tiers.sse import ServerSentEvent
from tiers.tally import Tally
from tiers.tier import Delta, GenerationRequest
from tiers.tier_spec import RemoteSpec

_encode = msgspec.json.Encoder().encode


class OpenAIWire(RemoteWire):
    """Any OpenAI-compatible server."""

    health_path = "models"

    def __init__(self, remote: RemoteSpec) -> None:
        self._remote = remote

    def call(self, request: GenerationRequest, max_tokens: int) -> WireCall:
        """See `RemoteWire.call`."""
        streamed = not request.whole or self._remote.stream_whole
        body = self.extended(request_body(self._remote, request, max_tokens, streamed=streamed), request)
        path = "completions" if request.messages is None else "chat/completions"
        return WireCall(path, _encode(body), streamed)

    def extended(self, body: dict[str, Any], request: GenerationRequest) -> dict[str, Any]:
        """The body in this server's own dialect."""
        return body

    def read_event(self, event: ServerSentEvent, tally: Tally) -> list[Delta] | None:
        """See `RemoteWire.read_event`."""
        data = event.data
        if data == b"[DONE]" or data.strip() == b"[DONE]":
            return None
        if event.event == "error":
            raise TierError(parse_error(data).message)
        chunk = _parsed(data)
        if chunk.usage is not None:
            tally.reported = chunk.token_usage()
        return chunk.deltas()

    def read_whole(self, body: bytes, tally: Tally) -> list[Delta]:
        """See `RemoteWire.read_whole`."""
        answer = _parsed(body)
        tally.reported = answer.token_usage()
        return answer.deltas()


def _parsed(data: bytes) -> Chunk:
    chunk = parse_chunk(data)
    if chunk.error is not None:
        raise TierError(chunk.error if isinstance(chunk.error, str) else chunk.error.message)
    return chunk
