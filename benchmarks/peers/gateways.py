"""Other gateways in front of the upstream of `python -m benchmarks proxy`, and nginx, which only passes on."""

import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.gateway.target import Target
from benchmarks.peers.environments import installed, served

GATEWAYS = ("litellm", "switchyard", "portkey")
_LITELLM_SETTINGS = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    # The price list of the package; else it would be fetched.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
}
_LITELLM = """
model_list:
  - model_name: mock
    litellm_params: {{model: openai/mock, api_base: "{upstream}", api_key: none}}
# Else it asks the upstream by /v1/responses.
litellm_settings: {{use_chat_completions_url_for_anthropic_messages: true}}
"""
# Its stage router chooses between two targets, both the upstream.
_SWITCHYARD = """
schema_version = 1
[llm_clients.up]
format = "openai_chat"
base_url = "{upstream}"
api_key_env = "UPSTREAM_KEY"
[targets.capable]
id = "mock-strong"
llm_client = "up"
[targets.efficient]
id = "mock"
llm_client = "up"
[routes.auto]
id = "auto"
type = "stage_router"
capable_target = "capable"
efficient_target = "efficient"
picker = "efficient_first"
confidence_threshold = 0.5
"""
_SWITCHYARD_SERVER = """
import sys, time
from switchyard_rust.server import Server
with Server(sys.argv[1], int(sys.argv[2])):
    while True:
        time.sleep(3600)
"""
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream model {{ server {netloc}; keepalive 64; keepalive_requests 1000000000; }}
  keepalive_requests 1000000000;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@asynccontextmanager
async def running_gateways(
    peers: Path, upstream: str, folder: Path, names: Sequence[str] = GATEWAYS
) -> AsyncIterator[list[Target]]:
    """Those of `names`, installed in `peers`, and nginx, where the machine has it, in front of `upstream` (up to /v1);
    `folder` keeps what they write. Raises `PeersError`."""
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(_running(name, peers, upstream, folder)) for name in names]
        if (program := shutil.which("nginx")) is not None:
            targets.append(await stack.enter_async_context(_running_nginx(program, upstream, folder)))
        yield targets


@asynccontextmanager
async def _running(name: str, peers: Path, upstream: str, folder: Path) -> AsyncIterator[Target]:
    port, program, ready = free_port(), installed(name, peers), "/"
    environment, headers, model = {"UPSTREAM_KEY": "none"}, {}, "mock"
    if name == "litellm":
        command, ready = (
            [str(program.with_name("litellm")), "--config", _written(folder, _LITELLM, upstream)],
            "/health/readiness",
        )
        command += ["--host", "127.0.0.1", "--port", str(port)]
        environment = _LITELLM_SETTINGS
    elif name == "switchyard":
        command = [str(program), "-c", _SWITCHYARD_SERVER, _written(folder, _SWITCHYARD, upstream), str(port)]
        ready, model = "/metrics", "auto"
    else:
        command = ["node", str(program), f"--port={port}", "--headless"]
        headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream}
    url = f"http://127.0.0.1:{port}"
    async with served(command, url + ready, folder / f"{name}.log", environment):
        yield Target(name, url, model, key="none", headers=headers)


def _written(folder: Path, text: str, upstream: str) -> str:
    path = folder / ("litellm.yaml" if text is _LITELLM else "switchyard.toml")
    path.write_text(text.format(upstream=upstream), encoding="utf-8")
    return str(path)


@asynccontextmanager
async def _running_nginx(program: str, upstream: str, folder: Path) -> AsyncIterator[Target]:
    port, written = free_port(), folder / "nginx.conf"
    written.write_text(_NGINX.format(folder=folder, port=port, netloc=urlsplit(upstream).netloc), encoding="utf-8")
    url = f"http://127.0.0.1:{port}"
    async with served([program, "-c", str(written), "-p", str(folder)], f"{url}/v1/models", folder / "nginx.log"):
        yield Target("nginx", url, "mock")


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
