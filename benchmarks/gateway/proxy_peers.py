"""Other gateways in front of the same upstream as ours, and nginx, which only passes on: the bound of any of them.

The peers' scripts are not part of this package: each installs its gateway below `PEERS_DIR` and serves until it is
ended.
"""

import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.gateway.peers import PeersError, served
from benchmarks.gateway.proxy import Target

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


@dataclass(frozen=True, slots=True)
class GatewayPeer:
    """Another gateway: its script, the model that it serves, and whether headers name its upstream."""

    name: str
    script: str
    model: str
    by_headers: bool = False


GATEWAYS = (
    GatewayPeer("litellm", "litellm_proxy.py", "mock"),
    GatewayPeer("switchyard", "switchyard_server.py", "auto"),
    GatewayPeer("portkey", "portkey_gateway.py", "mock", by_headers=True),
)


@asynccontextmanager
async def running_peers(scripts: Path, upstream: str, folder: Path) -> AsyncIterator[list[Target]]:
    """The peers of `scripts` and nginx, where it is installed, in front of `upstream` (up to /v1); `folder` keeps what
    nginx writes. Raises `PeersError`."""
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(_running(peer, scripts, upstream)) for peer in GATEWAYS]
        if (program := shutil.which("nginx")) is not None:
            targets.append(await stack.enter_async_context(_running_nginx(program, upstream, folder)))
        yield targets


@asynccontextmanager
async def _running(peer: GatewayPeer, scripts: Path, upstream: str) -> AsyncIterator[Target]:
    script = scripts / "peers" / peer.script
    if not script.is_file():
        raise PeersError(f"{script} does not exist; give the folder of the peers' scripts")
    port = _free_port()
    options = [] if peer.by_headers else ["--upstream", upstream]
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream} if peer.by_headers else {}
    async with served([sys.executable, str(script), "--port", str(port), "--wait", "300", *options], peer.name):
        yield Target(peer.name, f"http://127.0.0.1:{port}", peer.model, key="none", headers=headers)


@asynccontextmanager
async def _running_nginx(program: str, upstream: str, folder: Path) -> AsyncIterator[Target]:
    port = _free_port()
    written = folder / "nginx.conf"
    written.write_text(_NGINX.format(folder=folder, port=port, netloc=urlsplit(upstream).netloc), encoding="utf-8")
    # A line that says that it is ready, as the peers' scripts write it, once its port is open.
    opened = f"until (echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done; echo READY >&2; wait"
    command = ["bash", "-c", f"{program} -c {written} -p {folder} & {opened}"]
    async with served(command, "nginx"):
        yield Target("nginx", f"http://127.0.0.1:{port}", "mock")


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
