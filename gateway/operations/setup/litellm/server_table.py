"""LiteLLM's names of providers: where AIO has the same one, and the addresses of those with OpenAI's API.

Addresses and variables are those of LiteLLM's own code, read in November 2026:
https://github.com/BerriAI/litellm/blob/main/litellm/litellm_core_utils/get_llm_provider_logic.py, the files
`litellm/llms/*/chat/transformation.py`, and https://github.com/BerriAI/litellm/blob/main/litellm/llms/openai_like/providers.json.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tiers.catalog.tier_spec import ProviderName, RemoteKind

PROVIDERS: Mapping[str, ProviderName] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "azure_text": "azure",
    "bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "deepseek": "deepseek",
    "fireworks_ai": "fireworks",
    "gemini": "gemini",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "together_ai": "together",
    "vertex_ai": "vertex",
    "vertex_ai_beta": "vertex",
    "xai": "xai",
}


class OpenAiServer(NamedTuple):
    """A server with OpenAI's API: its kind, its usual address and variable, and what its address ends in."""

    kind: RemoteKind = "openai"
    url: str = ""
    key: str | None = None
    path: str = ""


SERVERS: Mapping[str, OpenAiServer] = {
    "hosted_vllm": OpenAiServer("vllm"),
    "vllm": OpenAiServer("vllm"),
    "ollama": OpenAiServer(url="http://localhost:11434", path="/v1"),
    "ollama_chat": OpenAiServer(url="http://localhost:11434", path="/v1"),
    "lm_studio": OpenAiServer(url="http://localhost:1234/v1"),
    "llamafile": OpenAiServer(url="http://localhost:8080/v1"),
    "docker_model_runner": OpenAiServer(url="http://localhost:22088/engines/llama.cpp/v1"),
    "huggingface": OpenAiServer("tgi", path="/v1"),
    "xinference": OpenAiServer(url="http://127.0.0.1:9997/v1"),
    "infinity": OpenAiServer(),
    "oobabooga": OpenAiServer(path="/v1"),
    "litellm_proxy": OpenAiServer(),
    "openai_like": OpenAiServer(),
    "custom_openai": OpenAiServer(),
    "custom": OpenAiServer(),
    "aiohttp_openai": OpenAiServer(),
    "databricks": OpenAiServer(key="DATABRICKS_API_KEY"),
    "ai21": OpenAiServer(url="https://api.ai21.com/studio/v1", key="AI21_API_KEY"),
    "ai21_chat": OpenAiServer(url="https://api.ai21.com/studio/v1", key="AI21_API_KEY"),
    "aihubmix": OpenAiServer(url="https://aihubmix.com/v1", key="AIHUBMIX_API_KEY"),
    "cerebras": OpenAiServer(url="https://api.cerebras.ai/v1", key="CEREBRAS_API_KEY"),
    "chutes": OpenAiServer(url="https://llm.chutes.ai/v1", key="CHUTES_API_KEY"),
    "codestral": OpenAiServer(url="https://codestral.mistral.ai/v1", key="CODESTRAL_API_KEY"),
    # Of Cohere LiteLLM speaks its own API; this is the one with OpenAI's form, for the same models and key.
    "cohere": OpenAiServer(url="https://api.cohere.ai/compatibility/v1", key="COHERE_API_KEY"),
    "cohere_chat": OpenAiServer(url="https://api.cohere.ai/compatibility/v1", key="COHERE_API_KEY"),
    "dashscope": OpenAiServer(url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1", key="DASHSCOPE_API_KEY"),
    "deepinfra": OpenAiServer(url="https://api.deepinfra.com/v1/openai", key="DEEPINFRA_API_KEY"),
    "featherless_ai": OpenAiServer(url="https://api.featherless.ai/v1", key="FEATHERLESS_API_KEY"),
    "friendliai": OpenAiServer(url="https://api.friendli.ai/serverless/v1", key="FRIENDLIAI_API_KEY"),
    "github": OpenAiServer(url="https://models.inference.ai.azure.com", key="GITHUB_API_KEY"),
    "gmi": OpenAiServer(url="https://api.gmi-serving.com/v1", key="GMI_API_KEY"),
    "hyperbolic": OpenAiServer(url="https://api.hyperbolic.xyz/v1", key="HYPERBOLIC_API_KEY"),
    "jina_ai": OpenAiServer(url="https://api.jina.ai/v1", key="JINA_AI_API_KEY"),
    "meta_llama": OpenAiServer(url="https://api.llama.com/compat/v1", key="LLAMA_API_KEY"),
    "minimax": OpenAiServer(url="https://api.minimax.io/v1", key="MINIMAX_API_KEY"),
    "moonshot": OpenAiServer(url="https://api.moonshot.ai/v1", key="MOONSHOT_API_KEY"),
    "nano-gpt": OpenAiServer(url="https://nano-gpt.com/api/v1", key="NANOGPT_API_KEY"),
    "nebius": OpenAiServer(url="https://api.studio.nebius.ai/v1", key="NEBIUS_API_KEY"),
    "nvidia_nim": OpenAiServer(url="https://integrate.api.nvidia.com/v1", key="NVIDIA_NIM_API_KEY"),
    "perplexity": OpenAiServer(url="https://api.perplexity.ai", key="PERPLEXITYAI_API_KEY"),
    "poe": OpenAiServer(url="https://api.poe.com/v1", key="POE_API_KEY"),
    "publicai": OpenAiServer(url="https://api.publicai.co/v1", key="PUBLICAI_API_KEY"),
    "sambanova": OpenAiServer(url="https://api.sambanova.ai/v1", key="SAMBANOVA_API_KEY"),
    "scaleway": OpenAiServer(url="https://api.scaleway.ai/v1", key="SCW_SECRET_KEY"),
    "synthetic": OpenAiServer(url="https://api.synthetic.new/openai/v1", key="SYNTHETIC_API_KEY"),
    "veniceai": OpenAiServer(url="https://api.venice.ai/api/v1", key="VENICE_AI_API_KEY"),
    "vercel_ai_gateway": OpenAiServer(url="https://ai-gateway.vercel.sh/v1", key="VERCEL_AI_GATEWAY_API_KEY"),
    "volcengine": OpenAiServer(url="https://ark.cn-beijing.volces.com/api/v3", key="VOLCENGINE_API_KEY"),
    "voyage": OpenAiServer(url="https://api.voyageai.com/v1", key="VOYAGE_API_KEY"),
    "xiaomi_mimo": OpenAiServer(url="https://api.xiaomimimo.com/v1", key="XIAOMI_MIMO_API_KEY"),
    "zai": OpenAiServer(url="https://api.z.ai/api/paas/v4", key="ZAI_API_KEY"),
}

RERANKERS: Mapping[str, str] = {"cohere": "https://api.cohere.com/v2", "cohere_chat": "https://api.cohere.com/v2"}
"""Addresses before `/rerank` where they are others."""

BARE: Mapping[str, tuple[str, ...]] = {
    "openai": (
        "gpt-", "o1", "o3", "o4", "chatgpt-", "text-embedding-", "dall-e", "whisper-", "tts-", "omni-moderation",
        "text-moderation",
    ),
    "anthropic": ("claude-",),
    "vertex_ai": ("gemini-",),
    "cohere": ("command-", "embed-", "rerank-"),
    "bedrock": ("anthropic.", "amazon.", "meta.", "mistral.", "cohere.", "ai21.", "us.", "eu.", "apac.", "global."),
}  # fmt: skip
"""Models that LiteLLM knows without a provider."""
