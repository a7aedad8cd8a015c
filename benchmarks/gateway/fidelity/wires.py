"""The wires of the matrix: how the catalogue names each kind of server, and the state that its turns carry."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

State = Literal["", "seals", "reasoning_content", "reasoning", "reasoning_details", "content", "extra_content"]


class Wire(NamedTuple):
    """`entry`: of the tier, before its address. `path`: of its base URL. `models`: of its two tiers. `state`: what a
    turn carries that the server needs back; empty for none. `ids`: the form of call ids."""

    name: str
    entry: str
    path: str
    models: tuple[str, str]
    state: State
    ids: str = "{name}_{number}"


_SERVER = 'kind = "{kind}"\nmax_context = 200000\n'
_MISTRAL_IDS = "{short}{number:08d}"


def _provider(name: str, path: str, models: tuple[str, str], state: State, ids: str = "{name}_{number}") -> Wire:
    return Wire(name, f'provider = "{name}"\nurl = ', path, models, state, ids)


def _server(name: str, kind: str, state: State, models: tuple[str, str] = ("qwen3-8b", "qwen3-32b")) -> Wire:
    return Wire(name, f"[tiers.remote]\n{_SERVER.format(kind=kind)}base_url = ", "/v1", models, state)


WIRES = (
    _provider("anthropic", "/v1", ("claude-sonnet-4-5", "claude-opus-4-5"), "seals"),
    _provider("openai", "/v1", ("gpt-5", "gpt-5-mini"), "seals"),
    _provider("gemini", "/v1beta", ("gemini-3-flash", "gemini-3-pro"), "seals"),
    _provider("azure", "/openai/v1", ("gpt-5", "gpt-5-mini"), "seals"),
    _provider("bedrock", "/bedrock", ("anthropic.claude-sonnet-4-5-v1:0", "anthropic.claude-opus-4-5-v1:0"), "seals"),
    Wire(
        "vertex", 'provider = "vertex"\nurl = ', "/v1/projects/p/locations/global",
        ("gemini-3-flash", "gemini-3-pro"), "seals",
    ),
    Wire(
        "vertex-claude", 'provider = "vertex"\nurl = ', "/v1/projects/p/locations/global",
        ("claude-sonnet-4-5@20250929", "claude-opus-4-5@20251101"), "seals",
    ),
    _provider("openrouter", "/api/v1", ("z-ai/glm-4.6", "qwen/qwen3-max"), "reasoning_details"),
    _provider("mistral", "/v1", ("magistral-medium-latest", "magistral-small-latest"), "content", _MISTRAL_IDS),
    _provider("deepseek", "/v1", ("deepseek-reasoner", "deepseek-v4"), "reasoning_content"),
    _provider("groq", "/openai/v1", ("openai/gpt-oss-120b", "openai/gpt-oss-20b"), "reasoning"),
    _server("vllm", "vllm", "reasoning_content"),
    _server("sglang", "sglang", "reasoning_content"),
    _server("llama.cpp", "llama-server", "reasoning_content"),
    _server("ollama", "openai", "reasoning"),
    _server("gemini-chat", "openai", "extra_content", ("gemini-3-flash", "gemini-3-pro")),
)  # fmt: skip
BY_NAME = {wire.name: wire for wire in WIRES}
OLLAMA_PORT = 11434
"""By which an Ollama is known."""
KEYS = {
    f"{name}_API_KEY": "unused"
    for name in ("ANTHROPIC", "OPENAI", "GEMINI", "AZURE_OPENAI", "OPENROUTER", "MISTRAL", "DEEPSEEK", "GROQ")
} | {"AWS_BEARER_TOKEN_BEDROCK": "unused", "GOOGLE_CLOUD_PROJECT": "p"}


def installed_wires() -> Sequence[Wire]:
    """Those whose libraries are installed: Vertex AI needs google-auth."""
    has_google = find_spec("google") is not None and find_spec("google.auth") is not None
    return [wire for wire in WIRES if has_google or not wire.name.startswith("vertex")]


def groups(names: Sequence[str]) -> list[Sequence[str]]:
    """The wires of one catalogue each, which has at most eight tiers."""
    return [names[at : at + 4] for at in range(0, len(names), 4)]


def catalogue(origin: str, ollama: str, wires: Sequence[Wire]) -> str:
    """The catalogue of two tiers for each wire: `NAME` and `NAME-b`. `origin`: the provider's address without a path;
    `ollama`: its address at Ollama's port."""
    entries = ['name = "fidelity"\n']
    for wire in wires:
        base = f"{ollama if wire.name == 'ollama' else origin}/{wire.name}{wire.path}"
        for end, model in zip(("", "-b"), wire.models, strict=True):
            price = "price = { input_usd_per_million = 1, output_usd_per_million = 1 }"
            entries.append(f'[[tiers]]\nname = "{wire.name}{end}"\n{price}\n{wire.entry}"{base}"\nmodel = "{model}"\n')
    return "".join(entries)


def service_account(token_url: str) -> str:
    """The file of a Google service account whose tokens `token_url` gives."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account: dict[str, Any] = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "k",
        "private_key": key.private_bytes(*form).decode(),
        "client_email": "a@p.iam.gserviceaccount.com",
        "token_uri": token_url,
    }
    return json.dumps(account)
