"""The answers to compactions: one item with the summary, which later requests give back (`compaction`)."""

from typing import Any

import msgspec

from gateway.inference.api.responses.as_chat import sealed
from gateway.inference.api.responses.body import ResponseBody
from gateway.inference.api.responses.events import ResponseEvents
from gateway.inference.api.responses.schemas import ResponsesRequest
from tiers.tier import Delta

KEPT_BYTES = 80_000
"""Of what the user said, that `/v1/responses/compact` gives back next to the summary: about 20,000 tokens, as Codex
keeps them."""


class CompactedBody(ResponseBody):
    """A Response whose only item is the summary."""

    def output(self) -> list[dict[str, Any]]:
        """See `ResponseBody`."""
        if not self.streamed:
            text = self._answer.choices[0].text
            self.add({"id": f"cmp_{self._id}", "type": "compaction", "encrypted_content": sealed(text)})
        return self.streamed


class CompactedEvents(ResponseEvents):
    """Events of it: the item comes whole, at the end."""

    def piece(self, delta: Delta) -> bytes:
        """See `Chunks`."""
        return b""

    def end(self) -> None:
        """See `ResponseEvents`."""
        (item,) = self._body.output()
        self._last = b"".join(
            self._event(f"response.output_item.{stage}", output_index=0, item=item) for stage in ("added", "done")
        )


def compacted(body: ResponseBody, said: ResponsesRequest) -> dict[str, Any]:
    """The answer of `/v1/responses/compact`: the last of what the user said, and the summary."""
    response = body.finished()
    items = [] if isinstance(said.input, str) else [item for item in said.input if item.role == "user"]
    kept: list[dict[str, Any]] = []
    size = 0
    for item in reversed(items):
        shown = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
        size += len(msgspec.json.encode(shown))
        if size > KEPT_BYTES:
            break
        kept.insert(0, shown)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*kept, *response["output"]],
        "usage": response["usage"],
    }
