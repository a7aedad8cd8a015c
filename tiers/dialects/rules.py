"""What each kind of server refuses or needs, by family of models: the rules of `tiers/dialects/quirks/servers.toml`. A
request is adapted by them (`adapted_request`), and each change is named to the caller.

Fields of a request that an answer can do without are optional, by the caller's names: what a server's API lacks is
dropped, and named to the caller. Extra are those that OpenAI's API does not have (`extra_body` of OpenAI's clients):
which kind of server gets which. Left out are those with which a caller would choose another model, answer length, place
in a queue, cache or code than the tier has: `models`, `best_of`, `n_predict`, `priority`, `cache_salt`,
`kv_transfer_params`, `chat_template`, `custom_logit_processor` and what is like them.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from inference_core.protocol import SamplingParams
from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec
from tiers.dialects.quirks import Row, read_rows
from tiers.tier import ModelRequest

Names = tuple[str, int]
"""A class of characters of a regular expression, and the most of them."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort`, ascending."""
_OLLAMA_PORT = 11434
_OF_KIND: dict[RemoteKind, str] = {
    "openai": "compatible",
    "openai-provider": "provider",
    "triton-tensorrt-llm": "triton",
    "triton-vllm": "triton",
}


class TurnRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which turns a conversation may have (`adapted_turns`)."""

    system: Literal["anywhere", "after-user", "first", "none"] = "anywhere"
    """Where turns of the system may stand: anywhere, at the start and after a user's turn, at the start alone and as
    one, or nowhere."""
    starts_with_user: bool = False
    """The assistant must not have the first turn."""
    blank_answers: bool = True
    """An assistant's turn may be empty."""
    null_content: bool = True
    """A turn with calls may have no text."""
    prefill: Literal["taken", "marked", "refused"] = "taken"
    """Whether a last turn of the assistant is taken, needs a mark (`prefix`), or is refused."""
    continues: bool = False
    """The answer goes on from a last turn of the assistant, and does not repeat it."""
    continue_fields: dict[str, bool] = {}
    """Fields of the request that ask for that."""
    paired_results: bool = False
    """The results of calls must come right after them, one for each."""
    answers_results: bool = False
    """The assistant must speak between a result and the user."""
    named_results: bool = False
    """The result of a call must have the name of its tool."""
    single_calls: bool = False
    """A turn has one call at most."""
    alternates: bool = False
    """Successive turns must be of different roles."""
    message_names: Literal["any", "plain", "none"] = "any"
    """Whether turns may have names: of any characters, of plain ones, or none."""
    call_ids: Names | None = None
    """Characters of a call's id, and the most of them; None takes any."""
    call_id_length: int = 0
    """Exact number of characters of a call's id; 0 for any number up to the most."""
    unique_call_ids: bool = False
    """An id stands for one call alone in a conversation."""
    object_arguments: bool = False
    """Arguments of earlier calls must be JSON objects."""


class ToolRules(msgspec.Struct, frozen=True, kw_only=True):
    """How tools are named, described and chosen."""

    tool_names: Names | None = None
    """Characters of a tool's name, and the most of them; None takes any."""
    letter_first: bool = False
    """A tool's name must not begin with a digit."""
    most_description: int = 0
    """Most characters of a tool's description; 0 for any number."""
    combined_schemas: bool = True
    """A tool's schema may have `anyOf`, `oneOf` or `allOf` at its top."""
    needs_properties: bool = False
    """A tool's schema must have `properties`."""
    refused_keywords: frozenset[str] = frozenset()
    """Keywords of JSON schemas that tools must not have."""
    whole_tools: Literal["any", "parameters", "described"] = "any"
    """What a tool must have: nothing more than its name, its `parameters`, or a description as well."""
    strict_tools: bool = True
    """A tool may be `strict`."""
    declares_tools: bool = False
    """Tools that were called before must be among the tools of the request."""
    named_choice: bool = True
    """The tool that must be called can be named; else it is sent as the only one."""
    forced_calls: bool = True
    """A call can be required at all."""


class AnswerRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which forms of an answer can be asked for."""

    formats: Literal["schema", "object", "none"] = "schema"
    """Whether an answer's JSON schema is taken, any JSON object alone, or neither; what is not taken is asked for in
    the system prompt."""
    any_object: bool = True
    """Any JSON object may be asked for; else it is asked for in the system prompt."""
    closed_formats: bool = False
    """The schema of an answer must have closed objects and few keywords. What else it has stands in descriptions; a
    schema that no closed one can stand for is asked for in the system prompt."""
    formats_with_tools: bool = True
    """A format of the answer is taken next to tools."""
    says_json: bool = False
    """The prompt must have the word JSON if the answer is to be JSON."""


class ParameterRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which parameters are sent, and within which bounds."""

    refused: frozenset[str] = frozenset()
    """Parameters that are never sent, by the caller's names."""
    refused_thinking: frozenset[str] = frozenset()
    """Parameters that are not sent with an effort to think, by the caller's names."""
    efforts: tuple[str, ...] = ()
    """Values of `reasoning_effort` that are taken, ascending; empty takes all."""
    stops: int | None = None
    """Most stop strings; None for any number."""
    blank_stops: bool = True
    """A stop string may be white space."""
    least_temperature: float = 0.0
    """A lower temperature is sent as this one."""
    most_temperature: float = 2.0
    """A higher temperature is sent as this one."""
    whole_top_p: bool = True
    """A `top_p` of 1 is taken; else it is left out, which means the same."""
    one_choice: bool = False
    """`n` must be 1."""
    only_streams: bool = False
    """Answers must be streamed."""
    never_streams: bool = False
    """Answers cannot be streamed."""


class ThoughtRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which thoughts of earlier turns go back, and when the model does not think."""

    thoughts: tuple[str, ...] = ("reasoning_content",)
    """Fields in which the model's earlier thoughts go back; empty for none, `content` for a part of it."""
    thoughts_of: Literal["all", "loops"] = "loops"
    """Whose thoughts go back: of all turns, or of those in a loop of tools."""
    needs_thoughts: bool = False
    """A turn whose thoughts go back must have some."""
    signs_calls: bool = False
    """Calls must have Gemini's signature in `extra_content`."""
    forced_thoughts: bool = True
    """The model thinks before a call that it must make; else its thinking is turned off for that."""
    thoughts_with_tools: bool = True
    """The model thinks in a chat that has tools; else such a chat goes to the Responses API, or is without thoughts
    where the server has not got that API."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one server and model. A row has fields of all parts side by side."""

    server: str = "compatible"
    """Name of the server in the rows."""
    turns: TurnRules = TurnRules()
    tools: ToolRules = ToolRules()
    answer: AnswerRules = AnswerRules()
    parameters: ParameterRules = ParameterRules()
    thinking: ThoughtRules = ThoughtRules()
    cache_points: bool = False
    """A mark of a cache belongs to its turn: Bedrock's `cachePoint`, OpenRouter's parts."""
    cache_tools: bool = False
    """Tools may have marks of a cache, too."""
    chats: bool = True
    """The model is asked in chats at all."""
    parses_calls: bool = True
    """The server itself reads calls in what the model writes."""
    bills_unread: Literal["no", "whole", "all"] = "all"
    """What is billed that the server had not sent when the connection was closed early: nothing, nothing but of whole
    answers (which are made to their end), or all."""
    hides_thoughts: Literal["no", "asked", "always"] = "no"
    """Whether the model bills thoughts that it does not show: never, if it is asked to think, or always."""

    def with_fields(self, fields: Mapping[str, Any]) -> "Rules":
        """Return the rules with other values of these fields, each in its part."""
        parts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for name, value in fields.items():
            parts[_FIELDS[name].part][name] = value
        own = parts.pop("", {})
        changed = {part: msgspec.structs.replace(getattr(self, part), **values) for part, values in parts.items()}
        return msgspec.structs.replace(self, **own, **changed)


class _Field(NamedTuple):
    """Where a field of a row goes."""

    part: str
    """The field of `Rules` that has it; "" for one of its own."""
    type: Any


_PARTS: dict[str, type[msgspec.Struct]] = {
    "turns": TurnRules,
    "tools": ToolRules,
    "answer": AnswerRules,
    "parameters": ParameterRules,
    "thinking": ThoughtRules,
}
_FIELDS = {
    field.name: _Field("", field.type) for field in msgspec.structs.fields(Rules) if field.name not in _PARTS
} | {field.name: _Field(part, field.type) for part, kind in _PARTS.items() for field in msgspec.structs.fields(kind)}


def typed_rules(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of rules as their types have them. Raises `msgspec.ValidationError` for others."""
    if unknown := rules.keys() - _FIELDS.keys():
        raise msgspec.ValidationError(f"no rule is called {', '.join(sorted(unknown))}")
    return {name: msgspec.convert(value, _FIELDS[name].type) for name, value in rules.items()}


class ServerRow(Row, frozen=True, kw_only=True):
    """Rules that hold for some servers and models."""

    servers: tuple[str, ...]
    """Names of servers, or of groups of them."""
    families: tuple[str, ...] = ()
    """Names of families; the row holds for models of any of them, and for every model if it names none."""
    rules: dict[str, Any]
    """Fields of `Rules` and of its parts."""


class ServerRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of rows."""

    groups: dict[str, tuple[str, ...]]
    """Servers by the name of their group."""
    hosts: dict[str, str]
    """Servers by the end of their host's name, for those that the catalogue gives by their address."""
    fields: dict[str, frozenset[str]]
    """Fields beyond OpenAI's API that a caller may send, by the name of their group."""
    forwarded: dict[str, frozenset[str]]
    """The fields that a server knows, or the groups of them, by the server."""
    families: dict[str, str]
    """Regular expressions that a model's name has, by the name of the family."""
    rows: list[ServerRow]

    def __post_init__(self) -> None:
        for row in self.rows:
            if unknown := {*row.families} - self.families.keys():
                raise ValueError(f"no family is called {unknown}")
            typed_rules(row.rules)

    def forwarded_fields(self) -> dict[str, frozenset[str]]:
        """Return the fields that each server knows, without groups."""
        return {
            server: frozenset().union(*(self.fields.get(name, (name,)) for name in names))
            for server, names in self.forwarded.items()
        }

    def holding(self, server: str, vendor: str, model: str) -> list[ServerRow]:
        """Return the rows of a model of `server`, or of its `vendor`, in their order."""
        families = {name for name, pattern in self.families.items() if re.search(pattern, model)}
        names = {server, vendor} | {name for name, group in self.groups.items() if {server, vendor} & {*group}}
        return [row for row in self.rows if names & {*row.servers} and (not row.families or families & {*row.families})]


@cache
def server_rows() -> ServerRows:
    """Return the rows, read once."""
    return read_rows("servers", ServerRows)


def server_of(remote: RemoteSpec, provider: ProviderName | None = None) -> str:
    """Return the name of a server in the rows: the `provider` of the catalogue, else by its address, else its kind."""
    if provider is not None and provider != "vertex":
        return provider
    if remote.kind in ("openai", "openai-provider"):
        address = urlsplit(remote.base_url)
        host = address.hostname or ""
        for end, name in server_rows().hosts.items():
            if host == end or host.endswith(f".{end}"):
                return name
        with_port = address.netloc.rpartition(":")[2]
        if remote.kind == "openai" and with_port == str(_OLLAMA_PORT):
            return "ollama"
    return _OF_KIND.get(remote.kind, remote.kind)


@cache
def rules_of(server: str, model: str) -> Rules:
    """Return the rules of a server and one of its models: later rows add to earlier ones, or replace them. Models of a
    vendor on Vertex have their vendor's rules, too."""
    vendor = server.removeprefix("vertex-")
    fields: dict[str, Any] = {"server": vendor}
    for row in server_rows().holding(server, vendor, model):
        fields |= row.rules
    return Rules().with_fields(typed_rules(fields))


SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
# vLLM's, which most servers of open models share.
EXTENSIONS = ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids")
ALL_SAMPLING = SAMPLING + EXTENSIONS
# What means something to a provider alone.
SERVICE_FIELDS = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "store",
    "metadata", "service_tier", "verbosity",
)  # fmt: skip
MODALITIES, AUDIO, SUFFIX = "modalities", "audio", "suffix"
BUDGET, VARIABLES, THOUGHTS = "thinking_token_budget", "chat_template_kwargs", "messages.reasoning_content"
BREAKPOINT = "prompt_cache_breakpoint"
"""Of a part: https://developers.openai.com/api/docs/guides/prompt-caching (2026-11)."""
BREAKPOINTS = f"messages.content.{BREAKPOINT}"

sampling_of = attrgetter(*ALL_SAMPLING)
NEUTRAL = sampling_of(SamplingParams())


def optional_fields(request: ModelRequest) -> list[str]:
    """Return the names of those that are set and matter."""
    names: list[str] = []
    if (values := sampling_of(request.sampling)) != NEUTRAL:
        names += [name for name, value, usual in zip(ALL_SAMPLING, values, NEUTRAL, strict=True) if value != usual]
    if request.reasoning_effort is not None:
        names.append("reasoning_effort")
    if request.reasoning_budget is not None:
        names.append(BUDGET)
    if request.template_variables:
        names.append(VARIABLES)
    tooling = request.tooling
    if tooling is not None and not tooling.parallel and tooling.choice in ("auto", "required"):
        names.append("parallel_tool_calls")
    for message in request.messages or ():
        if message.thoughts:
            names.append(THOUGHTS)
            break
    for message in request.messages or ():
        if [block for block in message.content_blocks if block.breakpoint is not None]:
            names.append(BREAKPOINTS)
            break
    return [*names, *request.passed] if request.passed else names


def dropped_fields(request: ModelRequest, known_fields: frozenset[str]) -> tuple[str, ...]:
    """Return the names of those that are set and not among `known_fields`."""
    names = optional_fields(request)
    return tuple([name for name in names if name not in known_fields]) if names else ()


FORWARDED = server_rows().forwarded_fields()
"""Extra fields by the name of the server that knows them."""
TUNING = server_rows().fields["thoughts"] | server_rows().fields["sampling"]
"""Fields beyond OpenAI's API without which an answer is one, too."""
FORWARDABLE = frozenset().union(*FORWARDED.values())
"""Fields that at least one kind of server knows."""


def num_tools(request: ModelRequest) -> int:
    """Return the number of tools, those that the provider runs among them."""
    own = len(request.server_tools)
    return own if request.tooling is None else own + len(request.tooling.tools)


def unserved(extra: dict[str, Any], available: Collection[str]) -> str | None:
    """Return the name of a field of `extra` without which an answer would be another one, and that is not
    `available`; None without any."""
    speaks = AUDIO in extra.get(MODALITIES, ())
    needed = [SUFFIX] * (SUFFIX in extra) + [MODALITIES] * speaks + [AUDIO] * (AUDIO in extra)
    return next((name for name in needed if name not in available), None)


def with_fields(body: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return `body` with the fields of `more` that it does not have; of objects in both, the members."""
    merged = dict(body)
    for name, value in more.items():
        existing = merged.get(name)
        if isinstance(existing, msgspec.Struct):
            existing = msgspec.to_builtins(existing)
        if isinstance(existing, dict) and isinstance(value, dict):
            merged[name] = value | existing
        else:
            merged.setdefault(name, value)
    return merged
