"""What each kind of server refuses or needs, by family of models: rows of data with their sources. A request is adapted
by them (`adapted_request`), and each change is named to the caller."""

import re
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tiers.catalog.tier_spec import ProviderName, RemoteKind, RemoteSpec

Names = tuple[str, int]
"""A class of characters of a regular expression, and the most of them."""

USUAL_NAMES: Names = ("A-Za-z0-9_-", 64)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort`, ascending."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one server and model.

    `server`: its name in `ROWS`. `tool_names`, `call_ids`: None takes any. `letter_first`: no name of a tool may begin
    with a digit. `most_description`: characters of a tool's description; 0 for any number. `call_id_length`: exactly so
    many characters; 0 for any number up to the most. `unique_call_ids`: whether an id may stand for one call alone.
    `stops`: the most stop strings; None for any number. `blank_stops`: whether one may be of white space.
    `refused`: parameters that are never sent, by the caller's names.
    `refused_thinking`: those that are not sent with an effort to think.
    `efforts`: the values of `reasoning_effort`, ascending; empty takes all.
    `system`: where turns of the system may stand: `anywhere`, at the start and `after-user`, `first` alone, as one, or
    nowhere (`none`).
    `starts_with_user`: whether the assistant may not begin. `prefill`: whether a last turn of the assistant is taken,
    needs a mark (`prefix`), or is refused. `continues`: whether the answer goes on from that turn, and says nothing of
    it again; `continue_fields`: which fields ask for that. `blank_answers`: whether an assistant's turn may be empty.
    `paired_results`: whether the results of calls come right after them, one for each. `answers_results`: whether the
    assistant speaks between a result and the user.
    `combined_schemas`: whether a tool's schema may have `anyOf`, `oneOf` or `allOf` at its top. `needs_properties`:
    whether it must have `properties`. `cache_points`: whether a mark of a cache is one of its turn (Bedrock's
    `cachePoint`, OpenRouter's parts); `cache_tools`: of tools, too. `single_calls`: whether a turn has one at most.
    `thoughts`: the fields that earlier thoughts of its own go back in; empty for none, `content` for a part of it.
    `thoughts_of`: of `all` turns, or of those in a loop of tools (`loops`). `needs_thoughts`: whether a turn there
    must have some. `signs_calls`: whether calls must have Gemini's signature in `extra_content`.
    `forced_thoughts`: whether it thinks before a call that it must make; else its thinking is turned off for that.
    `thoughts_with_tools`: whether it does so in a chat that has tools; else such a chat goes to the Responses API, or
    is without thoughts where the server has not got that. `chats`: whether the model is asked in chats at all.
    `parses_calls`: whether the server itself reads calls in what the model writes.
    `only_streams`, `never_streams`: of answers. `one_choice`: whether `n` is 1. `formats`: whether an answer's JSON
    schema is taken, any JSON `object` alone, or `none`; what is not taken is asked for in the system prompt.
    `formats_with_tools`: whether next to tools. `says_json`: whether the prompt must have the word.
    `object_arguments`: whether arguments of earlier calls must be JSON objects. `whole_tools`: whether a tool must have
    `parameters`, or be `described` as well; `strict_tools`: whether it may be `strict`. `null_content`: whether a turn
    with calls may have no text. `message_names`: whether turns may have names, of any characters or `plain` ones.
    `named_results`: whether the result of a call must have its name. `declares_tools`: whether tools that were called
    before must be among the tools. `named_choice`: whether the tool that must be called can be named, else it is the
    only one; `forced_calls`: whether there can be such a tool at all. `refused_keywords`: of tools' JSON schemas.
    `bills_unread`: of an answer whose connection is closed early, what is billed that the server had not sent: nothing
    (`no`), as of servers that stop; nothing but of `whole` answers, which are made to their end; or `all`.
    `hides_thoughts`: whether the model bills thoughts that it does not show, where it is `asked` to think, or `always`.
    `alternates`: whether successive turns are of different roles. `least_temperature`, `most_temperature`: others are
    sent as the nearer one. `whole_top_p`: whether a `top_p` of 1 is taken, which means no more than none.
    """

    server: str = "compatible"
    tool_names: Names | None = None
    call_ids: Names | None = None
    letter_first: bool = False
    most_description: int = 0
    call_id_length: int = 0
    unique_call_ids: bool = False
    stops: int | None = None
    blank_stops: bool = True
    refused: frozenset[str] = frozenset()
    refused_thinking: frozenset[str] = frozenset()
    efforts: tuple[str, ...] = ()
    system: Literal["anywhere", "after-user", "first", "none"] = "anywhere"
    starts_with_user: bool = False
    prefill: Literal["taken", "marked", "refused"] = "taken"
    continues: bool = False
    continue_fields: dict[str, bool] = {}
    blank_answers: bool = True
    paired_results: bool = False
    answers_results: bool = False
    combined_schemas: bool = True
    needs_properties: bool = False
    cache_points: bool = False
    cache_tools: bool = False
    thoughts: tuple[str, ...] = ("reasoning_content",)
    thoughts_of: Literal["all", "loops"] = "loops"
    needs_thoughts: bool = False
    signs_calls: bool = False
    forced_thoughts: bool = True
    thoughts_with_tools: bool = True
    chats: bool = True
    parses_calls: bool = True
    only_streams: bool = False
    never_streams: bool = False
    one_choice: bool = False
    formats: Literal["schema", "object", "none"] = "schema"
    formats_with_tools: bool = True
    says_json: bool = False
    object_arguments: bool = False
    whole_tools: Literal["any", "parameters", "described"] = "any"
    strict_tools: bool = True
    null_content: bool = True
    message_names: Literal["any", "plain", "none"] = "any"
    named_results: bool = False
    declares_tools: bool = False
    named_choice: bool = True
    forced_calls: bool = True
    refused_keywords: frozenset[str] = frozenset()
    single_calls: bool = False
    alternates: bool = False
    bills_unread: Literal["no", "whole", "all"] = "all"
    hides_thoughts: Literal["no", "asked", "always"] = "no"
    least_temperature: float = 0.0
    whole_top_p: bool = True
    most_temperature: float = 2.0


class Row(NamedTuple):
    """Fields of `Rules` for `servers` (empty: all) with models that match `models` (empty: all). `source`: a published
    page, or the report of a refusal; `seen`: the month in which it was read."""

    servers: tuple[str, ...]
    models: str
    rules: dict[str, Any]
    source: str
    seen: str


SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
# Models of OpenAI's that think before each answer, and those that do so only if asked to.
_REASONING = r"^(o[1-9]|gpt-5(?![.\d]))(?!.*-chat)"
_HYBRID = r"^gpt-(5\.\d|[6-9])(?!.*-chat)"
# Claude from Opus 4.7 on, and every later generation.
_LATER_CLAUDE = r"claude-(mythos-preview|opus-4-([7-9]|\d\d)(?!\d)|(opus|sonnet|haiku|fable|mythos)-([5-9]|\d\d)(?!\d))"
_MISTRAL = r"(?i)(mistral|ministral|magistral|devstral|codestral|pixtral)"
_TEMPLATED = ("vllm", "sglang", "llama-server", "tensorrt-llm", "tgi", "ollama", "compatible")

ROWS: list[Row] = [
    # OpenAI
    Row(
        ("openai", "azure"), "",
        {"tool_names": USUAL_NAMES, "call_ids": (r"\x21-\x7e", 40), "stops": 4, "combined_schemas": False,
         "needs_properties": True, "message_names": "plain"},
        "https://platform.openai.com/docs/api-reference/chat/create", "2026-11",
    ),
    Row(
        ("openai", "azure"), _REASONING,
        {"refused": SAMPLING | _PENALTIES | {"logit_bias"}},
        "https://platform.openai.com/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("openai", "azure"), _HYBRID, {"refused_thinking": SAMPLING | _PENALTIES},
        "https://platform.openai.com/docs/guides/latest-model", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^(o3|o4-mini|gpt-5)(?!.*-chat)", {"stops": 0},
        "https://platform.openai.com/docs/api-reference/chat/create#chat-create-stop", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^o[1-9]", {"efforts": ("low", "medium", "high")},
        "https://platform.openai.com/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^gpt-5(-mini|-nano|-codex|-\d{4}.*)?$",
        {"efforts": ("minimal", "low", "medium", "high")},
        "https://platform.openai.com/docs/guides/latest-model", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^gpt-5\.1", {"efforts": ("none", "low", "medium", "high")},
        "https://platform.openai.com/docs/guides/latest-model", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^gpt-5\.[2-5]", {"efforts": ("none", "low", "medium", "high", "xhigh")},
        "https://platform.openai.com/docs/guides/latest-model", "2026-11",
    ),
    Row(
        ("openai", "azure"), r"^gpt-(5\.([6-9]|\d\d)|[6-9])(?!.*-chat)",
        {"efforts": ("none", "low", "medium", "high", "xhigh", "max"), "thoughts_with_tools": False},
        # "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
        "https://github.com/BerriAI/litellm/pull/34569", "2026-11",
    ),
    # Anthropic
    Row(
        ("anthropic",), "",
        {"tool_names": ("A-Za-z0-9_-", 128), "call_ids": ("A-Za-z0-9_-", 256), "unique_call_ids": True,
         "blank_stops": False, "starts_with_user": True, "system": "first", "blank_answers": False,
         "combined_schemas": False},
        "https://platform.claude.com/docs/en/api/messages", "2026-11",
    ),
    Row(
        ("anthropic",), r"claude-(opus-4-([89]|\d\d)(?!\d)|(opus|sonnet|haiku|fable|mythos)-([5-9]|\d\d)(?!\d))",
        {"system": "after-user"},
        "https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages", "2026-11",
    ),
    Row(
        ("anthropic",), r"claude-sonnet-5(?!-[1-9](?!\d))", {"system": "first"},
        "https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages", "2026-11",
    ),
    Row(
        ("anthropic", "bedrock"), _LATER_CLAUDE, {"refused": SAMPLING},
        "https://platform.claude.com/docs/en/about-claude/models/migration-guide", "2026-11",
    ),
    Row(
        ("anthropic", "bedrock"), rf"({_LATER_CLAUDE}|claude-(opus|sonnet)-4-6)", {"prefill": "refused"},
        "https://platform.claude.com/docs/en/about-claude/models/migration-guide", "2026-11",
    ),
    Row(
        ("anthropic", "bedrock"), r"claude-opus-4-5", {"efforts": ("none", "low", "medium", "high")},
        "https://platform.claude.com/docs/en/build-with-claude/effort", "2026-11",
    ),
    Row(
        ("anthropic", "bedrock"), r"claude-(opus|sonnet)-4-6", {"efforts": ("none", "low", "medium", "high", "max")},
        "https://platform.claude.com/docs/en/build-with-claude/effort", "2026-11",
    ),
    # Amazon Bedrock
    Row(
        ("bedrock",), "",
        {"tool_names": USUAL_NAMES, "call_ids": ("A-Za-z0-9_-", 64), "unique_call_ids": True, "system": "first",
         "starts_with_user": True, "blank_answers": False},
        "https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolUseBlock.html", "2026-11",
    ),
    Row(
        ("bedrock",), r"anthropic\.", {"combined_schemas": False, "blank_stops": False, "cache_points": True,
         "cache_tools": True},
        "https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html", "2026-11",
    ),
    Row(
        ("bedrock",), r"amazon\.nova", {"stops": 4, "combined_schemas": False, "cache_points": True},
        "https://docs.aws.amazon.com/nova/latest/userguide/complete-request-schema.html", "2026-11",
    ),
    # Google
    Row(
        ("gemini",), "",
        {"tool_names": ("A-Za-z0-9_.:-", 64), "letter_first": True, "stops": 5, "system": "first",
         "starts_with_user": True, "blank_answers": False},
        "https://ai.google.dev/api/caching#FunctionDeclaration", "2026-11",
    ),
    # Providers with OpenAI's API
    Row(
        ("mistral",), "",
        {"tool_names": USUAL_NAMES, "system": "first", "prefill": "marked", "blank_answers": False,
         "whole_tools": "parameters"},
        "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
        "2026-11",
    ),
    Row(
        ("deepseek",), "",
        {"tool_names": USUAL_NAMES, "stops": 16, "formats": "object", "one_choice": True, "object_arguments": True},
        "https://api-docs.deepseek.com/api/create-chat-completion", "2026-11",
    ),
    Row(
        ("deepseek", "moonshot"), r"(?i)(deepseek-v([4-9]|\d\d)|kimi-k(2\.[5-9]|[3-9]))", {"forced_thoughts": False},
        # "Thinking mode does not support this tool_choice", "tool_choice 'specified' is incompatible with thinking"
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/1376", "2026-11",
    ),
    Row(
        ("deepseek",), r"reasoner",
        {"refused": frozenset({"temperature", "top_p", *_PENALTIES})},
        "https://api-docs.deepseek.com/guides/reasoning_model", "2026-11",
    ),
    Row(
        ("groq",), "", {"tool_names": USUAL_NAMES, "stops": 4, "one_choice": True, "formats_with_tools": False},
        "https://console.groq.com/docs/api-reference", "2026-11",
    ),
    Row(
        ("groq",), r"gpt-oss", {"efforts": ("low", "medium", "high")},
        "https://console.groq.com/docs/reasoning", "2026-11",
    ),
    Row(
        ("openrouter",), "",
        # It passes calls on to providers with rules of their own; these fit all of them but Mistral's.
        {"tool_names": USUAL_NAMES, "call_ids": ("A-Za-z0-9_-", 40), "stops": 4},
        "https://openrouter.ai/docs/api-reference/parameters", "2026-11",
    ),
    Row(
        ("together", "fireworks"), "", {"tool_names": USUAL_NAMES},
        "https://docs.together.ai/reference/chat-completions-1", "2026-11",
    ),
    Row(
        ("xai",), r"grok-(4|code|3-mini|[5-9])", {"refused": _PENALTIES, "stops": 0},
        "https://docs.x.ai/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("xai",), r"grok-3-mini", {"efforts": ("low", "high")},
        "https://docs.x.ai/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("openrouter",), r"(?i)claude", {"cache_points": True},
        "https://openrouter.ai/docs/features/prompt-caching", "2026-11",
    ),
    Row(
        ("moonshot",), "", {"tool_names": USUAL_NAMES, "letter_first": True},
        # "function name is invalid, must start with a letter"
        "https://github.com/MoonshotAI/kimi-cli/issues/1773", "2026-11",
    ),
    Row(
        ("moonshot", "provider", "compatible"), r"(?i)kimi", {"blank_answers": False},
        # "the message at position 8 with role 'assistant' must not be empty"
        "https://github.com/AstrBotDevs/AstrBot/issues/7200", "2026-11",
    ),
    Row(
        ("moonshot",), r"(?i)kimi-k(2\.[5-9]|[3-9])", {"refused": frozenset({"temperature", "top_p", *_PENALTIES})},
        "https://platform.moonshot.ai/docs/guide/kimi-k2-5-quickstart", "2026-11",
    ),
    Row(
        ("openai", "azure", "anthropic", "bedrock", "gemini", "mistral", "deepseek", "moonshot", "zai", "groq", "xai",
         "openrouter", "together", "fireworks", "cerebras", "provider"), "", {"paired_results": True},
        # "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
        "https://platform.openai.com/docs/guides/function-calling", "2026-11",
    ),
    Row(
        ("compatible",), r"(?i)(deepseek|kimi|claude|gemini|gpt-\d|mistral|devstral)", {"paired_results": True},
        "https://github.com/deepseek-ai/DeepSeek-V3/issues/1588", "2026-11",
    ),
    # Thoughts of earlier turns
    Row(
        ("openai", "azure", "tensorrt-llm", "tgi"), "", {"thoughts": ()},
        # They take no further fields, and their thoughts are not shown.
        "https://platform.openai.com/docs/api-reference/chat/create", "2026-11",
    ),
    Row(
        ("vllm", "sglang", "llama-server"), "",
        # Older and newer servers read one name or the other, and the model's template decides.
        {"thoughts": ("reasoning_content", "reasoning"), "thoughts_of": "all"},
        "https://docs.vllm.ai/en/latest/features/reasoning_outputs.html", "2026-11",
    ),
    Row(
        ("compatible",), "", {"thoughts": ("reasoning_content", "reasoning")},
        "https://docs.vllm.ai/en/latest/features/reasoning_outputs.html", "2026-11",
    ),
    Row(
        ("ollama", "openrouter", "together", "cerebras"), "", {"thoughts": ("reasoning",)},
        "https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks", "2026-11",
    ),
    Row(
        ("groq",), "", {"thoughts": ("reasoning",)},
        "https://console.groq.com/docs/api-reference", "2026-11",
    ),
    Row(
        ("mistral",), "", {"thoughts": ("content",)},
        "https://docs.mistral.ai/capabilities/reasoning", "2026-11",
    ),
    Row(
        ("deepseek", "moonshot", "provider", "compatible"),
        r"(?i)(deepseek.*(reasoner|v3\.[2-9]|v[4-9])|kimi-k(2-thinking|2\.[5-9]|[3-9]))",
        # "For turns that do perform tool calls, the reasoning_content must be fully passed back"; of other turns it is
        # ignored, or refused by the first deepseek-reasoner.
        {"thoughts": ("reasoning_content",), "needs_thoughts": True},
        "https://api-docs.deepseek.com/guides/thinking_mode", "2026-11",
    ),
    Row(
        ("provider", "compatible"), r"(?i)gemini-([3-9]|\d\d)", {"signs_calls": True},
        "https://ai.google.dev/gemini-api/docs/thought-signatures", "2026-11",
    ),
    Row(
        ("provider", "compatible"), r"(?i)gemini", {"named_results": True},
        # "GenerateContentRequest.contents[2].parts[0].function_response.name: Name cannot be empty."
        "https://github.com/pydantic/pydantic-ai/issues/1879", "2026-11",
    ),
    # Answers that go on from a last turn of the assistant
    Row(
        ("anthropic",), "", {"continues": True},
        "https://platform.claude.com/docs/en/build-with-claude/prompt-engineering/prefill-claudes-response", "2026-11",
    ),
    Row(
        ("bedrock",), r"anthropic\.", {"continues": True},
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-anthropic-claude-messages.html",
        "2026-11",
    ),
    Row(
        ("llama-server",), "", {"continues": True},
        "https://github.com/ggml-org/llama.cpp/pull/13174", "2026-11",
    ),
    Row(
        ("vllm", "sglang"), "",
        {"continues": True, "continue_fields": {"add_generation_prompt": False, "continue_final_message": True}},
        "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html", "2026-11",
    ),
    # Servers that render the model's chat template, or may
    Row(
        _TEMPLATED, "", {"system": "first", "object_arguments": True},
        # "System message must be at the beginning."
        "https://huggingface.co/Qwen/Qwen3.5-9B/blob/main/chat_template.jinja", "2026-11",
    ),
    Row(
        ("vllm", "sglang"), r"(?i)gpt-oss", {"efforts": ("low", "medium", "high")},
        "https://docs.vllm.ai/projects/recipes/en/latest/OpenAI/GPT-OSS.html", "2026-11",
    ),
    Row(
        ("mistral", "openrouter", "together", "fireworks", "provider", *_TEMPLATED), _MISTRAL,
        {"call_ids": ("A-Za-z0-9", 9), "call_id_length": 9, "answers_results": True},
        "https://github.com/mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
        "2026-11",
    ),
    Row(
        ("mistral",), "", {"call_ids": ("A-Za-z0-9", 9), "call_id_length": 9, "answers_results": True},
        "https://docs.mistral.ai/capabilities/function_calling", "2026-11",
    ),
    # Answers whose connection is closed early; servers without a row here bill all of them
    Row(
        ("openai", "azure", "anthropic", "deepseek", "fireworks", "together", "xai"), "", {"bills_unread": "whole"},
        # "For supported providers, this immediately stops model processing and billing." "For non-streaming requests or
        # unsupported providers, the model will continue processing and you will be billed for the complete response."
        "https://openrouter.ai/docs/api-reference/streaming", "2026-11",
    ),
    Row(
        ("vertex-anthropic", "gemini", "groq", "mistral"), "", {"bills_unread": "all"},
        "https://openrouter.ai/docs/api-reference/streaming", "2026-11",
    ),
    Row(
        ("bedrock",), "", {"bills_unread": "all"},
        # "AWS Bedrock (via checking CUR logs) charges the full token usage for this scenario."
        "https://github.com/BerriAI/litellm/issues/34147", "2026-11",
    ),
    Row(
        (*_TEMPLATED, "triton"), "", {"bills_unread": "no"},
        # They are one's own, and stop a request whose client has disconnected.
        "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/utils.py", "2026-11",
    ),
    # Models whose thoughts are billed and not shown, or only in part
    Row(
        ("openai", "azure", "openrouter", "provider", "compatible"), r"(^|/)(o[1-9]|gpt-5(?![.\d]))(?!.*-chat)",
        {"hides_thoughts": "always"},
        "https://platform.openai.com/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("openai", "azure", "openrouter", "provider", "compatible"), r"(^|/)gpt-(5\.\d|[6-9])(?!.*-chat)",
        {"hides_thoughts": "asked"},
        "https://platform.openai.com/docs/guides/latest-model", "2026-11",
    ),
    Row(
        ("gemini", "openrouter", "provider", "compatible"), r"(?i)gemini-(2\.5-(?!flash-lite)|[3-9])",
        {"hides_thoughts": "always"},
        "https://ai.google.dev/gemini-api/docs/thinking", "2026-11",
    ),
    Row(
        ("xai", "openrouter"), r"(^|/)grok-([4-9]|3-mini)(?!.*non-reasoning)", {"hides_thoughts": "always"},
        "https://docs.x.ai/docs/guides/reasoning", "2026-11",
    ),
    Row(
        ("anthropic", "bedrock", "openrouter"), r"claude", {"hides_thoughts": "asked"},
        # "You're charged for the full thinking tokens generated by the original request, not the summary tokens."
        "https://platform.claude.com/docs/en/build-with-claude/extended-thinking", "2026-11",
    ),
]  # fmt: skip

# By the end of a server's host name, for servers that the catalogue gives by their address.
HOSTS = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "openrouter.ai": "openrouter",
    "api.groq.com": "groq",
    "api.x.ai": "xai",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zai",
    "api.cerebras.ai": "cerebras",
}
_OLLAMA_PORT = 11434
_OF_KIND: dict[RemoteKind, str] = {
    "openai": "compatible",
    "openai-provider": "provider",
    "triton-tensorrt-llm": "triton",
    "triton-vllm": "triton",
}


def server_of(remote: RemoteSpec, provider: ProviderName | None = None) -> str:
    """Return the name of the server in `ROWS`: the `provider` of the catalogue, else by its address, else its kind."""
    if provider is not None and provider != "vertex":
        return provider
    if remote.kind in ("openai", "openai-provider"):
        address = urlsplit(remote.base_url)
        host = address.hostname or ""
        for end, name in HOSTS.items():
            if host == end or host.endswith(f".{end}"):
                return name
        with_port = address.netloc.rpartition(":")[2]
        if remote.kind == "openai" and with_port == str(_OLLAMA_PORT):
            return "ollama"
    return _OF_KIND.get(remote.kind, remote.kind)


@cache
def rules_of(server: str, model: str) -> Rules:
    """Return the rules of a server and one of its models: later rows add to earlier ones, or replace them. Models of a
    maker on Vertex have their maker's rules, too."""
    maker = server.removeprefix("vertex-")
    fields: dict[str, Any] = {"server": maker}
    for row in ROWS:
        is_its = not row.servers or server in row.servers or maker in row.servers
        if is_its and (not row.models or re.search(row.models, model)):
            fields |= row.rules
    return Rules(**fields)
