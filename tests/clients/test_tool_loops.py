"""Clients as their packages come, with the lines of docs/clients.md: a tool loop of three steps each, streamed, through
a real `aio serve`; the server behind it sees the whole history of every step."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.agents import (
    INSTALLED,
    PROGRAMS,
    installed,
    run,
    run_ai_sdk,
    run_aider,
    run_codex,
    run_gemini_cli,
    run_google_genai,
    run_opencode,
)
from tests.clients.documented_lines import documented_lines
from tests.clients.recording_upstream import (
    FINAL,
    RecordingUpstream,
    Script,
    ScriptedCall,
    call_id,
    recording_upstream,
)
from tests.support.served import served

pytestmark = pytest.mark.clients

CATALOG = """
name = "recorded"

[aliases]
"*" = "auto"

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
        return run(self.folder, *command, **environment)


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
        history: list[tuple[str, Any]] = []
        said: list[str] = []
        for turn in turns:
            calls = turn.get("tool_calls") or ()
            made = [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
            if made:
                history.append(("calls", made))
            if turn["role"] == "tool":
                history.append(("result", turn["tool_call_id"]))
                said.append(turn["content"])
        assert history == expected
        wanted = [text for row in results[:step] for text in row]
        assert [text in content for text, content in zip(wanted, said, strict=True)] == [True] * len(wanted)
        calls = script[step]
        if not isinstance(calls, str):
            ids = [call_id(step, index) for index in range(len(calls))]
            named = [(name, call.name, call.arguments) for name, call in zip(ids, calls, strict=True)]
            expected += [("calls", named), *(("result", name) for name in ids)]


# The program, what its documented block has, and the interpreter's environment; None is that of the tests.
PYTHON_CLIENTS = [
    pytest.param("openai_chat", "from openai import OpenAI", None, id="openai-chat"),
    pytest.param("openai_responses", "from openai import OpenAI", None, id="openai-responses"),
    pytest.param("anthropic_messages", "from anthropic import Anthropic", None, id="anthropic"),
    pytest.param("langchain_chat", "from langchain_openai import ChatOpenAI", None, id="langchain"),
    pytest.param("openai_agents", "from agents import", "agents", id="openai-agents"),
    pytest.param("google_genai", "from google import genai", "google", id="google-genai"),
    pytest.param("llama_index_agent", "import OpenAILike", "llama-index", id="llama-index"),
]


@pytest.mark.parametrize(("program", "containing", "environment"), PYTHON_CLIENTS)
def test_a_python_client_loops_over_its_tools(
    setup: Setup, program: str, containing: str, environment: str | None
) -> None:
    python = Path(sys.executable) if environment is None else installed(INSTALLED / environment / "bin" / "python")
    (setup.folder / "documented.py").write_text(documented_lines("python", containing, setup.url))
    shutil.copy(PROGRAMS / f"{program}.py", setup.folder / "program.py")
    setup.upstream.play(ADDING)
    assert setup.run(python, "program.py").strip() == FINAL
    check_history(setup.upstream.requests, ADDING, [["3", "7"], ["10"]])


def test_the_ai_sdk_loops_over_its_tools(setup: Setup) -> None:
    setup.upstream.play(ADDING)
    assert run_ai_sdk(setup.folder, setup.url).strip() == FINAL
    check_history(setup.upstream.requests, ADDING, [["3", "7"], ["10"]])


def test_googles_client_for_node_loops_over_its_tools(setup: Setup) -> None:
    setup.upstream.play(ADDING)
    assert run_google_genai(setup.folder, setup.url).strip() == FINAL
    check_history(setup.upstream.requests, ADDING, [["3", "7"], ["10"]])


def test_gemini_cli_loops_over_its_tools(setup: Setup) -> None:
    (setup.folder / "three").mkdir()
    script: Script = ([ScriptedCall("list_directory", {"dir_path": "."})], FINAL)
    setup.upstream.play(script)
    assert FINAL in run_gemini_cli(setup.folder, setup.url, "What is here?")
    check_history(setup.upstream.requests, script, [["three"]])


def said_by(tool: str, field: str, **others: str) -> Script:
    """A script of commands that say numbers, for agents with a shell."""

    def call(number: int) -> ScriptedCall:
        return ScriptedCall(tool, {field: f"echo said {number}", **others})

    return ([call(3), call(7)], [call(10)], FINAL)


def edits_of(count: int) -> list[str]:
    """Answers that write 1 to `count` into `number.txt`, one after the other."""
    return [f"Number {n}.\n\nnumber.txt\n```\n{n}\n```" for n in range(1, count + 1)]


def number_is(number: int) -> str:
    """A command that says what is in `number.txt`, and fails unless it is this."""
    return f"echo found $(cat number.txt); grep -qx {number} number.txt"


SAID = [["said 3", "said 7"], ["said 10"]]
SHELL_PROMPT = "Say 3 and 7, then 10, in the shell."


def test_codex_loops_over_its_tools(setup: Setup) -> None:
    script = said_by("exec_command", "cmd")
    setup.upstream.play(script)
    assert FINAL in run_codex(setup.folder, setup.url, SHELL_PROMPT)
    check_history(setup.upstream.requests, script, SAID)
    tools = [tool["function"]["name"] for tool in setup.upstream.requests[0]["tools"]]
    assert any("__" in name for name in tools), "Codex has no namespaces any more"


def test_opencode_loops_over_its_tools(setup: Setup) -> None:
    script = said_by("bash", "command", description="Says a number")
    setup.upstream.play(script)
    assert FINAL in run_opencode(setup.folder, setup.url, SHELL_PROMPT)
    check_history(setup.upstream.requests, script, SAID)


def test_aider_goes_on_until_its_tests_pass(setup: Setup) -> None:
    """It has no tools: an answer is an edit, and what the tests say about it is the next question."""
    (setup.folder / "number.txt").write_text("0\n")
    edits = edits_of(3)
    setup.upstream.play(edits)
    run_aider(setup.folder, setup.url, "--test-cmd", number_is(3), "--message", "Make it 3.")
    assert (setup.folder / "number.txt").read_text() == "3\n"
    requests = setup.upstream.requests
    assert len(requests) == len(edits)
    for step, body in enumerate(requests):
        assert body["stream"] is True
        turns = body["messages"]
        said = [turn["content"].strip() for turn in turns if turn["role"] == "assistant" and turn["content"] in edits]
        assert said == edits[:step]
        assert ("Make it 3." if step == 0 else f"found {step}") in turns[-1]["content"]
