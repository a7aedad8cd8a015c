"""A Response as OpenAI shapes it: what was asked for, and the items of the answer so far."""

from typing import Any

from gateway.answering.answer import Answer
from gateway.api.inference.answers import routed
from gateway.api.inference.responses_schemas import ResponsesRequest, ResponseTool
from gateway.errors import ErrorBody
from tiers.catalog.tier_spec import SamplingDefaults
from tiers.collected_choice import CollectedChoice
from tiers.tier import Usage


class ResponseBody:
    """The parts of a Response that do not change while it is answered; `shown` adds those that do."""

    def __init__(self, body: ResponsesRequest, answer: Answer, sampling: SamplingDefaults) -> None:
        """`sampling`: of the tier that answers, for what the caller left open."""
        self._answer = answer
        self._own = _own(body, answer, sampling)

    def shown(self, status: str, output: list[dict[str, Any]], error: ErrorBody | None = None) -> dict[str, Any]:
        """The Response with these items. After the answer's end, with its usage and how it came about."""
        record = self._answer.record
        ended = status in ("completed", "incomplete") and record is not None
        shown = self._own | {
            "status": status,
            "output": output,
            "completed_at": int(record.created_at + record.timings.e2e_ms / 1e3) if ended and record else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": None if error is None else {"code": error.code or error.type, "message": error.message},
            "usage": _usage(self._answer.usage) if ended else None,
        }
        return shown | {"x_aio": routed(self._answer)} if ended else shown


def status_of(answer: Answer) -> str:
    """What became of a finished answer."""
    return "incomplete" if answer.choices[0].finish_reason == "length" else "completed"


def output_of(answer: Answer) -> list[dict[str, Any]]:
    """The items of a finished answer: thoughts, text, calls."""
    choice, status = answer.choices[0], status_of(answer)
    items = []
    if choice.reasoning:
        items.append(reasoning_item(answer, choice.reasoning))
    if choice.text or not choice.tool_calls:
        items.append(message_item(answer, choice.text, status))
    return items + [
        call_item(answer, place, call.id, call.name, call.arguments, status)
        for place, call in enumerate(choice.tool_calls)
    ]


def reasoning_item(answer: Answer, text: str) -> dict[str, Any]:
    """What was thought before the answer."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{answer.request.request_id}", "type": "reasoning", "summary": [], "content": content}


def message_item(answer: Answer, text: str, status: str) -> dict[str, Any]:
    """The text."""
    content = [] if status == "in_progress" else [text_part(text)]
    item_id = f"msg_{answer.request.request_id}"
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str) -> dict[str, Any]:
    """The only part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(answer: Answer, place: int, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    """A call of a function."""
    return {
        "id": f"fc_{answer.request.request_id}_{place}",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def called(choice: CollectedChoice, place: int) -> tuple[str, str, str]:
    """Id, name and arguments of a call so far."""
    call = choice.tool_calls[place]
    return call.id, call.name, call.arguments


def _own(body: ResponsesRequest, answer: Answer, sampling: SamplingDefaults) -> dict[str, Any]:
    choice = body.tool_choice or "auto"
    form = {"type": "text"} if body.text is None or body.text.format is None else _given(body.text.format)
    reasoning = body.reasoning
    return {
        "id": answer.request.request_id,
        "object": "response",
        "created_at": int(answer.request.created_at),
        "model": answer.tier.model,
        "previous_response_id": None,
        "instructions": body.instructions,
        "tools": [_tool(tool) for tool in body.tools or ()],
        "tool_choice": choice if isinstance(choice, str) else {"type": choice.type, "name": choice.name},
        "truncation": "disabled",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {"format": form},
        "temperature": sampling.temperature if body.temperature is None else body.temperature,
        "top_p": sampling.top_p if body.top_p is None else body.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": False,
        "background": False,
        "service_tier": answer.request.service_tier or "default",
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _tool(tool: ResponseTool) -> dict[str, Any]:
    names = ("type", "name", "description", "parameters", "strict")
    return {name: getattr(tool, name) for name in names}


def _given(form: Any) -> dict[str, Any]:
    return {name: value for name in form.__struct_fields__ if (value := getattr(form, name)) is not None}


def _usage(usage: Usage | None) -> dict[str, Any]:
    usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
