"""What a refusal says that its server wants instead: rules (`tiers.remote.rules`) that hold for it from then on.

Gateways and servers of open models have the rules of whatever is behind them, which no table knows by their address;
their refusals tell. A lesson counts only if the request was taken once it was adapted, and is forgotten like the
refusal of a parameter.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tiers.remote.openai_format import WireError
from tiers.remote.provider_format import THINKING_TOKENS
from tiers.remote.refusals import FORMAT, LEFT_OUT, refused_parameters
from tiers.remote.request_fields import SERVICE_FIELDS
from tiers.remote.rules import EFFORTS, USUAL_NAMES, Rules

SCHEMA, ANY_FORMAT, CHOICES = "response_format.json_schema", "response_format.type", "n"
LIMIT, THIS_VALUE = "max_tokens<=", "=?"
"""Before the most tokens of an answer; behind a parameter of which a value is refused, which another may not be."""
MOST_READ = 1500
"""Characters of a refusal; what follows is often the request itself."""
ELSEWHERE = (404, 405, 500, 501)
"""Statuses by which some servers refuse what a lesson is about."""


class Lesson(NamedTuple):
    """`name`: as an operator sees it. `pattern`: of the words, without regard to case. `rules`: what they mean; {}
    leaves the parameter of this name out, or changes the body of a request. `source`: where it is documented or was
    reported."""

    name: str
    pattern: str
    rules: dict[str, Any]
    source: str


_REFUSED = (
    r"(?:unavailable|unsupported|not (?:supported|available|allowed|permitted|enabled)|does(?:n't| not) support|"
    r"unknown|unrecognized|unexpected|extra_forbidden)"
)
LESSONS = [
    Lesson(
        "tool_choice with thoughts",
        r"tool_?choice.{0,120}\bthinking\b|\bthinking\b.{0,60}tool_?choice|does not support this tool_?choice",
        {"forced_thoughts": False},
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/1376",
    ),
    Lesson(
        "stream: false",
        r"only supports? stream|stream must be (?:set to )?true|streaming is required|enable the stream parameter|"
        r"false for non-?stream|non-?stream\w* (?:calls?|requests?|mode) (?:is|are) not (?:supported|allowed)",
        {"only_streams": True},
        "https://www.alibabacloud.com/help/en/model-studio/error-code",
    ),
    Lesson(
        "stream: true",
        r"verified to stream|does not support streaming|streaming is not (?:supported|enabled)",
        {"never_streams": True},
        "https://help.openai.com/en/articles/10910291-api-organization-verification",
    ),
    Lesson(
        "stop",
        rf"len\(stop\)|\bstop(?:_?sequences?)?\W{{0,3}}(?: parameter)?.{{0,60}}(?:supported range|too long|too many|"
        rf"at most|maximum|{_REFUSED})",
        {"stops": 0},
        "https://github.com/continuedev/continue/issues/7849",
    ),
    Lesson(
        CHOICES,
        r"\bn value\b|\bn ?= ?1\b.{0,20}supported|'n' ?:.{0,30}at most 1|range of n should|\bn must be\b|"
        r"multiple (?:choices|completions|candidates).{0,30}not (?:supported|enabled)|"
        rf"(?:property |parameter:? )?'n' (?:is )?{_REFUSED}",
        {"one_choice": True},
        "https://console.groq.com/docs/openai",
    ),
    Lesson(
        SCHEMA,
        rf"response[_ ]format.{{0,100}}{_REFUSED}|{_REFUSED}.{{0,40}}(?:response[_ ]format|structured outputs?|"
        rf"json[_ ]schema)|structured outputs?.{{0,40}}{_REFUSED}|invalid input: response_format|"
        r"schema contains features not supported|too many states for serving|json mode is not enabled|"
        r"failed to (?:parse grammar|initialize samplers)|"
        r"no endpoints found that can handle the requested parameters",
        {"formats": "object"},
        "https://github.com/hugalafutro/model-hotel/pull/895",
    ),
    Lesson(ANY_FORMAT, r"(?!)", {"formats": "none"}, "https://github.com/khoj-ai/khoj/issues/1336"),
    Lesson(
        "response_format with tools",
        r"json mode cannot be combined with tool|function calling with a response mime type|"
        r"response_format.{0,60}(?:with|and) (?:tools|function)",
        {"formats_with_tools": False},
        "https://github.com/symfony/ai/issues/803",
    ),
    Lesson(
        "response_format without the word JSON",
        r"must contain the word \W{0,2}json",
        {"says_json": True},
        "https://platform.openai.com/docs/guides/structured-outputs#json-mode",
    ),
    Lesson(
        "chat/completions with tools",
        r"tools with reasoning_effort are not supported.{0,80}chat/completions.{0,40}(?:to use function tools)",
        {"thoughts_with_tools": False},
        "https://github.com/BerriAI/litellm/pull/34569",
    ),
    Lesson(
        "chat/completions",
        r"only supported in v1/responses|not accessible via the /chat/completions|not a chat model.{0,80}v1/responses",
        {"chats": False},
        "https://github.com/hugalafutro/model-hotel/pull/879",
    ),
    Lesson(
        "tool_choice: auto",
        r"enable-auto-tool-choice",
        {"parses_calls": False},
        "https://docs.vllm.ai/en/latest/features/tool_calling.html",
    ),
    Lesson(
        "tool_choice: object",
        r"invalid tool_choice type: 'object'|tool_choice: input should be '(?:none|auto|required)'",
        {"named_choice": False},
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/670",
    ),
    Lesson(
        "tool_choice: required",
        r"^(?!.*\bthinking\b).*?(?:\btoolchoice\.(?:any|tool)\b|"
        rf"tool_?choice\W{{0,4}}(?:=\W?|of )?\W?(?:required|any|specified)\b.{{0,30}}{_REFUSED}|"
        r"tool_?choice.{0,40}\bonly (?:supports? )?\W?auto\b)",
        {"forced_calls": False},
        "https://github.com/pydantic/pydantic-ai/pull/3644",
    ),
    Lesson(
        "tools of earlier calls",
        r"must define tools|expects the \W?tools=|without \W?tools=|toolconfig field must be defined",
        {"declares_tools": True},
        "https://github.com/agentgateway/agentgateway/pull/2192",
    ),
    Lesson(
        "messages.name: of results",
        r"function_?response\.name|tool message\b.{0,20}\bname\b.{0,20}(?:required|missing)",
        {"named_results": True},
        "https://github.com/pydantic/pydantic-ai/issues/1879",
    ),
    Lesson(
        "messages.tool_calls.arguments",
        r"(?:tool|function).{0,60}arguments.{0,80}(?:json|parse)|^expecting (?:value|property name|',')|"
        r"^unterminated string|^invalid \\escape",
        {"object_arguments": True},
        "https://github.com/vllm-project/vllm/pull/48922",
    ),
    Lesson(
        "messages.content: null",
        r"content\b.{0,40}(?:valid string|must be a string|(?:cannot|can not|must not|may not) be null|"
        r"expected a string)",
        {"null_content": False},
        "https://github.com/tashfeenahmed/freellmapi/issues/165",
    ),
    Lesson(
        "messages.name",
        rf"messages?\W{{0,2}}\d+\S{{0,12}}name\b.{{0,60}}(?:pattern|match|{_REFUSED}|extra inputs)|"
        r"extra inputs are not permitted \(messages\.\d+\.(?:\w+\.)?name\)",
        {"message_names": "none"},
        "https://platform.openai.com/docs/api-reference/chat/create",
    ),
    Lesson(
        "messages.reasoning_content",
        rf"messages.{{0,60}}reasoning(?:_content)?\b.{{0,40}}{_REFUSED}|"
        r"extra inputs are not permitted.{0,20}messages.{0,30}reasoning",
        {"thoughts": (), "needs_thoughts": False},
        "https://console.groq.com/docs/reasoning",
    ),
    Lesson(
        "messages without reasoning_content",
        r"reasoning_content.{0,60}(?:must be passed|missing|required)|missing.{0,10}reasoning_content",
        {"thoughts": ("reasoning_content",), "needs_thoughts": True},
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/1588",
    ),
    Lesson(
        "messages without the user",
        r"no user query found|(?:at least one|must (?:contain|include|have)) .{0,20}\buser\b|"
        r"(?:first|initial) (?:message|turn).{0,40}\buser\b|must (?:start|begin) with (?:a )?user|"
        r"contents (?:is|are) required|messages 参数非法",
        {"starts_with_user": True},
        "https://huggingface.co/Qwen/Qwen3.5-9B/blob/main/chat_template.jinja",
    ),
    Lesson(
        "messages.role: successive turns",
        r"(?:roles|messages?(?:\(s\))?).{0,30}(?:must|should) alternate|alternating.{0,30}roles",
        {"alternates": True, "system": "first"},
        "https://docs.perplexity.ai/guides/chat-completions-guide",
    ),
    Lesson(
        "messages.role: system",
        r"system messages?.{0,40}(?:at the )?(?:beginning|first|start)\b|unexpected role 'system'",
        {"system": "first"},
        "https://github.com/vllm-project/vllm/issues/41114",
    ),
    Lesson(
        "messages.role: no system",
        r"developer instruction is not enabled|system role (?:is )?not supported|"
        r"not support (?:the )?system (?:role|message|prompt)|only user and assistant roles are supported|"
        r"'messages\[\d+\]\.role' does not support 'system'",
        {"system": "none"},
        "https://huggingface.co/google/gemma-2-9b-it/blob/main/tokenizer_config.json",
    ),
    Lesson(
        "messages.role: assistant at the end",
        r"expected last role user|(?:cannot|must not) end with (?:an )?assistant|must end with (?:a )?user|"
        r"not support assistant message prefill|last message.{0,20}(?:must|should) be.{0,20}user",
        {"prefill": "refused"},
        "https://platform.claude.com/docs/en/about-claude/models/migration-guide",
    ),
    Lesson(
        "messages.role: user after tool",
        r"unexpected role 'user' after role 'tool'",
        {"answers_results": True},
        "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
    ),
    Lesson(
        "messages.content: empty",
        r"assistant.{0,60}(?:must have either content|must not be empty|cannot be empty)|"
        r"content.{0,20}must be non-empty",
        {"blank_answers": False},
        "https://github.com/AstrBotDevs/AstrBot/issues/7200",
    ),
    Lesson(
        "messages.tool_call_id: unpaired",
        r"must be followed by tool messages|tool_call_ids? did not have response|"
        r"must be a response to a prec\w+ message|not the same number of function calls and responses|"
        r"number of function response parts|"
        r"tool_use\W{0,3} ids were found without|unexpected \W?tool_use_id",
        {"paired_results": True},
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/1588",
    ),
    Lesson(
        "messages.tool_calls.id: 9",
        r"a-z, A-Z, 0-9, with a length of 9",
        {"call_ids": ("A-Za-z0-9", 9), "call_id_length": 9, "answers_results": True},
        "https://docs.mistral.ai/capabilities/function_calling",
    ),
    Lesson(
        "messages.tool_calls.id",
        r"tool_calls?\W.{0,20}\bid\b.{0,60}(?:too long|maximum length|at most)|"
        r"tool_(?:use|call)(?:\.|_)id\b.{0,60}pattern|tool_?(?:use|call)\W{0,3} ids? must be unique|"
        r"duplicate tool call id",
        {"call_ids": ("A-Za-z0-9_-", 40), "unique_call_ids": True},
        "https://platform.openai.com/docs/api-reference/chat/create",
    ),
    Lesson(
        "tools.name",
        r"(?:function|tools?)\S{0,24}\.name\b.{0,80}(?:pattern|match|too long|at most|maximum)|invalid function name|"
        r"function name.{0,60}(?:must|can only|should)",
        {"tool_names": USUAL_NAMES, "letter_first": True},
        "https://platform.openai.com/docs/api-reference/chat/create",
    ),
    Lesson(
        "tools.description",
        r"description\b.{0,20}too long.{0,60}maximum length 1024",
        {"most_description": 1024},
        "https://github.com/modelcontextprotocol/servers/issues/799",
    ),
    Lesson(
        "messages.tool_calls: several",
        r"only supports? single tool[- ]calls?",
        {"single_calls": True},
        "https://github.com/vllm-project/vllm/issues/11592",
    ),
    Lesson(
        "tools.parameters",
        r"\b(?:one|any|all)Of\b.{0,60}top[- ]level|schema must (?:have|be of) type|object schema missing properties",
        {"combined_schemas": False, "needs_properties": True},
        "https://platform.openai.com/docs/guides/function-calling",
    ),
    Lesson(
        "tools without all fields",
        r"function\S{0,3}(?:parameters|description)\b.{0,30}required|missing field \W?(?:parameters|description)|"
        r"required.{0,30}function\.(?:parameters|description)",
        {"whole_tools": "described"},
        "https://docs.mistral.ai/api",
    ),
    Lesson(
        "tools.strict",
        rf"\bstrict\b.{{0,40}}(?:extra inputs|{_REFUSED})|(?:extra inputs|{_REFUSED}).{{0,60}}\bstrict\b",
        {"strict_tools": False},
        "https://inference-docs.cerebras.ai/capabilities/tool-use",
    ),
    Lesson(
        "tools without a signature",
        r"missing (?:a )?\W?thought_?signature",
        {"signs_calls": True},
        "https://ai.google.dev/gemini-api/docs/thought-signatures",
    ),
    Lesson(
        "thinking.type: adaptive",
        r"thinking\.type: input should be 'enabled'|input tag 'adaptive'|adaptive thinking is not supported",
        {},
        "https://github.com/AAswordman/Operit/pull/568",
    ),
    Lesson(
        "system: blocks",
        r"\bsystem: input should be a valid string",
        {},
        "https://platform.claude.com/docs/en/api/messages",
    ),
    Lesson(
        "temperature: 0",
        r"temperature.{0,60}(?:strictly positive|greater than 0|> ?0\b|\(0)",
        {"least_temperature": 0.01},
        "https://docs.bigmodel.cn/cn/api/introduction",
    ),
    Lesson(
        "temperature above 1",
        r"temperature.{0,60}(?:0(?:\.0)?(?:\.\.| and |, ?)|than or equal to |at most |<= ?)1(?:\.0)?\b(?!\.?\d)",
        {"most_temperature": 1.0},
        "https://platform.claude.com/docs/en/api/messages",
    ),
    Lesson(
        "top_p",
        r"top_?p\b.{0,60}(?:less than 1|< ?1\b|\(0(?:\.0)?, ?1(?:\.0)?\))",
        {"whole_top_p": False},
        "https://docs.bigmodel.cn/cn/api/introduction",
    ),
    Lesson(
        "include",
        r"encrypted content is not supported",
        {},
        "https://platform.openai.com/docs/guides/reasoning",
    ),
    Lesson(
        "reasoning.summary",
        r"verified to generate reasoning summaries",
        {},
        "https://platform.openai.com/docs/guides/reasoning",
    ),
]  # fmt: skip
_COMPILED = [(lesson.name, re.compile(lesson.pattern, re.IGNORECASE | re.DOTALL)) for lesson in LESSONS]
_RULES = {lesson.name: lesson.rules for lesson in LESSONS}
# It is the caller's schema that is wrong.
_WRONG_SCHEMA = re.compile(r"invalid (?:json )?schema", re.IGNORECASE)
# Keywords of a tool's schema that a server does not know: Google's, and OpenAI's of strict tools.
_SCHEMAS = "tools.parameters."
_KEYWORDS = [
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"unknown name [\\\W]{0,3}([$\w]+)\W{0,4} at [^:]{0,200}(?:parameters|schema)",
        r"at [^:]{0,200}(?:parameters|schema)[^:]{0,200}\b(type)\W{0,2} \(type\).{0,20}proto field is not repeating",
        r"(?:parameters|schema)\S*\.(properties)\W{1,3}should be non-empty for object",
        r"invalid schema for function.{0,200}?'([$\w]+)' is not permitted",
        r"unsupported json schema (?:fields?|keywords?)\W{0,6}([$\w]+)",
    )
]
# llama.cpp's, of a schema that it can make no grammar of: what no grammar needs.
_NO_GRAMMAR = re.compile(
    r"(?:parse|parsing) grammar|pattern must start|schema conversion failed|unrecognized schema|lookaround",
    re.IGNORECASE,
)
_IN_GRAMMARS = ("pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "not", "$schema")
# How servers refuse a limit above what the model can answer: Anthropic, OpenAI and Bedrock, then any.
_MOST_ANSWERED = re.compile(
    r"max_tokens: \d{1,10} > (\d{1,10}), which is the maximum|supports at most (\d{1,10}) completion tokens|"
    r"exceeds the model limit of (\d{1,10})|max(?:imum)?[_ ]?(?:output|completion|new)?[_ ]?tokens.{0,80}?"
    r"(?:at most|less than or equal to|<=|≤|maximum (?:allowed )?(?:value|output tokens|number)[^\d]{0,30}|"
    r"\[1, ?|from 1 \(inclusive\) to )[ `]*(\d{1,10})(?P<beyond> \(exclusive\))?",
    re.IGNORECASE,
)
# The value, or what it stands with, is what is refused.
_THIS_ONE = re.compile(
    r"only (?:allowed|available|supported)|not (?:allowed|available|supported) (?:for|with|on|in|when)", re.I
)
_EFFORT = "reasoning_effort"
_VALUES = re.compile(
    r"(?:(?<!un)supported (?:reasoning )?(?:values?|levels?|efforts?)(?: are)?|(?<!in)valid \w+|one of|should be|"
    r"expected|allowed(?: values)?)"
    r"\W{0,12}((?:\W*\b(?:none|default|minimal|low|medium|high|xhigh|max|and|or)\b)+)",
    re.IGNORECASE,
)
_OF_EFFORT = re.compile(r"effort|\blevel\b|thinking", re.IGNORECASE)
_NO_THOUGHTS = re.compile(
    r"does(?:n't| not) support (?:thinking|reasoning)\b(?! ?(?:effort|content))|thinking is not enabled for|"
    r"thinking level \w+ is not supported",
    re.IGNORECASE,
)


def refused_in(body: bytes, error: WireError) -> frozenset[str]:
    """Return what a refusal with this `body`, read as `error`, is about: parameters (`refused_parameters`), lessons."""
    known = refused_parameters(body, error.words, error.param, error.code)
    if FORMAT in known:
        return known
    lessons = set(lessons_in(error.words, error.param, error.code))
    # A server that lists the values of an effort takes some.
    is_listed = any(name.startswith(f"{_EFFORT}=") for name in lessons)
    return frozenset((known - {_EFFORT} if is_listed else known) | lessons)


def told_limit(words: str) -> int:
    """Return the most tokens that the model can answer, where a request was refused for more; else 0."""
    told = _MOST_ANSWERED.search(words[:MOST_READ])
    return 0 if told is None else int(next(filter(None, told.groups()))) - (told["beyond"] is not None)


def most_answer(refused: Iterable[str]) -> int | None:
    """Return the most tokens of an answer that these names tell; None if they tell none."""
    return min((int(name.removeprefix(LIMIT)) for name in refused if name.startswith(LIMIT)), default=None)


def of_this_request(refused: Iterable[str]) -> frozenset[str]:
    """Return what is refused for the value that this request has, by the names of the parameters."""
    return frozenset(name.removesuffix(THIS_VALUE) for name in refused if name.endswith(THIS_VALUE))


ADAPTIVE, BLOCKS, BLANK = "thinking.type: adaptive", "system: blocks", "messages.content: empty"
# Fields of Anthropic's API and of Responses that servers of the same API may not know, and that an answer can do
# without.
EXTRAS = frozenset(
    {"cache_control", "ttl", "scope", "eager_input_streaming", "defer_loading", "strict", "input_examples", "speed",
     "allowed_callers", "metadata", "service_tier", "thinking", "display", "inference_geo", "output_config", "summary",
     "verbosity", "include", "truncation", "max_tool_calls"}
)  # fmt: skip
_PATH = r"([a-z_]\w{0,40}(?:\.\w{1,40}){0,6})"
_EXTRA = re.compile(
    rf"{_PATH}: extra inputs are not permitted|(?:unknown|unsupported) parameter: '{_PATH}'", re.IGNORECASE
)
_LEAST_BUDGET = 1024


def without_extras(body: bytes, refused: frozenset[str]) -> tuple[bytes, tuple[str, ...], tuple[str, ...]]:
    """Return the body of a request of Anthropic's form or of Responses without what its server does not know, the
    names of the fields that were left out, and those of the fields that were changed."""
    paths = [name for name in refused if name.rpartition(".")[2] in EXTRAS]
    if not (paths or refused & {ADAPTIVE, BLOCKS, BLANK}):
        return body, (), ()
    said = msgspec.json.decode(body, type=dict[str, Any])
    left_out = [path for path in sorted(paths) if _removed(said, path)]
    changed: list[str] = []
    if ADAPTIVE in refused and said.get("thinking", {}).get("type") == "adaptive":
        effort = said.pop("output_config", {}).get("effort", "medium")
        budget = min(THINKING_TOKENS.get(effort, 0), said["max_tokens"] - _LEAST_BUDGET)
        said["thinking"] = {"type": "enabled", "budget_tokens": budget}
        if budget < _LEAST_BUDGET:
            del said["thinking"]
        changed.append("thinking")
    if BLOCKS in refused and isinstance(said.get("system"), list):
        said["system"] = "\n\n".join(block["text"] for block in said["system"] if block.get("text"))
        changed.append("system")
    if BLANK in refused:
        for turn in said["messages"]:
            if isinstance(turn["content"], list):
                turn["content"] = [block for block in turn["content"] if block.get("text", "x").strip()]
        changed.append("messages")
    return msgspec.json.encode(said), tuple(left_out), tuple(changed)


def _removed(body: dict[str, Any], path: str) -> bool:
    """Remove what stands at `path`, whose parts that are no field are types of what stands there. Marks of the cache
    are removed wherever they may stand. Return whether there was any."""
    *_, last = parts = path.split(".")
    if last == "cache_control":
        places: tuple[list[str], ...] = (
            [],
            ["system"],
            ["tools"],
            ["messages", "content"],
            ["messages", "content", "content"],
        )
        return sum(_remove(body, [*place, last]) for place in places) > 0
    if last == "output_config" and "format" in body.get(last, {}):
        return body[last].pop("effort", None) is not None
    return _remove(body, parts)


def _remove(node: Any, parts: list[str]) -> bool:
    if isinstance(node, list):
        return sum(_remove(one, parts) for one in node) > 0
    if not isinstance(node, dict) or not parts:
        return False
    first, *rest = parts
    if first not in node:
        return bool(rest) and _remove(node, rest)
    if rest:
        return _remove(node[first], rest)
    del node[first]
    return True


def lessons_in(message: str, param: str | None, code: str | int | None) -> Iterator[str]:
    """Yield the names of what a refusal with these words teaches: those of `LESSONS`, and `reasoning_effort=VALUE` for
    each value of the effort that it does not list among those that it takes, `max_tokens<=N`, and `NAME=?` for a value
    of a parameter that answers can do without."""
    said = f"{message[:MOST_READ]} {code or ''}"
    for name, pattern in _COMPILED:
        if pattern.search(said) is not None and not (name == SCHEMA and _WRONG_SCHEMA.search(said)):
            yield name
    for found in _EXTRA.finditer(said):
        parts = [part for part in (found[1] or found[2]).split(".") if not part.isdecimal()]
        if parts[-1] in EXTRAS:
            yield ".".join(parts)
    if param in SERVICE_FIELDS and param in LEFT_OUT and (code == "unsupported_value" or _THIS_ONE.search(said)):
        yield f"{param}{THIS_VALUE}"
    if (most := told_limit(message)) > 0:
        yield f"{LIMIT}{most}"
    for pattern in _KEYWORDS:
        yield from (f"{_SCHEMAS}{found[1]}" for found in pattern.finditer(said))
    if _NO_GRAMMAR.search(said) is not None:
        yield from (f"{_SCHEMAS}{keyword}" for keyword in _IN_GRAMMARS)
    if str(code) == "unsupported_api_for_model":
        yield "chat/completions"
    if _NO_THOUGHTS.search(said) is not None:
        yield _EFFORT
    if _OF_EFFORT.search(f"{said} {param}") is not None and (listed := _VALUES.search(said)) is not None:
        taken = set(re.findall(r"\w+", listed[1].lower()))
        yield from (f"{_EFFORT}={one}" for one in EFFORTS if one not in taken)


def taught(rules: Rules, refused: frozenset[str]) -> Rules:
    """Return the rules of a server that has `refused` what these names say."""
    fields: dict[str, Any] = {}
    for name in _RULES.keys() & refused:
        fields |= _RULES[name]
    if keywords := {name.removeprefix(_SCHEMAS) for name in refused if name.startswith(_SCHEMAS)}:
        fields["refused_keywords"] = frozenset(keywords)
    if ANY_FORMAT in refused:
        fields["formats"] = "none"
    if unknown := {name.partition("=")[2] for name in refused if name.startswith(f"{_EFFORT}=")}:
        fields["efforts"] = tuple(one for one in rules.efforts or EFFORTS if one not in unknown) or ("none",)
    return msgspec.structs.replace(rules, **fields) if fields else rules
