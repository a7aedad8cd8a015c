"""`aio launch` with the clients as their packages come: one tool loop each, and nothing in their folders is needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.agents import (
    AIDER_OPTIONS,
    CODEX_OPTIONS,
    INSTALLED,
    MACHINE,
    NODE_MODULES,
    OPENCODE_VARIABLES,
    installed,
)
from tests.clients.recording_upstream import FINAL
from tests.clients.test_tool_loops import SAID, SHELL_PROMPT, Setup, check_history, said_by, setup, upstream, url

pytestmark = pytest.mark.clients
__all__ = ["setup", "upstream", "url"]

LAUNCH = (sys.executable, "-c", "from gateway.cli import main; main()", "launch", "--url")


def run(setup: Setup, folder: Path, *command: str, **environment: str) -> str:
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return setup.run(*LAUNCH, setup.url, *command, PATH=path, **environment)


def test_codex_is_launched(setup: Setup) -> None:
    folder = installed(NODE_MODULES / ".bin" / "codex").parent
    script = said_by("exec_command", "cmd")
    setup.upstream.play(script)
    assert FINAL in run(setup, folder, "codex", "exec", *CODEX_OPTIONS, SHELL_PROMPT)
    check_history(setup.upstream.requests, script, SAID)
    assert not (setup.folder / ".codex" / "config.toml").exists()


def test_opencode_is_launched(setup: Setup) -> None:
    folder = installed(NODE_MODULES / f"opencode-{sys.platform}-{MACHINE}" / "bin" / "opencode").parent
    subprocess.run(["git", "init", "--quiet", setup.folder], check=True)
    script = said_by("bash", "command", description="Says a number")
    setup.upstream.play(script)
    assert FINAL in run(setup, folder, "opencode", "run", SHELL_PROMPT, **OPENCODE_VARIABLES)
    check_history(setup.upstream.requests, script, SAID)


def test_aider_is_launched(setup: Setup) -> None:
    folder = installed(INSTALLED / "aider" / "bin" / "aider").parent
    subprocess.run(["git", "init", "--quiet", setup.folder], check=True)
    (setup.folder / "number.txt").write_text("0\n")
    setup.upstream.play(["Number 3.\n\nnumber.txt\n```\n3\n```"])
    edit = (*AIDER_OPTIONS, "--message", "Make it 3.", "number.txt")
    run(setup, folder, "aider", *edit, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (setup.folder / "number.txt").read_text() == "3\n"


def test_claude_code_is_launched(setup: Setup) -> None:
    """Its package is not free software, so that `make test-clients` does not install it."""
    claude = shutil.which("claude")
    if claude is None:
        pytest.skip("claude is not installed")
    script = said_by("Bash", "command", description="Says a number")
    setup.upstream.play(script)
    said = run(
        setup, Path(claude).parent, "claude", "-p", SHELL_PROMPT, "--allowedTools", "Bash",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    assert FINAL in said
    check_history(setup.upstream.requests, script, SAID)
