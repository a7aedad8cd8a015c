"""Every command of docs/index.md, the page to start with, runs and does what the page says, with real processes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.operations.setup.model_servers import model_server, ollama_pages, openai_pages, vllm_pages
from tests.support.served import READY, started

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Run by tests/deploy/test_wheel.py, which installs the clone into an empty environment.
INSTALL = "pip install ."
# Commands within sentences, which other tests run.
RUN_ELSEWHERE = {
    "make run": "tests/tiers/local/test_ladder_tiers.py",
}
CONFIG = """\
model_list:
  - model_name: small
    litellm_params: {model: hosted_vllm/a, api_base: "URL", api_key: os.environ/SMALL_KEY}
  - model_name: large
    litellm_params: {model: hosted_vllm/b, api_base: "URL"}
litellm_settings: {json_logs: true}
"""


def blocks(page: str) -> list[str]:
    """The page's blocks of shell commands, without comments."""
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return ["\n".join(re.sub(r"(^| +)# .*", "", line) for line in block.splitlines()) for block in found]


class Newcomer:
    """Types blocks in a folder, as `aio` on the path. `ports` of servers are looked at in place of the usual ones;
    `url` is where the page's gateway is."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.folder, self._ports, self.url = folder, ports, ""
        (folder / "bin").mkdir()
        program = folder / "bin" / "aio"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from gateway.cli import main; main()" "$@"\n')
        program.chmod(0o755)

    def type(self, block: str, environment: Mapping[str, str] | None = None) -> str:
        text = block.replace("aio init", f"aio init --ports {','.join(map(str, self._ports))}")
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self._ports[1]}").replace("http://127.0.0.1:8080", self.url)
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.endswith("_KEY") and not name.startswith("AIO_")
        }
        paths = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
        homes = {name: str(self.folder) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
        done = subprocess.run(
            ["bash", "-ec", text], cwd=self.folder, env=clean | paths | homes | dict(environment or {}),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Newcomer]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        pages = [ollama_pages("llama3.2:latest"), vllm_pages("Qwen/Qwen3-8B"), openai_pages("a", "b")]
        servers = [stack.enter_context(model_server(each)) for each in pages]
        (tmp_path / "config.yaml").write_text(CONFIG.replace("URL", servers[2].url))
        yield Newcomer(tmp_path, [server.port for server in servers[:2]])


def test_every_command_of_the_page_runs_in_its_order(newcomer: Newcomer, tmp_path: Path) -> None:
    first, asked, chosen, carried, cost, observed = blocks("docs/index.md")

    install, *made, serve = first.strip().splitlines()
    assert (install, serve) == (INSTALL, "aio serve")
    said = newcomer.type("\n".join(made))
    assert "wrote aio.toml: 2 tiers" in said
    assert re.findall(r"^\d +\S+ +\S+ +(ok)", said, re.MULTILINE) == ["ok", "ok"]
    with started(tmp_path / "data", tmp_path / "cache", "--port", "0", environment={"AIO_ADMIN_KEYS": ""}) as process:
        assert process.stdout is not None
        ready = next(found for line in process.stdout if (found := READY.search(line)))
        key = next(found for line in process.stdout if (found := re.search(r"\bsk-aio-\S+", line)))
        newcomer.url = ready[1]
        answer = newcomer.type(asked)
        assert re.search(r"^x-aio-tier: 1\s*$", answer, re.MULTILINE | re.IGNORECASE)
        assert "Tokyo" in answer
        said = newcomer.type(observed, {"AIO_URL": newcomer.url, "AIO_ADMIN_KEY": key[0]})
        assert "observe" in said

    assert "wrote aio.toml: 2 tiers" in newcomer.type(chosen)
    (tmp_path / "aio.toml").unlink()
    said = newcomer.type(carried, {"SMALL_KEY": "k"})
    assert re.findall(r"^\d +\S+ +\S+ +(ok)", said, re.MULTILINE) == ["ok", "ok"]
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert newcomer.type(cost).strip() in page


def test_commands_within_sentences_are_those_of_the_blocks_or_run_elsewhere() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`((?:aio|make|pip|docker|python) [^`]+)`", prose))
    typed = "\n".join(blocks("docs/index.md"))
    assert {command for command in named if command not in typed} == set(RUN_ELSEWHERE)
    assert all((ROOT / file).is_file() for file in RUN_ELSEWHERE.values())


@pytest.mark.parametrize("named", ["nothing", "AIO_CATALOG", "the configured file"])
def test_make_run_serves_the_ladder_where_no_catalogue_is_named(named: str, tmp_path: Path) -> None:
    if (ROOT / "aio.toml").exists():
        pytest.skip("this clone has an aio.toml, which is served")
    if named == "the configured file":
        (tmp_path / "aio").mkdir()
        (tmp_path / "aio" / "aio.toml").touch()
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "run"], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "AIO_CATALOG": "laptop" if named == "AIO_CATALOG" else ""},
    )  # fmt: skip
    served = shown.stdout.splitlines()[-1].strip()
    assert served.endswith("/bin/aio serve --catalog ladder" if named == "nothing" else "/bin/aio serve")


def test_the_readme_begins_with_the_same_commands() -> None:
    typed = {line for block in blocks("docs/index.md") for line in block.splitlines()}
    [first] = [block.strip().splitlines() for block in blocks("README.md") if block.startswith(INSTALL)]
    assert {line.strip() for line in first} <= {line.strip() for line in typed}
