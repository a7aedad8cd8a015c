"""Agents as their packages come, through ten steps with thoughts, by `auto` and by an alias with the name of a real
model: the session moves up to a tier of another maker, and down again, and each maker gets its own thoughts alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.agents import AUTO, run_ai_sdk, run_aider, run_claude_code, run_codex, run_opencode
from tests.clients.recording_upstream import FINAL, Script, ScriptedCall
from tests.clients.test_tool_loops import edits_of, number_is
from tests.clients.two_makers import CHAT, MESSAGES, TwoMakers, two_makers
from tests.support.served import served

pytestmark = pytest.mark.clients

STEPS = 10
# One step is too long for the first tier, so that the session moves up; a later one for the second, and it moves down.
TOO_LONG = {CHAT: 4, MESSAGES: 7}
MOVED = [CHAT] * 4 + [MESSAGES] * 3 + [CHAT] * 4
CATALOG = """
name = "two-makers"

[[tiers]]
name = "small"
provider = "deepseek"
model = "deepseek-reasoner"
url = "{chat}"
max_context = 1000000
price = {{ input_usd_per_million = 0.3, output_usd_per_million = 0.9 }}

[[tiers]]
name = "large"
provider = "anthropic"
model = "claude-opus-4-8"
url = "{messages}"
max_context = 1000000
effort = "medium"
fallback = ["small"]
price = {{ input_usd_per_million = 1.0, output_usd_per_million = 5.0 }}

[aliases]
"gpt-5.1-codex" = "auto"
"claude-sonnet-4-5" = "auto"
"""


class Client(NamedTuple):
    """`loop`: run it with a model's name, until it has said `FINAL`. `call`: of its tool, for a number."""

    loop: Callable[[Path, str, str], str]
    call: Callable[[int], ScriptedCall]
    result: Callable[[int], str]


def shell(run: Callable[..., str], tool: str, field: str, **others: str) -> Client:
    """An agent whose tool is a shell, in which numbers are said."""
    return Client(
        lambda folder, url, model: run(folder, url, "Say eleven numbers in the shell.", model=model),
        lambda number: ScriptedCall(tool, {field: f"echo said {number}", **others}),
        lambda number: f"said {number}",
    )


CLIENTS = {
    "codex": shell(run_codex, "exec_command", "cmd"),
    "claude-code": shell(run_claude_code, "Bash", "command", description="Says a number"),
    "opencode": shell(run_opencode, "bash", "command", description="Says a number"),
    "ai-sdk": Client(
        lambda folder, url, model: run_ai_sdk(folder, url, model=model),
        lambda number: ScriptedCall("add", {"a": number, "b": 1000}),
        lambda number: str(number + 1000),
    ),
}


@pytest.fixture(scope="module")
def makers() -> Iterator[TwoMakers]:
    with two_makers() as running:
        yield running


@pytest.fixture
def url(makers: TwoMakers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`aio serve` whose first tier answers what it can: a new one each time, which has learned nothing of sessions."""
    folder = tmp_path_factory.mktemp("gateway")
    catalog = folder / "catalog.toml"
    catalog.write_text(CATALOG.format(**makers.urls))
    environment = {"AIO_CATALOG": str(catalog), "AIO_MONITOR": "false", "AIO_QUALITY_TARGET": "0"}
    environment |= {"DEEPSEEK_API_KEY": "a-key", "ANTHROPIC_API_KEY": "a-key"}
    with served(folder / "data", folder / "cache", environment=environment) as process:
        yield process.url


@pytest.mark.parametrize("model", [AUTO, "a-real-name"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_tool_loop_moves_between_two_makers(
    makers: TwoMakers, url: str, tmp_path: Path, client: str, model: str
) -> None:
    """The third step has two calls at once."""
    agent = CLIENTS[client]
    numbers = [[n] if n != 2 else [2, 20] for n in range(STEPS)]
    script: Script = [*([agent.call(n) for n in row] for row in numbers), FINAL]
    makers.play(script, [[agent.result(n) for n in row] for row in numbers], TOO_LONG)
    real_name = "claude-sonnet-4-5" if client == "claude-code" else "gpt-5.1-codex"
    said = agent.loop(tmp_path, url, real_name if model != AUTO else AUTO)
    assert makers.refusals == []
    assert FINAL in said
    assert makers.answered == MOVED


@pytest.mark.parametrize("model", [AUTO, "gpt-5.1-codex"])
def test_aiders_edits_move_between_two_makers(makers: TwoMakers, url: str, tmp_path: Path, model: str) -> None:
    """It has no tools, and asks again at most three times, so that its ten steps are of three questions."""
    edits = edits_of(STEPS)
    makers.play(edits, [[]] * STEPS, TOO_LONG)
    (tmp_path / "number.txt").write_text("0\n")
    # An answer to the same question would come from the cache.
    questions = f"Make it {STEPS}, {model}.\n" * 3
    run_aider(tmp_path, url, "--test-cmd", number_is(STEPS), "--no-fancy-input", model=model, said=questions)
    assert makers.refusals == []
    assert (tmp_path / "number.txt").read_text() == f"{STEPS}\n"
    assert len(makers.answered) >= STEPS
    assert set(makers.answered) == {CHAT, MESSAGES}
