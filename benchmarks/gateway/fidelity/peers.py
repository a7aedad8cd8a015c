"""Other gateways in front of the recording provider: what each reads so that its models have the names of the wires."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.gateway.fidelity.wires import BY_NAME, Wire


class Peer(NamedTuple):
    """Another gateway. `providers`: its name of each wire that it has. `start`: how it is started. `config`: the file
    that it reads, made of the provider's address and these names; None if it has none. `headers`: what a request for a
    wire has to say, made of the same."""

    name: str
    providers: dict[str, str]
    start: str
    config: Callable[[str, dict[str, str]], str] | None = None
    headers: Callable[[str, str, Wire], dict[str, str]] | None = None


def _litellm(origin: str, providers: dict[str, str]) -> str:
    lines = ["model_list:"]
    for name, provider in providers.items():
        wire = BY_NAME[name]
        # Its clients of Anthropic add the version to the address themselves.
        base = f"{origin}/{name}{'' if name == 'anthropic' else wire.path}"
        for end, model in zip(("", "-b"), wire.models, strict=True):
            named = f"model: {provider}/{model}, api_base: {base}, api_key: unused"
            lines += [f"  - model_name: {name}{end}", f"    litellm_params: {{{named}}}"]
    lines += ["litellm_settings: {drop_params: true, num_retries: 0}", "router_settings: {disable_cooldowns: true}"]
    return "\n".join(lines) + "\n"


def _switchyard(origin: str, providers: dict[str, str]) -> str:
    parts = ["schema_version = 1"]
    for name, form in providers.items():
        wire = BY_NAME[name]
        client = f'format = "{form}"\nbase_url = "{origin}/{name}{wire.path}"\napi_key_env = "UPSTREAM_KEY"'
        parts.append(f'[llm_clients."{name}"]\n{client}')
        for end, model in zip(("", "-b"), wire.models, strict=True):
            parts.append(f'[targets."{name}{end}"]\nid = "{model}"\nllm_client = "{name}"')
            parts.append(f'[routes."{name}{end}"]\nid = "{name}{end}"\ntype = "passthrough"\ntarget = "{name}{end}"')
    return "\n".join(parts) + "\n"


def _portkey(origin: str, provider: str, wire: Wire) -> dict[str, str]:
    headers = {"x-portkey-provider": provider, "x-portkey-custom-host": f"{origin}/{wire.name}{wire.path}"}
    return headers | {"authorization": "Bearer unused"}


_OPENAI_COMPATIBLE = ("openrouter", "mistral", "deepseek", "groq", "vllm")
PEERS = (
    Peer(
        "LiteLLM",
        {name: name for name in ("anthropic", "openai", "gemini", "openrouter", "mistral", "deepseek", "groq")}
        | {"vllm": "hosted_vllm"},
        "litellm --config FILE --port 8104 --num_workers 1",
        config=_litellm,
    ),
    Peer(
        "Portkey",
        {name: name for name in ("anthropic", "openai", "openrouter", "deepseek", "groq")}
        | {"gemini": "google", "mistral": "mistral-ai", "vllm": "openai"},
        "node node_modules/@portkey-ai/gateway/build/start-server.js --port=8106 --headless",
        headers=_portkey,
    ),
    Peer(
        "Switchyard",
        {"anthropic": "anthropic_messages", "openai": "openai_responses"}
        | dict.fromkeys(_OPENAI_COMPATIBLE, "openai_chat"),
        "a process with switchyard_rust.server.Server(FILE, 8105)",
        config=_switchyard,
    ),
)


def peer_of(name: str) -> Peer | None:
    """The peer of this name in any case; None for other gateways."""
    return next((peer for peer in PEERS if peer.name.lower() == name.lower()), None)


def headers_of(name: str, origin: str, server: str) -> dict[str, str]:
    """What a request through the gateway `name` for the wire `server` has to say."""
    peer = peer_of(name)
    if peer is None or peer.headers is None or server not in peer.providers:
        return {}
    return peer.headers(origin, peer.providers[server], BY_NAME[server])


def servers_of(name: str, servers: Sequence[str]) -> list[str]:
    """Those of these wires that the gateway `name` has; a gateway that is not known has all."""
    peer = peer_of(name)
    return [server for server in servers if peer is None or server in peer.providers]
