"""How servers say that a prompt is too long, or that a model cannot do what is asked: rows of wordings with sources."""

import re
from typing import NamedTuple

from tiers.errors import CONTEXT_CODE, TierError
from tiers.remote.lenient_json import whole
from tiers.remote.openai_format import WireError
from tiers.server_words import MOST_CONTEXT

MOST_READ = 4096
"""Characters of a refusal: some servers repeat the request in it, whose texts are no wording of theirs."""


class ServerSaidError(TierError):
    """A failure that a server reports after it has answered with 200: `said`, in its words."""

    def __init__(self, said: WireError) -> None:
        super().__init__(whole(said.message))
        self.said = said


class TooLong(NamedTuple):
    """The tokens of a prompt that a server refuses, of the answer that was asked for, and the most of both; 0 for what
    it does not say. `in_bytes`: the request's size is what is refused."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    max_context: int = 0
    in_bytes: bool = False


class Wording(NamedTuple):
    """One way to say it. `pattern`: without regard to case; its groups `prompt`, `answer`, `limit` and `total` (prompt
    and answer) are counts of tokens. `source`: where it is documented or was reported; `seen`: when it was put here."""

    servers: str
    pattern: str
    source: str
    seen: str = "2026-11"


_N = r"[\d,]+"
# The wordings that coding agents recognise, gathered from reports of their users.
_GATHERED = "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints"
_TENSORRT = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/executor/base_worker.py"
_TGI = "https://github.com/huggingface/text-generation-inference/blob/main/router/src/validation.rs"
_CLAUDE = "https://platform.claude.com/docs/en/build-with-claude/context-windows"
# The first that matches counts: those with more counts come first.
WORDINGS = [
    Wording(
        "vLLM",
        rf"context length is (?P<limit>{_N}) tokens.{{0,30}}requested (?P<answer>{_N}) output tokens and your prompt "
        rf"contains (?:at least )?(?P<prompt>{_N})",
        _VLLM,
    ),
    Wording(
        "vLLM",
        rf"is too large: (?P<answer>{_N})\..{{0,60}}context length is (?P<limit>{_N}) tokens and your request has "
        rf"(?P<prompt>{_N}) input tokens",
        _VLLM,
    ),
    Wording(
        "vLLM",
        rf"passed (?P<prompt>{_N}) input tokens and requested (?P<answer>{_N}) output tokens.{{0,40}}context length is "
        rf"only (?P<limit>{_N})",
        _VLLM,
    ),
    Wording(
        "OpenAI, Azure, DeepSeek, OpenRouter, vLLM, SGLang",
        rf"maximum context length (?:is|of) (?P<limit>{_N}) tokens.{{0,30}}requested (?:about |a total of )?"
        rf"(?P<total>{_N}) tokens.{{0,3}}?(?P<prompt>{_N}) (?:tokens from|in|of|for).{{0,40}}?(?P<answer>{_N}) "
        r"(?:tokens )?(?:in|for)",
        "https://platform.openai.com/docs/guides/error-codes",
    ),
    Wording(
        "OpenAI, Azure, OpenRouter, vLLM",
        rf"maximum context length (?:is|of) (?P<limit>{_N}).{{0,60}}(?:resulted in|requested|has) (?:about )?"
        rf"(?P<prompt>{_N}) (?:input )?tokens",
        "https://github.com/smol-ai/developer/issues/7",
    ),
    Wording(
        "OpenAI's Responses",
        r"exceeds? the (?:model's )?context window",
        "https://github.com/openai/codex/blob/main/codex-rs/codex-api/src/sse/responses.rs",
    ),
    Wording(
        "vLLM",
        rf"prompt \((?:total )?length (?P<prompt>{_N})\) is longer than the maximum model length of (?P<limit>{_N})|"
        rf"prompt \((?P<prompt_old>{_N}) tokens\) is too long and exceeds limit of (?P<limit_old>{_N})",
        _VLLM,
    ),
    Wording(
        "SGLang, Together",
        rf"input \(?(?P<prompt>{_N}) tokens\)? is longer than the model's context length \((?P<limit>{_N})",
        _GATHERED,
    ),
    Wording(
        "OpenAI-compatible servers, SGLang",
        rf"input length \(?(?P<prompt>{_N})(?: tokens)?\)? exceeds (?:the )?(?:model's )?maximum (?:context )?"
        rf"(?:allowed )?(?:input )?length(?: of)? \(?(?P<limit>{_N})",
        _GATHERED,
    ),
    Wording(
        "vLLM's pooling models",
        rf"prompt length (?P<prompt>{_N}) exceeds the max_model_len (?P<limit>{_N})",
        _VLLM,
    ),
    Wording(
        "llama-cpp-python",
        rf"requested tokens \((?P<prompt>{_N})\) exceed context window of (?P<limit>{_N})",
        "https://github.com/abetlen/llama-cpp-python/issues/307",
    ),
    Wording(
        "OpenAI's embeddings",
        rf"maximum input length is (?P<limit>{_N}) tokens",
        "https://platform.openai.com/docs/api-reference/embeddings",
    ),
    Wording(
        "watsonx, TGIS",
        rf"number of input tokens (?P<prompt>{_N}) cannot exceed the total tokens limit (?P<limit>{_N})|"
        rf"input tokens \((?P<prompt_old>{_N})\) plus prefix length \(\d+\) must be < (?P<limit_old>{_N})",
        "https://github.com/IBM/text-generation-inference",
    ),
    Wording(
        "SambaNova",
        rf"prompt is (?P<prompt>{_N}) tokens long.{{0,120}}maximum supported sequence length is just (?P<limit>{_N})",
        "https://docs.sambanova.ai/cloud/docs/capabilities/api-error-codes",
    ),
    Wording(
        "Cloudflare",
        rf"input and maximum output tokens \((?P<total>{_N})\) exceeded this model context window limit "
        rf"\((?P<limit>{_N})",
        "https://developers.cloudflare.com/workers-ai/platform/errors/",
    ),
    Wording(
        "llama.cpp",
        rf"request \((?P<prompt>{_N}) tokens\) exceeds the available context size \((?P<limit>{_N})",
        "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    ),
    Wording("llama.cpp", r"exceeds the available context size|exceed_context_size_error", _GATHERED),
    Wording(
        "DwarfStar",
        rf"prompt has (?P<prompt>{_N}) tokens?, but the configured context size is (?P<limit>{_N})",
        _GATHERED,
    ),
    Wording(
        "Ollama",
        r"prompt too long; exceeded (?:max )?context length|input length exceeds (?:the |maximum )?context length",
        _GATHERED,
    ),
    Wording(
        "TGI, Together",
        rf"`?inputs`? tokens \+ `?max_new_tokens`? must be <= (?P<limit>{_N})\. Given: (?P<prompt>{_N}) `?inputs`? "
        rf"tokens and (?P<answer>{_N})",
        _TGI,
    ),
    Wording("TGI, Together", rf"`inputs` must have less than (?P<limit>{_N}) tokens\. Given: (?P<prompt>{_N})", _TGI),
    Wording("TGI, Together", r"`?inputs`? tokens \+ `?max_new_tokens`? must be", _TGI),
    Wording(
        "TensorRT-LLM",
        rf"prompt length \((?P<prompt>{_N})\) exceeds maximum input length \((?P<limit>{_N})|"
        rf"max_seq_len \((?P<limit_old>{_N})\) - `?splited_prompt_len`? \((?P<prompt_old>{_N})\)",
        _TENSORRT,
    ),
    Wording(
        "TensorRT-LLM",
        rf"sum of (?:the )?prompt length \((?P<prompt>{_N}).{{0,60}}should not exceed max_(?:seq_len|num_tokens) "
        rf"\((?P<limit>{_N})",
        _TENSORRT,
    ),
    Wording(
        "LM Studio",
        rf"first (?P<prompt>{_N}) tokens when context.{{0,80}}context length of only (?P<limit>{_N}) tokens",
        "https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues",
    ),
    Wording(
        "LM Studio",
        rf"greater than the context length|n_keep[:=]? \(?(?P<prompt>{_N})\)? >= n_ctx[:=]? \(?(?P<limit>{_N})",
        _GATHERED,
    ),
    Wording(
        "llama.cpp",
        rf"input \((?P<prompt>{_N}) tokens\) is too large to process.{{0,80}}batch size: (?P<limit>{_N})|"
        r"too large to process\. increase the physical batch size|prompt is too big compared to KV size",
        "https://github.com/ggml-org/llama.cpp/issues/12836",
    ),
    Wording(
        "Anthropic, Bedrock, Vertex AI",
        rf"prompt is too long: (?P<prompt>{_N}) tokens > (?P<limit>{_N}) maximum",
        _CLAUDE,
    ),
    Wording("Anthropic", rf"exceeds? context limit: (?P<prompt>{_N}) \+ (?P<answer>{_N}) > (?P<limit>{_N})", _CLAUDE),
    Wording(
        "Fireworks",
        rf"prompt is too long: (?P<prompt>{_N}), model maximum context length: (?P<limit>{_N})",
        "https://github.com/fw-ai/cookbook/issues/134",
    ),
    Wording("Anthropic, Bedrock, Vertex AI", r"prompt is too long|exceeds? context limit", _CLAUDE),
    Wording(
        "Gemini",
        rf"input token count (?:\((?P<prompt>{_N})\) )?exceeds the maximum number of tokens allowed \(?(?P<limit>{_N})",
        _GATHERED,
    ),
    Wording(
        "Vertex AI",
        rf"input token count is (?P<prompt>{_N}) but (?:the )?model only supports up to (?P<limit>{_N})",
        "https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/api-errors",
    ),
    Wording(
        "Gemini", r"exceeds the maximum number of tokens allowed|request payload size exceeds the limit", _GATHERED
    ),
    Wording(
        "Bedrock",
        r"input is too long for requested model|input tokens exceeded|number of input tokens exceeds|"
        r"expected maxLength: \d+, actual: \d+|"
        rf"too many input tokens(?:.{{0,20}}max input tokens: (?P<limit>{_N}).{{0,40}}token count: (?P<prompt>{_N}))?",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html",
    ),
    Wording(
        "Mistral",
        rf"prompt contains (?P<prompt>{_N}) tokens.{{0,60}}model with (?P<limit>{_N}) maximum context length",
        _GATHERED,
    ),
    Wording(
        "Groq, Cerebras",
        rf"reduce the length of the messages(?: or completion\. Current length is (?P<prompt>{_N}) while limit is "
        rf"(?P<limit>{_N}))?",
        "https://console.groq.com/docs/errors",
    ),
    Wording(
        "Groq, of more tokens than a minute's",
        rf"request too large for model.{{0,200}}limit (?P<limit>{_N}), requested (?P<prompt>{_N})",
        "https://console.groq.com/docs/rate-limits",
    ),
    Wording("xAI", rf"maximum prompt length is (?P<limit>{_N}) but the request contains (?P<prompt>{_N})", _GATHERED),
    Wording(
        "Cohere",
        rf"too many tokens: .{{0,80}}cannot exceed (?P<limit>{_N}) - received (?P<prompt>{_N})|too many tokens: \w",
        "https://github.com/cohere-ai/sandbox-topically/issues/4",
    ),
    Wording(
        "Moonshot", rf"exceeded model token limit(?:: (?P<limit>{_N}))?(?: \(requested: (?P<prompt>{_N})\))?", _GATHERED
    ),
    Wording("Z.ai", r"prompt exceeds max length", "https://docs.z.ai/api-reference/api-code"),
    Wording(
        "DashScope",
        rf"range of input length should be \[\d+, (?P<limit>{_N})\]",
        "https://www.alibabacloud.com/help/en/model-studio/error-code",
    ),
    Wording(
        "SiliconFlow",
        rf"length of prompt_tokens \((?P<prompt>{_N})\) must be less than max_seq_len \((?P<limit>{_N})",
        "https://github.com/langgenius/dify/issues/19394",
    ),
    Wording("Moonshot", r"total message size \d+ exceeds limit", "https://github.com/MoonshotAI/kimi-code/issues/476"),
    Wording("MiniMax", r"context window exceeds limit", _GATHERED),
    Wording(
        "TabbyAPI",
        rf"(?:prompt|context) length (?P<prompt>{_N}) is greater than max_seq_len (?P<limit>{_N})",
        "https://github.com/theroyallab/tabbyAPI/blob/main/backends/exllamav2/model.py",
    ),
    Wording(
        "GitHub Copilot", rf"prompt token count of (?P<prompt>{_N}) exceeds the limit of (?P<limit>{_N})", _GATHERED
    ),
    Wording(
        "GitHub Models",
        rf"request body too large for .{{1,80}} model\. Max size: (?P<limit>{_N}) tokens",
        "https://docs.github.com/en/github-models",
    ),
    Wording(
        "any other, with counts",
        rf"(?:prompt|input|message|context)s?\b[^.]{{0,40}}?(?P<prompt>{_N}) tokens?\b[^.]{{0,60}}(?:max|limit|"
        rf"supports|than)[^.\d]{{0,30}}(?P<limit>{_N})|(?:number of|total|input|prompt) tokens\W{{1,3}}"
        rf"(?P<prompt_old>{_N})\W.{{0,12}}(?:above|exceeds?|over|larger)\b.{{0,30}}(?:limit|max)\D{{0,20}}(?P<limit_old>{_N})",
        _GATHERED,
    ),
    Wording(
        "any other",
        r"prompt (?:tokens? |is )*too large|too many tokens(?!,? (?:per|please))|"
        r"(?:request|prompt|input) too large: \d|"
        r"exceed(?:s|ed)? (?:the )?max(?:imum)? (?:input|message|prompt|context) tokens|message is too long|"
        r"(?:tokens? in the prompt|input tokens?|prompt length \d+) exceed|tokens of context exceeded|"
        r"length of messages must be less|max tokens of \d+ exceeded|tokens? limit exceeded|messages? too long|"
        r"(?:prompt|input|context|total)\b[^.]{0,40}\btokens?\b[^.]{0,40}exceeds? the limit|"
        r"maximum number of tokens per request",
        _GATHERED,
    ),
    Wording(
        "any other",
        rf"context length (?:is|of) (?:only )?(?P<limit>{_N})|long context (?:beta|requests)|"
        r"\b(?:prompt|inputs?|context|conversation|history)(?: (?:tokens?|texts?|length|size|is|are|was))* "
        r"too (?:long|big)\b|(?:输入|上下文|提示词|对话|prompt|tokens?)[^。，]{0,12}(?:过长|超长|超限|超过|超出)|"
        r"(?:exceed(?:s|ed|ing)?|longer than|greater than|beyond) (?:the |its |this |that )?(?:model'?s? )?"
        r"(?:maximum |max |available |allowed )?context[ _-]?(?:length|window|size|limit)|"
        r"context[ _-]?(?:length|window|size|limit)[ _](?:was |is |has been )?exceeded|token limit exceeded",
        _GATHERED,
    ),
]
CODES = frozenset({
    CONTEXT_CODE, "exceed_context_size_error", "request_too_large", "context_window_exceeded",
    "tokens_limit_reached", "model_max_prompt_tokens_exceeded", "model_context_window_exceeded", "1261",
})  # fmt: skip
"""Codes and types of errors that say it whatever the words."""
_COMPILED = [re.compile(wording.pattern, re.IGNORECASE | re.DOTALL) for wording in WORDINGS]
_TOO_LARGE = 413
_UNABLE = re.compile(
    r"\b(?:unsupported|not supported|(?:does|do) not support|(?:does|do)n't support|not available (?:for|with|on)|"
    r"(?:cannot|can't|can not|may not) be (?:used|combined|set) (?:together |at the same time )?(?:with|when|for)|"
    r"not (?:enabled|implemented|allowed) (?:for|with|on) (?:(?:this|the) model|models/)|"
    r"is not a (?:chat|multimodal|vision) model|incompatible with|only supported in v1/responses|not accessible via|"
    r"tool_choice.{0,40}only|unknown variant \W?image_url|at most 0 (?:image|audio|video)\w*|"
    r"illegal base64 data at input byte \d|invalid value: 'input_audio)\b",
    re.IGNORECASE,
)


def too_long(error: WireError, status: int = 400) -> TooLong | None:
    """Return what a refusal with `status` tells of a prompt that is too long; None if that is not what it says."""
    text = error.words[:MOST_READ]
    for pattern in _COMPILED:
        if (said := pattern.search(text)) is not None:
            return _counts(said.groupdict())
    if str(error.code) in CODES or error.type in CODES or status == _TOO_LARGE:
        return TooLong(in_bytes=status == _TOO_LARGE and error.code != CONTEXT_CODE)
    return None


def is_unable(error: WireError) -> bool:
    """Return whether a refusal says that the model, or its server, cannot do what is asked at all."""
    return _UNABLE.search(error.words[:MOST_READ]) is not None


def _counts(said: dict[str, str | None]) -> TooLong:
    prompt, answer, limit, total = (_count(said.get(name)) for name in ("prompt", "answer", "limit", "total"))
    prompt, limit = prompt or _count(said.get("prompt_old")), limit or _count(said.get("limit_old"))
    if not prompt and total > answer:
        prompt = total - answer
    return TooLong(prompt, answer, limit)


def _count(text: str | None) -> int:
    digits = (text or "").replace(",", "")
    count = int(digits) if 0 < len(digits) < 12 else 0
    return count if count <= MOST_CONTEXT else 0
