"""The catalogue of a gateway in front of a `HostileUpstream`: a tier for each wire, and one on a child engine."""

import json
import sys
from pathlib import Path

from tests.attacks.hostile_upstream import HostileUpstream

TIERS = ("openai", "vllm", "anthropic", "gemini", "bedrock", "triton", "engine")
"""In their order, so that `tier-1` is the first."""
MAX_TOKENS, TOTAL_SECONDS, READ_SECONDS = 100_000, 6, 3
_WIRES = {"vllm": "openai"}
_KINDS = {"triton": "triton-vllm"}
_COMMON = """
[[tiers]]
number = {number}
name = "{name}"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 2.0 }}
objective = {{ ttft_ms = 1000, itl_ms = 100 }}
expected_answer_tokens = 16
mean_latency_ms = 1000
max_tokens = {max_tokens}
capabilities = {{ tools = true, logprobs = true }}
"""
_REMOTE = """
[tiers.remote]
kind = "{kind}"
{address}
model = "{model}"
max_context = 200000
api_key_env = "THE_KEY"
total_timeout_seconds = {total}
read_timeout_seconds = {read}
"""
_BALANCING = """
[tiers.remote.balancing]
queue_poll_seconds = 0.2
ejection_seconds = 0.2
max_ejection_seconds = 0.5
retry_burst = 10000
"""
_ENGINE = """
[tiers.remote]
kind = "llama-server"
total_timeout_seconds = {total}
read_timeout_seconds = {read}

[tiers.remote.engine]
kind = "llama-server"
model = "{model}"
"""


def write_hostile_catalog(path: Path, upstream: HostileUpstream, model: str = "m") -> Path:
    """Write it; another `model` of the first tier makes a reload read the server's catalogue again."""
    entries = ['name = "hostile"\n']
    times = {"total": TOTAL_SECONDS, "read": READ_SECONDS}
    for number, name in enumerate(TIERS, 1):
        entries.append(_COMMON.format(number=number, name=name, max_tokens=MAX_TOKENS))
        if name == "engine":
            gguf = path.parent / "model.gguf"
            gguf.write_bytes(b"GGUF")
            entries.append(_ENGINE.format(model=gguf, **times))
        else:
            url = upstream.base_url(_WIRES.get(name, name))
            named = model if number == 1 else "m"
            # Two addresses of one server are two replicas.
            both = [url, url.replace("127.0.0.1", "localhost")]
            address = f"base_urls = {json.dumps(both)}" if name == "vllm" else f'base_url = "{url}"'
            entries.append(_REMOTE.format(kind=_KINDS.get(name, name), address=address, model=named, **times))
            entries.append(_BALANCING if name == "vllm" else "")
    path.write_text("".join(entries))
    return path


def hostile_engine(folder: Path) -> Path:
    """Return the folder for PATH in which `llama-server` is a `HostileUpstream`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    run = "from tests.attacks.hostile_upstream import main; main()"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{run}\n")
    program.chmod(0o755)
    return folder
