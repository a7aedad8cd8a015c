"""A Response as OpenAI shapes it: what was asked for, and the items of the answer so far."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.base.errors import ErrorBody
from gateway.base.inference_request import InferenceRequest
from gateway.inference.answer import Answer
from gateway.inference.api.answers import routed
from gateway.inference.api.responses.as_chat import SEALED_REASONING, sealed, wants_logprobs
from gateway.inference.api.responses.exchange import Exchange
from gateway.inference.api.responses.native_items import ItemIds, carried, without_seals
from gateway.inference.api.responses.schemas import ResponsesRequest
from gateway.inference.api.responses.tools import CalledTool, called_tools, shown_choice, shown_tool
from tiers.catalog.tier_spec import SamplingDefaults
from tiers.conversation import Call, UrlCitation
from tiers.deltas import is_object
from tiers.dialects.chat_state import image_items
from tiers.dialects.chat_writer import chat_logprobs
from tiers.dialects.constraints import input_of
from tiers.tier import TextLogprob, Usage

_SHOWN_AS_GIVEN = ("previous_response_id", "instructions", "max_output_tokens", "max_tool_calls", "user",
                   "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                   "prompt_cache_options")  # fmt: skip
# Why an answer is not complete, by how it ended.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseBody:
    """The Response of an answer, whole (`finished`) or at a stage of its stream (`shown`), and its items.

    `logprobs`: whether its text comes with log-probabilities. `summarises`: whether thoughts are given as a summary,
    which many clients show, because one was asked for; nothing of them is left out. `streamed`: the items of a stream
    that are done.
    """

    def __init__(self, exchange: Exchange, answer: Answer, sampling: SamplingDefaults) -> None:
        """`sampling`: of the tier that answers, for what the caller left open."""
        body = exchange.body
        self._exchange, self._answer = exchange, answer
        self._own = _own(exchange, answer.request, answer.tier.model, sampling)
        self.streamed: list[dict[str, Any]] = []
        self.ids = ItemIds(answer.request.request_id)
        self._sealed: list[dict[str, Any]] = []  # items of a server with this API, with all that they hold
        self._earlier: Counter[str] = Counter()  # streamed items by the prefix of their ids
        self._finished: dict[str, Any] | None = None
        self._tools = called_tools(body.tools or ())
        self._seals = SEALED_REASONING in (body.include or ())
        self.logprobs = wants_logprobs(body)
        self.summarises = _asked_summary(body) is not None

    def finished(self) -> dict[str, Any]:
        """The Response of a finished answer, the same every time but for whether it is stored."""
        if self._finished is None:
            self._finished = self.shown(self.status, self.output())
        self._finished["store"] = self._exchange.stored
        return self._finished

    def stored(self) -> dict[str, Any]:
        """The Response of a finished answer as it is stored: with sealed reasoning, which the server is to get back."""
        finished = self.finished()
        return finished | {"output": self._sealed} if self._sealed else finished

    @property
    def is_servers_own(self) -> bool:
        """Whether its items are a server's own."""
        return bool(self._sealed)

    def add_own(self, item: dict[str, Any]) -> dict[str, Any]:
        """Add an item of a server with this API that is done; return it as the caller sees it."""
        item = self.ids.renamed(item)
        self._sealed.append(item)
        shown = item if self._seals else without_seals([item])[0]
        self.add(shown)
        return shown

    def shown(self, status: str, output: list[dict[str, Any]], error: ErrorBody | None = None) -> dict[str, Any]:
        """The Response with these items. After the answer's end, failed or not, with its usage and its origin."""
        record = self._answer.record
        completed, over = status in ("completed", "incomplete"), status != "in_progress"
        shown = self._own | {
            "status": status,
            "output": output,
            "store": self._exchange.stored and status != "failed",
            "completed_at": int(record.created_at + record.timings.e2e_ms / 1e3) if completed and record else None,
            "incomplete_details": {"reason": self._why_incomplete} if status == "incomplete" else None,
            "error": None if error is None else _shown_error(error),
            "usage": _usage(self._answer.billed or Usage()) if over and record else None,
        }
        return shown | {"x_aio": routed(self._answer)} if over and record else shown

    @property
    def status(self) -> str:
        """What became of a finished answer."""
        return "completed" if self._why_incomplete is None else "incomplete"

    @property
    def _why_incomplete(self) -> str | None:
        return _INCOMPLETE.get(self._answer.choices[0].finish_reason or "")

    def output(self) -> list[dict[str, Any]]:
        """The items of a finished answer: as they were streamed, else thoughts, text, calls."""
        if self.streamed:
            return self.streamed
        choice, items = self._answer.choices[0], []
        if own := choice.opaque.get("responses"):
            for block in own:
                self.add_own(msgspec.json.decode(block.json))
            return self.streamed
        if choice.reasoning:
            items.append(self.reasoning_item(choice.reasoning))
        calls = [(place, call) for place, call in enumerate(choice.tool_calls) if call.id or call.name]
        images = image_items(choice, self._id)
        if choice.content or not (calls or choice.refused or images):
            drawn = logprobs_of(choice.logprobs) if self.logprobs else []
            items.append(self.message_item(text_part(choice.content, drawn, choice.annotations), self.status))
        if choice.refused:
            items.append(self.message_item(refusal_part(choice.refusal), self.status))
        items += [self.call_item(place, call, self.status) for place, call in calls] + images
        state = self.state_item()
        return items if state is None else [*items, state]

    def add(self, item: dict[str, Any]) -> None:
        """Add an item of the stream that is done."""
        self.streamed.append(item)
        self._earlier[str(item.get("id")).partition("_")[0]] += 1

    def reasoning_item(self, text: str) -> dict[str, Any]:
        """What was thought before the answer, or between its items."""
        return self._reasoning(text, sealed(text) if text and self._seals else "")

    def state_item(self) -> dict[str, Any] | None:
        """After all others of a finished answer, what its server needs back, for a client that asked for it."""
        state = carried(self._answer) if self._seals and not self.is_servers_own else None
        if state is None:
            return None
        # Of a whole answer the first reasoning is not counted yet.
        return self._reasoning("", state) | {"id": f"rs_{self._id}-{self._earlier['rs'] + 1}"}

    def _reasoning(self, text: str, seal: str) -> dict[str, Any]:
        parts = [self.reasoning_part(text)] if text else []
        given = {"summary": parts} if self.summarises else {"summary": [], "content": parts}
        item = {"id": self._item_id("rs"), "type": "reasoning", **given}
        return item | {"encrypted_content": seal} if seal else item

    def reasoning_part(self, text: str) -> dict[str, Any]:
        """The only part of a reasoning item."""
        return {"type": "summary_text" if self.summarises else "reasoning_text", "text": text}

    def message_item(self, part: dict[str, Any], status: str) -> dict[str, Any]:
        """A message with this part, which is left out while it is in progress."""
        content = [] if status == "in_progress" else [part]
        item_id = self._item_id("msg")
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def call_item(self, place: int, call: Call, status: str) -> dict[str, Any]:
        """A call of a function, or of a custom tool."""
        tool = self._tools.get(call.name, CalledTool(call.name, None, is_custom=False))
        if tool.is_search:
            searched = {"status": status, "call_id": call.id, "execution": "client"}
            said = msgspec.json.decode(call.arguments) if is_object(call.arguments) else {}
            return {"id": f"tsc_{self._id}_{place}", "type": "tool_search_call", **searched, "arguments": said}
        custom = tool.is_custom
        given = {"input": input_of(call.arguments)} if custom else {"arguments": call.arguments}
        return {
            "id": f"{'ctc' if custom else 'fc'}_{self._id}_{place}",
            "type": "custom_tool_call" if custom else "function_call",
            "status": status,
            "call_id": call.id,
            "name": tool.name,
            **({} if tool.namespace is None else {"namespace": tool.namespace}),
            **given,
        }

    def _item_id(self, prefix: str) -> str:
        """The id of the next item of this kind: a stream may have several."""
        earlier = self._earlier[prefix]
        return f"{prefix}_{self._id}-{earlier}" if earlier else f"{prefix}_{self._id}"

    @property
    def _id(self) -> str:
        return self._answer.request.request_id


def text_part(text: str, logprobs: list[Any], cited: Sequence[UrlCitation] = ()) -> dict[str, Any]:
    """The only part of a message: its text, with its log-probabilities and what it cites."""
    return {"type": "output_text", "text": text, "annotations": list(map(annotation, cited)), "logprobs": logprobs}


def refusal_part(text: str) -> dict[str, Any]:
    """The only part of a message that is no answer."""
    return {"type": "refusal", "refusal": text}


def annotation(cited: UrlCitation) -> dict[str, Any]:
    """What a text cites, as this API shows it."""
    return {"type": "url_citation", **msgspec.structs.asdict(cited)}


def logprobs_of(drawn: list[TextLogprob]) -> list[Any]:
    """Drawn tokens as this API shows them."""
    shown: list[Any] = msgspec.to_builtins(chat_logprobs(drawn).content)
    return shown


def failed_response(exchange: Exchange, error: ErrorBody) -> dict[str, Any]:
    """The Response of a request that failed before a tier answered."""
    own = _own(exchange, exchange.request, exchange.request.requested_model, SamplingDefaults())
    nothing = dict.fromkeys(("completed_at", "incomplete_details", "usage"))
    return own | nothing | {"status": "failed", "output": [], "store": False, "error": _shown_error(error)}


def _shown_error(error: ErrorBody) -> dict[str, Any]:
    return {"code": error.code or error.type, "message": error.message}


def _own(exchange: Exchange, request: InferenceRequest, model: str, sampling: SamplingDefaults) -> dict[str, Any]:
    body = exchange.body
    form = {"type": "text"} if body.text is None or body.text.format is None else _given(body.text.format)
    reasoning = body.reasoning
    return {name: getattr(body, name) for name in _SHOWN_AS_GIVEN} | {
        "id": request.request_id,
        "object": "response",
        "created_at": int(request.created_at),
        "model": model,
        "tools": _shown_tools(exchange),
        "tool_choice": shown_choice(body.tool_choice),
        "truncation": body.truncation or "disabled",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": form, "verbosity": (body.text and body.text.verbosity) or "medium"},
        "temperature": sampling.temperature if body.temperature is None else body.temperature,
        "top_p": sampling.top_p if body.top_p is None else body.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": _asked_summary(body)},
        "background": False,
        "service_tier": request.service_tier or "default",
        "metadata": body.metadata or {},
    }


def _shown_tools(exchange: Exchange) -> list[Any]:
    if exchange.given is not None and "tools" in exchange.given.native.fields:
        return msgspec.json.decode(exchange.given.native.fields["tools"], type=list[Any])
    return [shown_tool(tool) for tool in exchange.body.tools or ()]


def _asked_summary(body: ResponsesRequest) -> str | None:
    return None if body.reasoning is None else body.reasoning.summary or body.reasoning.generate_summary


def _given(form: Any) -> dict[str, Any]:
    return {name: value for name in form.__struct_fields__ if (value := getattr(form, name)) is not None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
