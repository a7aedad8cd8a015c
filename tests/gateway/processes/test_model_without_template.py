"""A model without a chat template continues prompts; chats go to other tiers, and it is named where one looks."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.inference_core.quantization.tiny_model import write_tiny_model
from tests.support.served import UNCACHED, served
from tests.support.upstream import Upstream

pytestmark = pytest.mark.processes

CATALOG = """
name = "raw-and-remote"
[core]
arena_bytes = 16_777_216
slab_bytes = 1_048_576
[[core.models]]
name = "tiny"
path = "{model}"
compute = "float32"
[[tiers]]
name = "raw"
model = "tiny"
price = {{ input_usd_per_million = 1, output_usd_per_million = 1 }}
[[tiers]]
name = "server"
url = "{url}"
model = "upstream"
max_context = 4096
price = {{ input_usd_per_million = 10, output_usd_per_million = 30 }}
"""


def test_chats_go_to_the_other_tiers(upstream: Upstream, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny", 0)
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(CATALOG.format(model=tmp_path / "tiny", url=upstream.base_url))
    chat = {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 8}
    with served(tmp_path / "data", tmp_path / "cache", "--catalog", str(catalog)) as aio:
        aio.until_whole()
        with httpx.Client(base_url=aio.url, headers=UNCACHED, timeout=60) as client:
            auto = client.post("/v1/chat/completions", json=chat | {"model": "auto"})
            named = client.post("/v1/chat/completions", json=chat | {"model": "tier-1"})
            raw = client.post("/v1/completions", json={"model": "tier-1", "prompt": "It was", "max_tokens": 4})
            problems = client.get("/health/ready").json()["problems"]
    assert (auto.status_code, auto.headers.get("x-aio-tier")) == (200, "2"), auto.text
    assert named.status_code == 400
    assert "no chat template" in named.json()["error"]["message"]
    assert "tier-2 (server)" in named.json()["error"]["message"]
    assert raw.status_code == 200, raw.text
    assert "no chat template" in problems["chats of tier 1"]


def test_init_warns_of_it(upstream: Upstream, tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny", 0)
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "init", "--ports", "1"]
    tiers = ["--tier", f"raw={tmp_path / 'tiny'}", "--tier", f"server={upstream.base_url},upstream"]
    said = subprocess.run(
        [*command, *tiers, "--output", str(tmp_path / "catalog.toml")], capture_output=True, text=True, check=True
    )
    assert "tiny has no chat template" in said.stderr
