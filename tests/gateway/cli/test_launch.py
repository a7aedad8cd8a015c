"""`aio launch` starts a client against the gateway in an environment of its own, and says what it set."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.cli.live.launch import SETUPS
from gateway.cli.live.session_check import session_of
from tests.http_server import Asked, Reply, answering

AIO = [sys.executable, "-c", "from gateway.cli import main; main()", "launch"]
# Says how it was started, and ends with a status of its own.
CLIENT = """#!{python}
import json, os, sys
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
sys.exit(7)
"""


def no_models(asked: Asked) -> Reply:
    status = 401 if asked.headers["authorization"] == "Bearer wrong" else 200
    return Reply(b'{"object": "list", "data": []}', status, {"content-type": "application/json"})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering(no_models) as url:
        yield url


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name in SETUPS:
        program = tmp_path / name
        program.write_text(CLIENT.format(python=sys.executable))
        program.chmod(0o755)
    return tmp_path


Ended = subprocess.CompletedProcess[str]


def launched(programs: Path, *arguments: str, **environment: str) -> Ended:
    """What `aio launch` and the client say, here in this process up to the start of the client."""
    others: dict[str, str | None] = dict.fromkeys(os.environ)
    variables = others | {"PATH": str(programs), "HOME": str(programs)} | environment

    def execve(program: str, words: list[str], passed: dict[str, str]) -> None:
        click.echo(json.dumps({"arguments": words[1:], "environment": passed}))
        sys.exit(7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", execve)
        ended = CliRunner().invoke(main, ["launch", *arguments], env=variables)
    return Ended(arguments, ended.exit_code, ended.stdout, ended.stderr)


def launched_in_a_process(programs: Path, *arguments: str, **environment: str) -> Ended:
    variables = {"PATH": str(programs), "HOME": str(programs), "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    return subprocess.run([*AIO, *arguments], env=variables, capture_output=True, text=True, check=False)


def test_claude_gets_variables_and_its_own_arguments(programs: Path, url: str) -> None:
    ended = launched_in_a_process(
        programs,
        "--url",
        url,
        "--key",
        "sk-secret",
        "claude",
        "-p",
        "--model",
        "opus",
        "hi",
        ANTHROPIC_API_KEY="theirs",
    )
    assert ended.returncode == 7, ended.stderr
    said = json.loads(ended.stdout)
    assert said["arguments"] == ["-p", "--model", "opus", "hi"]
    assert said["environment"]["ANTHROPIC_BASE_URL"] == url
    assert said["environment"]["ANTHROPIC_AUTH_TOKEN"] == "sk-secret"
    assert said["environment"]["ANTHROPIC_MODEL"] == "auto"
    assert "ANTHROPIC_API_KEY" not in said["environment"]
    assert f"ANTHROPIC_BASE_URL={url}" in ended.stderr
    assert "sk-secret" not in ended.stderr


def test_codex_gets_settings_as_arguments_and_the_key_in_a_variable(programs: Path, url: str) -> None:
    ended = launched(programs, "--url", f"{url}/v1/", "codex", "exec", "hi", AIO_API_KEY="sk-secret")
    said = json.loads(ended.stdout)
    *options, command, prompt = said["arguments"]
    assert (command, prompt) == ("exec", "hi")
    assert options[::2] == ["-c"] * (len(options) // 2)
    settings = tomllib.loads("\n".join(options[1::2]))
    provider = settings["model_providers"][settings["model_provider"]]
    assert (settings["model"], provider["base_url"]) == ("auto", f"{url}/v1")
    assert said["environment"][provider["env_key"]] == "sk-secret"
    assert "sk-secret" not in ended.stderr + " ".join(said["arguments"])


def test_opencode_gets_its_configuration_in_a_variable(programs: Path, url: str) -> None:
    said = json.loads(launched(programs, "--url", url, "opencode", "run", "hi").stdout)
    settings = json.loads(said["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert said["arguments"] == ["run", "hi"]
    assert (settings["model"], settings["provider"]["aio"]["options"]["baseURL"]) == ("aio/auto", f"{url}/v1")


def test_aider_gets_variables_and_models(programs: Path, url: str) -> None:
    said = json.loads(launched(programs, "--url", url, "aider", "--message", "hi").stdout)
    assert said["environment"]["OPENAI_API_BASE"] == f"{url}/v1"
    assert said["arguments"][:2] == ["--model", "openai/auto"]
    assert said["arguments"][-2:] == ["--message", "hi"]


def test_a_check_is_a_hook_of_clients_that_have_one(programs: Path, url: str) -> None:
    with_check = ("--url", url, "--key", "sk-secret", "--check", "make test")
    claude = json.loads(launched(programs, *with_check, "claude", "-p", "hi").stdout)
    option, settings, *rest = claude["arguments"]
    (stop,) = json.loads(settings)["hooks"]["Stop"]
    (hook,) = stop["hooks"]
    assert (option, rest, hook["type"], hook["async"]) == ("--settings", ["-p", "hi"], "command", True)
    codex = json.loads(launched(programs, *with_check, "codex", "exec", "hi").stdout)
    notify = next(one for one in codex["arguments"] if one.startswith("notify="))
    assert tomllib.loads(notify)["notify"] == shlex.split(hook["command"])
    for started in (claude, codex):
        said = {name: started["environment"][name] for name in ("AIO_CHECK", "AIO_URL", "AIO_API_KEY")}
        assert said == {"AIO_CHECK": "make test", "AIO_URL": url, "AIO_API_KEY": "sk-secret"}
        assert "sk-secret" not in " ".join(started["arguments"])
    aider = json.loads(launched(programs, *with_check, "aider", "--message", "hi").stdout)
    assert aider["arguments"][-5:] == ["--auto-test", "--test-cmd", "make test", "--message", "hi"]
    refused = launched(programs, *with_check, "opencode")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "opencode has no hook" in refused.stderr


@pytest.mark.parametrize(
    ("event", "session"),
    [
        ('{"session_id": "s1", "hook_event_name": "Stop", "stop_hook_active": false}', "s1"),
        ('{"type": "agent-turn-complete", "thread-id": "t1", "turn-id": "2"}', "t1"),
        ('{"type": "approval-requested", "thread-id": "t1"}', None),
        ('{"session_id": 3}', None),
        ("[]", None),
        ("", None),
    ],
)
def test_an_event_names_its_session(event: str, session: str | None) -> None:
    assert session_of(event) == session


@pytest.mark.parametrize("client", SETUPS)
def test_no_file_is_written(programs: Path, url: str, client: str) -> None:
    before = sorted(programs.rglob("*"))
    assert launched(programs, "--url", url, client).returncode == 7
    assert sorted(programs.rglob("*")) == before


def test_what_cannot_be_started_is_said_in_a_sentence(programs: Path, url: str, tmp_path_factory: Any) -> None:
    empty = tmp_path_factory.mktemp("empty")
    for folder, arguments, said in (
        (empty, ("--url", url, "codex"), "codex is not installed"),
        (programs, ("--url", "http://127.0.0.1:9", "codex"), "no answer from http://127.0.0.1:9"),
        (programs, ("--url", url, "--key", "wrong", "codex"), "refuses the key"),
    ):
        ended = launched(folder, *arguments)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert said in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1
