"""Characters that a server cut in two: it escaped each half of a surrogate pair on its own, often in two events."""

import msgspec

from tiers.tier import Delta, TextLogprob

_HIGH = ("\ud800", "\udbff")
REPLACEMENT = "\ufffd"


class SplitCharacters:
    """Joins the halves in the deltas of one answer. What has no other half becomes U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], str] = {}

    def joined(self, deltas: list[Delta]) -> list[Delta]:
        """Return `deltas` without halves; the first half at the end of a text waits for its second."""
        for delta in deltas:
            if delta.text:
                delta.text = self._join((delta.index, "text"), delta.text)
            if delta.reasoning:
                delta.reasoning = self._join((delta.index, "reasoning"), delta.reasoning)
            if delta.tool_calls:
                delta.tool_calls = [
                    msgspec.structs.replace(
                        call,
                        id=whole(call.id),
                        name=whole(call.name),
                        arguments=self._join((delta.index, f"call {call.index}"), call.arguments),
                    )
                    for call in delta.tool_calls
                ]
            if delta.logprobs:
                delta.logprobs = [_scored(one) for one in delta.logprobs]
        return deltas

    def rest(self) -> list[Delta]:
        """Return what still waits in texts, at the end of the answer."""
        if not self._held:
            return []
        waiting = [index for (index, where), half in self._held.items() if half and where == "text"]
        self._held.clear()
        return [Delta(index=index, text=REPLACEMENT) for index in waiting]

    def _join(self, where: tuple[int, str], text: str) -> str:
        text = self._held.pop(where, "") + text
        if text and _HIGH[0] <= text[-1] <= _HIGH[1]:
            self._held[where], text = text[-1], text[:-1]
        return whole(text)


def whole(text: str) -> str:
    """Return `text` with its pairs joined, and U+FFFD for each half alone."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _scored(one: TextLogprob) -> TextLogprob:
    top = [(whole(token), data, logprob) for token, data, logprob in one.top]
    return msgspec.structs.replace(one, token=whole(one.token), top=top)
