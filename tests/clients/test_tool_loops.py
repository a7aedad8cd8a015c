"""Clients as their packages come, with the lines of docs/clients.md: a tool loop of three steps each, streamed, through
a real `aio serve`; the server behind it sees the whole history of every step."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.documented_lines import documented_lines
from tests.clients.recording_upstream import (
    FINAL,
    RecordingUpstream,
    Script,
    ScriptedCall,
    call_id,
    recording_upstream,
)
from tests.gateway.served_process import served

pytestmark = pytest.mark.clients

# Where `make test-clients` installs packages that would move the versions of others.
INSTALLED = Path(__file__).parents[2] / ".venv" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
NODE_MODULES = INSTALLED / "node" / "node_modules"
SECONDS = 240

CATALOG = """
name = "recorded"

[[tiers]]
number = 1
name = "small"
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.3 }}

[tiers.remote]
base_url = "{base_url}"
model = "small"
max_context = 131072

[[tiers]]
number = 2
name = "large"
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 3.0 }}

[tiers.remote]
base_url = "{base_url}"
model = "large"
max_context = 131072
"""
# No network but loopback: update checks and telemetry find a closed port, where they cannot be switched off.
NO_NETWORK = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
    "DO_NOT_TRACK": "1",
}


def added(a: int, b: int) -> ScriptedCall:
    return ScriptedCall("add", {"a": a, "b": b})


ADDING: Script = ([added(1, 2), added(3, 4)], [added(3, 7)], FINAL)


class Setup(NamedTuple):
    """A client's way to the gateway at `url`, in a folder that is its home."""

    upstream: RecordingUpstream
    url: str
    folder: Path

    def run(self, *command: str | Path, **environment: str) -> str:
        """Return what the command says, once it has ended well."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        ended = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env={**inherited, **NO_NETWORK, "HOME": str(self.folder), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{command[0]} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with recording_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def url(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`aio serve` whose tiers are the recording upstream; nothing is asked there but what clients ask."""
    folder = tmp_path_factory.mktemp("gateway")
    catalog = folder / "catalog.toml"
    catalog.write_text(CATALOG.format(base_url=upstream.base_url))
    environment = {"AIO_CATALOG": str(catalog), "AIO_MONITOR": "false"}
    with served(folder / "data", folder / "cache", environment=environment) as process:
        yield process.url


@pytest.fixture
def setup(upstream: RecordingUpstream, url: str, tmp_path: Path) -> Setup:
    return Setup(upstream, url, tmp_path)


def installed(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.relative_to(INSTALLED.parent)} is not there: make test-clients installs what has a package")
    return path


def check_history(requests: Sequence[dict[str, Any]], script: Script, results: Sequence[Sequence[str]]) -> None:
    """Every step arrived with the whole history before it: calls, results, order and ids. `results`: texts in them."""
    assert len(requests) == len(script)
    expected: list[tuple[str, Any]] = []
    for step, body in enumerate(requests):
        assert body["stream"] is True
        assert body["tools"] == requests[0]["tools"]
        turns = body["messages"]
        if step:
            before = requests[step - 1]["messages"]
            assert turns[: len(before)] == before
        found: list[tuple[str, Any]] = []
        said: list[str] = []
        for turn in turns:
            calls = turn.get("tool_calls") or ()
            given = [(one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]
            if given:
                found.append(("calls", given))
            if turn["role"] == "tool":
                found.append(("result", turn["tool_call_id"]))
                said.append(turn["content"])
        assert found == expected
        wanted = [text for one in results[:step] for text in one]
        assert [text in content for text, content in zip(wanted, said, strict=True)] == [True] * len(wanted)
        calls = script[step]
        if not isinstance(calls, str):
            ids = [call_id(step, place) for place in range(len(calls))]
            named = [(name, one.name, one.arguments) for name, one in zip(ids, calls, strict=True)]
            expected += [("calls", named), *(("result", name) for name in ids)]


# The program, what its documented block has, and the interpreter's environment; None is that of the tests.
PYTHON_CLIENTS = [
    pytest.param("openai_chat", "from openai import OpenAI", None, id="openai-chat"),
    pytest.param("openai_responses", "from openai import OpenAI", None, id="openai-responses"),
    pytest.param("anthropic_messages", "from anthropic import Anthropic", None, id="anthropic"),
    pytest.param("langchain_chat", "from langchain_openai import ChatOpenAI", None, id="langchain"),
    pytest.param("openai_agents", "from agents import", "agents", id="openai-agents"),
    pytest.param("llama_index_agent", "import OpenAILike", "llama-index", id="llama-index"),
]


@pytest.mark.parametrize(("program", "containing", "place"), PYTHON_CLIENTS)
def test_a_python_client_loops_over_its_tools(setup: Setup, program: str, containing: str, place: str | None) -> None:
    python = Path(sys.executable) if place is None else installed(INSTALLED / place / "bin" / "python")
    (setup.folder / "documented.py").write_text(documented_lines("python", containing, setup.url))
    shutil.copy(PROGRAMS / f"{program}.py", setup.folder / "program.py")
    setup.upstream.play(ADDING)
    assert setup.run(python, "program.py").strip() == FINAL
    check_history(setup.upstream.requests, ADDING, [["3", "7"], ["10"]])


def test_the_ai_sdk_loops_over_its_tools(setup: Setup) -> None:
    installed(NODE_MODULES / "@ai-sdk" / "openai")
    (setup.folder / "node_modules").symlink_to(NODE_MODULES)
    lines = documented_lines("js", "createOpenAI", setup.url)
    (setup.folder / "documented.mjs").write_text(f"{lines}\nexport {{ model }};\n")
    shutil.copy(PROGRAMS / "ai_sdk.mjs", setup.folder / "program.mjs")
    setup.upstream.play(ADDING)
    assert setup.run("node", "program.mjs").strip() == FINAL
    check_history(setup.upstream.requests, ADDING, [["3", "7"], ["10"]])


def said_by(tool: str, field: str, **others: str) -> Script:
    """A script of commands that say numbers, for agents with a shell."""

    def call(number: int) -> ScriptedCall:
        return ScriptedCall(tool, {field: f"echo said {number}", **others})

    return ([call(3), call(7)], [call(10)], FINAL)


SAID = [["said 3", "said 7"], ["said 10"]]
SHELL_PROMPT = "Say 3 and 7, then 10, in the shell."


def test_codex_loops_over_its_tools(setup: Setup) -> None:
    codex = installed(NODE_MODULES / "@openai" / "codex" / "bin" / "codex.js")
    home = setup.folder / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(documented_lines("toml", "model_providers.aio", setup.url))
    script = said_by("exec_command", "cmd")
    setup.upstream.play(script)
    quiet = ["analytics.enabled=false", 'otel.metrics_exporter="none"', "check_for_update_on_startup=false"]
    options = [part for setting in quiet for part in ("-c", setting)]
    # Its sandbox needs rights that containers do not have.
    options += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    assert FINAL in setup.run("node", codex, "exec", *options, SHELL_PROMPT)
    check_history(setup.upstream.requests, script, SAID)
    tools = [tool["function"]["name"] for tool in setup.upstream.requests[0]["tools"]]
    assert any("__" in name for name in tools), "Codex has no namespaces any more"


def test_opencode_loops_over_its_tools(setup: Setup) -> None:
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    opencode = installed(NODE_MODULES / f"opencode-{sys.platform}-{machine}" / "bin" / "opencode")
    subprocess.run(["git", "init", "--quiet", setup.folder], check=True)
    (setup.folder / "opencode.json").write_text(documented_lines("json", "opencode.ai", setup.url))
    script = said_by("bash", "command", description="Says a number")
    setup.upstream.play(script)
    quiet = dict.fromkeys(("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "PRUNE"), "1")
    environment = {f"OPENCODE_DISABLE_{name}": value for name, value in quiet.items()}
    assert FINAL in setup.run(opencode, "run", SHELL_PROMPT, **environment)
    check_history(setup.upstream.requests, script, SAID)


def test_aider_goes_on_until_its_tests_pass(setup: Setup) -> None:
    """It has no tools: an answer is an edit, and what the tests say about it is the next question."""
    aider = installed(INSTALLED / "aider" / "bin" / "aider")
    subprocess.run(["git", "init", "--quiet", setup.folder], check=True)
    (setup.folder / "number.txt").write_text("0\n")
    edits = [f"Number {n}.\n\nnumber.txt\n```\n{n}\n```" for n in (1, 2, 3)]
    setup.upstream.play(edits)
    exports, command = documented_lines("sh", "aider --model", setup.url).strip().splitlines()
    variables = dict(part.split("=", 1) for part in exports.removeprefix("export ").split())
    name, *options = command.split()
    assert name == "aider"
    quiet = ["--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes"]
    quiet += ["--yes-always", "--no-auto-commits", "--no-gitignore", "--no-pretty", "--map-tokens", "0"]
    check = "echo found $(cat number.txt); grep -q 3 number.txt"
    setup.run(
        aider, *options, *quiet, "--edit-format", "whole", "--auto-test", "--test-cmd", check,
        "--message", "Make it 3.", "number.txt",
        LITELLM_LOCAL_MODEL_COST_MAP="True", **variables,
    )  # fmt: skip
    assert (setup.folder / "number.txt").read_text() == "3\n"
    requests = setup.upstream.requests
    assert len(requests) == len(edits)
    for step, body in enumerate(requests):
        assert body["stream"] is True
        turns = body["messages"]
        said = [turn["content"].strip() for turn in turns if turn["role"] == "assistant" and turn["content"] in edits]
        assert said == edits[:step]
        assert ("Make it 3." if step == 0 else f"found {step}") in turns[-1]["content"]
