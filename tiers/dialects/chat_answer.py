"""Answers of OpenAI's chat and completion API, chunk by chunk or whole, as deltas.

Servers of this API differ in many small things. Each is read as what it plainly means (`lenient_json`); only what
cannot be understood is an error.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import astuple

from inference_core.io.files import JSON_ERRORS
from tiers.conversation import ToolCallDelta, UrlCitation
from tiers.dialects.chat_chunk import Choice, Chunk, Message, Part, ToolCall, logprobs_of, text_of
from tiers.dialects.chat_opaque import AUDIO, DETAILS, EXTRA, media_piece, opaque_json, opaque_pieces
from tiers.dialects.dialect import finish_of
from tiers.dialects.event_stream import MAX_EVENT_BYTES
from tiers.dialects.lenient_json import Calls, LenientDecoder, fitted, plain_json
from tiers.dialects.server_error import ServerSaidError, is_failure, is_filtered, parse_error
from tiers.dialects.usage_counter import MOST_NAME, Tally
from tiers.tier import Delta

_PART_FIELDS = frozenset(Part.__struct_fields__) - {"id", "name", "input", "summary", "content"}
_decode = LenientDecoder(Chunk, "a chunk of an answer")
_strict = _decode.strict
_NO_MESSAGE = Message()
_CALLS = "calls"
_DETAILED = "thoughts in details"
_NO_REASONS = re.compile("null|none|(?:not_|un)finished|in_?progress|running|generating|continue", re.IGNORECASE)
_CITED, _INDEX = "cited", "index"
_BARE = ("response", "generated_text", "output_text")
_WRAPPERS = ("data", "result", "response", "output", "body")


def read_chunk(data: bytes, tally: Tally) -> list[Delta]:
    """Return the deltas of one event's data, or of a whole answer, in the order that `Delta` promises, and note its
    counts. Raises TierError for one that reports a failure, or cannot be understood."""
    try:
        chunk = _strict(data)
    except JSON_ERRORS as error:
        chunk = _decode.lenient(data, tally, error)
    if chunk.error:
        return _failed(data)
    if chunk.usage is not None:
        chunk.usage.report(tally)
        if chunk.service_tier is not None:
            tally.note_extras({f"service_tier={chunk.service_tier[:MOST_NAME]}": 1})
    elif (chunk.timings or chunk.x_groq) is not None and (counts := chunk.further_counts) is not None:
        counts.report(tally)
    choices = chunk.choices
    if not choices:
        if cited := chunk.cited:
            return _cited(cited, tally, is_over=tally.is_over(0))
        if choices is None:
            return _without_choices(data, tally)
        return _filtered() if chunk.input_sensitive or chunk.output_sensitive else []
    if (len(choices) > 1 or choices[0].index) and tally.n == 1:
        choices = _asked_for(choices, tally)
    deltas = (
        _deltas(choices[0], tally) if len(choices) == 1 else [d for choice in choices for d in _deltas(choice, tally)]
    )
    if (cited := chunk.cited) or _CITED in tally.notes:
        deltas += _cited(cited, tally, is_over=bool(choices[0].finish_reason) or tally.is_over(0))
    if chunk.output_sensitive:
        for delta in deltas:
            delta.finish_reason = delta.finish_reason and "content_filter"
    return deltas


def _asked_for(choices: list[Choice], tally: Tally) -> list[Choice]:
    """Return the choices of an answer that should have one: it is the first, whatever its index. Some servers have its
    calls in a second one."""
    first, *others = choices
    if first.index == tally.notes.setdefault(_INDEX, first.index):
        first.index = 0
    for other in others:
        if first.message is not None and not first.message.calls and other.message is not None:
            first.message.tool_calls, other.message.tool_calls = other.message.tool_calls, None
    return choices


def _cited(cited: list[Any], tally: Tally, *, is_over: bool) -> list[Delta]:
    """Return what an answer cites outside its choices, once it `is_over`: some servers repeat it in every event."""
    citations: dict[str, UrlCitation | None] = tally.notes.setdefault(_CITED, {})
    for source in cited:
        citation = UrlCitation(source, "", 0, 0) if isinstance(source, str) else source.citation
        if citation.url:
            citations.setdefault(citation.url, citation)
    new = [citation for citation in citations.values() if citation is not None]
    if not (new and is_over):
        return []
    citations.update(dict.fromkeys(citations))
    return [Delta(annotations=new)]


def _without_choices(data: bytes, tally: Tally) -> list[Delta]:
    """Return the deltas of an event that some servers wrap. Raises TierError for one that reports a failure without the
    field `error`: as old versions of vLLM, FastAPI and proxies do it."""
    said = plain_json(data, tally)
    if not isinstance(said, dict):
        return []
    tables = [said, *(said[name] for name in _WRAPPERS if isinstance(said.get(name), dict))]
    listed = (table for table in tables if isinstance(table.get("choices"), list | dict))
    if (answer := next(listed, None) or next(filter(None, map(_as_chat, tables)), None)) is not None:
        return read_chunk(json.dumps(answer).encode(), tally)
    if said.get("input_sensitive") or said.get("output_sensitive"):
        return _filtered()
    if isinstance(told := said.get("base_resp"), dict) and not told.get("status_code"):
        return []
    return _failed(data) if is_failure(said) else []


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that has one choice and no list of them in OpenAI's form: Ollama's own, Cloudflare's, or a
    text; {} for any other."""
    message = next((inner for name in ("delta", "message") if isinstance(inner := body.get(name), dict)), None)
    if message is None or not ({"role", "content"} & message.keys()):
        names = (*_BARE, "text") if "finish_reason" in body else _BARE
        message = {"content": next((body[name] for name in names if body.get(name)), None)}
        if message["content"] is None:
            return {}
    reason = body.get("done_reason") or body.get("finish_reason") or ("stop" if body.get("done") else None)
    counts = {"prompt_tokens": body.get("prompt_eval_count"), "completion_tokens": body.get("eval_count")}
    return {"choices": [{"delta": message, "finish_reason": reason}], "usage": body.get("usage") or counts}


def _failed(data: bytes) -> list[Delta]:
    """Return the end of an answer that a filter has stopped. Raises TierError for any other failure."""
    error = parse_error(data)
    if not is_filtered(error):
        raise ServerSaidError(error)
    return _filtered()


def _filtered() -> list[Delta]:
    return [Delta(finish_reason="content_filter")]


def _deltas(choice: Choice, tally: Tally) -> list[Delta]:
    message = choice.delta or choice.message or _NO_MESSAGE
    choice.finish_reason = choice.finish_reason or choice.named_otherwise
    text: Any = message.content or message.text or choice.text or choice.content or ""
    if (choice.finish_reason or choice.message is not None) and tally.said:
        text = _unsaid(choice, message, text, tally)
    if choice.usage is not None:
        choice.usage.report(tally)
    if choice.error:
        return _failed(json.dumps({"error": choice.error}).encode())
    message.content = message.text = None
    is_plain = choice.logprobs is None and (message == _NO_MESSAGE or not any(astuple(message)))
    if is_plain and text.__class__ is str:
        # Only a piece of text, as nearly every chunk is.
        deltas = [Delta(index=choice.index, text=text)] if text else []
    else:
        deltas = list(_said(choice, message, text, tally))
    if choice.finish_reason and _NO_REASONS.fullmatch(choice.finish_reason) is None:
        if (calls := tally.notes.get((_CALLS, choice.index))) is not None and (waiting := calls.rest()):
            deltas.append(Delta(index=choice.index, tool_calls=waiting))
        reason = finish_of(choice.finish_reason)
        if choice.native_finish_reason and finish_of(choice.native_finish_reason) == "error":
            reason = "error"
        deltas.append(Delta(index=choice.index, finish_reason=reason, stop_sequence=choice.stop_sequence))
    return deltas


def _unsaid(choice: Choice, message: Message, text: Any, tally: Tally) -> Any:
    """Return what of a last event's text has not been said: some servers send the answer once more at the end of a
    stream, as a whole message or as one more piece."""
    before = "".join(tally.texts.get(choice.index, ()))
    if message is choice.delta:
        return "" if text and text == before and _is_repeated(text, tally.texts[choice.index]) else text
    if not (choice.finish_reason or tally.is_over(choice.index)):
        # Once more without any reason, as servers that look up documents do it.
        return "" if text == before and len(tally.texts.get(choice.index, ())) > 1 else text
    if tally.has_thought:
        message.drop_thoughts()
    return text.removeprefix(before) if isinstance(text, str) else text


def _is_repeated(text: str, pieces: list[str]) -> bool:
    """Whether a last piece that is all of the text before it, which came in `pieces`, is that once more. Words that an
    answer says twice have something between them, and a text in small pieces goes on in small ones."""
    is_refrain = text[-1].isspace() or text in (text + text)[1:-1]
    return not is_refrain and (len(pieces) > 7 or (len(pieces) > 1 and len(text.split(None, 1)) > 1))


def _parts(content: Any) -> str | list[Part | str]:
    """Return a text, or the parts of one: JSON where an answer to a schema is no text."""
    if isinstance(content, str):
        return content
    items = content if isinstance(content, list) else [content]
    if all(isinstance(item, dict) and _PART_FIELDS.isdisjoint(item) for item in items) or isinstance(content, bool):
        return msgspec.json.encode(content).decode()
    parts: list[Part | str] = fitted(items, list[Part | str])
    return parts


def _said(choice: Choice, message: Message, content: Any, tally: Tally) -> Iterator[Delta]:
    """The deltas of a chunk with more than a text: thoughts, text, refusal and calls, or a list's parts in their order;
    log-probabilities belong to the first of them, and so does what is cited."""
    index = choice.index
    first = Delta(index=index, reasoning=message.thought_text)
    if message.reasoning_details and not first.reasoning:
        # MiniMax has them there alone; OpenRouter repeats there what it says elsewhere.
        if tally.notes.setdefault(_DETAILED, not tally.has_thought):
            first.reasoning = _detailed(message.reasoning_details)
    elif first.reasoning:
        tally.notes[_DETAILED] = False
    said, parts = _parts(content), list[Delta]()
    if isinstance(said, str):
        first.text = said
    else:
        parts = [delta for part in said for delta in _of_part(part, index)]
        made = [part for part in said if isinstance(part, Part) and part.type == "tool_use" and part.name]
        own = [ToolCall(id=part.id, name=part.name, input=part.input) for part in made]
        message.tool_calls = [*(message.tool_calls or ()), *own]
    first.logprobs = logprobs_of(choice.logprobs) if choice.logprobs is not None else None
    first.annotations = [cited.citation for cited in message.annotations or () if cited.citation.url] or None
    first.tool_calls = [] if parts or message.refusal else _calls(choice, message, tally)
    if first.text or first.reasoning or first.logprobs or first.tool_calls or first.annotations:
        yield first
    yield from parts
    if message.refusal:
        yield Delta(index=index, text=message.refusal, refusal=True)
    if (parts or message.refusal) and (calls := _calls(choice, message, tally)):
        yield Delta(index=index, tool_calls=calls)
    if message.has_opaque:
        for piece in opaque_pieces({DETAILS: message.reasoning_details, EXTRA: message.extra_content}):
            yield Delta(index=index, opaque=piece)
    if (images := opaque_json(message.images, MAX_EVENT_BYTES))[:1] == b"[":
        yield Delta(index=index, opaque=media_piece(images))
    if (audio := opaque_json(message.audio, MAX_EVENT_BYTES))[:1] == b"{":
        yield Delta(index=index, opaque=media_piece(audio, AUDIO))


def _detailed(details: msgspec.Raw) -> str:
    """What `reasoning_details` say of the thoughts."""
    entries = plain_json(bytes(details))
    named = [detail.get("text") or detail.get("summary") for detail in entries or () if isinstance(detail, dict)]
    return "".join([text for text in named if isinstance(text, str)])


def _of_part(part: Part | str, index: int) -> Iterator[Delta]:
    if isinstance(part, str):
        yield Delta(index=index, text=part)
        return
    if part.thinking or part.reasoning or part.type in ("thinking", "reasoning"):
        yield Delta(index=index, reasoning=text_of(part.inner or part.said))
    elif part.refusal:
        yield Delta(index=index, text=part.refusal, refusal=True)
    elif part.image_url:
        image = msgspec.json.encode([{"type": "image_url", "image_url": part.image_url}])
        yield Delta(index=index, opaque=media_piece(image))
    elif said := part.said:
        yield Delta(index=index, text=said)


def _calls(choice: Choice, message: Message, tally: Tally) -> list[ToolCallDelta]:
    """The pieces of calls. In a whole message calls are numbered by their position alone."""
    calls = message.calls
    if not calls:
        return []
    collected: Calls = tally.notes.setdefault((_CALLS, choice.index), Calls(tally.tool_names))
    is_whole = choice.message is not None and not collected.are_known
    pieces: list[ToolCallDelta] = []
    for call in calls:
        if (piece := call.piece()).says_something:
            named = piece.id or piece.name
            if (read := collected.begin(piece) if is_whole and named else collected.read(piece)) is not None:
                pieces.append(call.with_opaque(read))
    return pieces
