"""Agents as their packages come: each is run once, in a folder that is its home, with the lines of docs/clients.md."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.documented_lines import documented_lines

# Where `make test-clients` installs packages that would move the versions of others.
INSTALLED = Path(__file__).parents[2] / ".venv" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
NODE_MODULES = INSTALLED / "node" / "node_modules"
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
SECONDS = 240
# No network but loopback: update checks and telemetry find a closed port, where they cannot be switched off.
NO_NETWORK = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
    "DO_NOT_TRACK": "1",
}
AUTO = "auto"
# Its sandbox needs rights that containers do not have.
CODEX_OPTIONS = [
    *("-c", "analytics.enabled=false", "-c", 'otel.metrics_exporter="none"', "-c", "check_for_update_on_startup=false"),
    *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
]
OPENCODE_VARIABLES = {
    f"OPENCODE_DISABLE_{name}": "1"
    for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "PRUNE")
}
# A commit of the whole folder at every step takes longer than the step.
OPENCODE_SETTINGS = '{"snapshot": false}'
AIDER_OPTIONS = [
    *("--no-analytics", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--yes-always"),
    *("--no-auto-commits", "--no-gitignore", "--no-pretty", "--map-tokens", "0", "--edit-format", "whole"),
]


def run(folder: Path, *command: str | Path, said: str = "", **environment: str) -> str:
    """Return what the command says, once it has ended well. `said`: its input."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**inherited, **NO_NETWORK, "HOME": str(folder), **environment},
        input=said,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{command[0]} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def installed(path: Path) -> Path:
    """Return `path`, or skip the test where it is not there."""
    if not path.exists():
        pytest.skip(f"{path.relative_to(INSTALLED.parent)} is not there: make test-clients installs what has a package")
    return path


def named_lines(language: str, containing: str, url: str, model: str) -> str:
    """The lines of the page, for another model than `auto`."""
    lines = documented_lines(language, containing, url)
    assert AUTO in lines
    return lines.replace(f'"{AUTO}"', f'"{model}"').replace(f"/{AUTO}", f"/{model}")


def run_codex(folder: Path, url: str, prompt: str, model: str = AUTO) -> str:
    """Codex, which has a shell."""
    codex = installed(NODE_MODULES / "@openai" / "codex" / "bin" / "codex.js")
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text(named_lines("toml", "model_providers.aio", url, model))
    return run(folder, "node", codex, "exec", *CODEX_OPTIONS, prompt)


def run_opencode(folder: Path, url: str, prompt: str, model: str = AUTO) -> str:
    """opencode, which has a shell."""
    opencode = installed(NODE_MODULES / f"opencode-{sys.platform}-{MACHINE}" / "bin" / "opencode")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / "opencode.json").write_text(named_lines("json", "opencode.ai", url, model))
    return run(folder, opencode, "run", prompt, OPENCODE_CONFIG_CONTENT=OPENCODE_SETTINGS, **OPENCODE_VARIABLES)


def run_claude_code(folder: Path, url: str, prompt: str, model: str = AUTO) -> str:
    """Claude Code, which has a shell. Its package is not free software, so that `make test-clients` does not install
    it."""
    claude = shutil.which("claude")
    if claude is None:
        pytest.skip("claude is not installed")
    *exports, command = named_lines("sh", "ANTHROPIC_BASE_URL", url, model).strip().splitlines()
    variables = dict(part.split("=", 1) for line in exports for part in line.removeprefix("export ").split())
    assert command == "claude"
    return run(
        folder, claude, "-p", prompt, "--allowedTools", "Bash", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        **(variables | {"ANTHROPIC_MODEL": model}),
    )  # fmt: skip


def run_aider(folder: Path, url: str, *more: str, model: str = AUTO, said: str = "") -> str:
    """aider, which has no tools: an answer is an edit of `number.txt`, and what the tests say about it is the next
    question."""
    aider = installed(INSTALLED / "aider" / "bin" / "aider")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    exports, command = named_lines("sh", "aider --model", url, model).strip().splitlines()
    variables = dict(part.split("=", 1) for part in exports.removeprefix("export ").split())
    name, *options = command.split()
    assert name == "aider"
    options += [*AIDER_OPTIONS, "--auto-test", *more, "number.txt"]
    return run(folder, aider, *options, said=said, LITELLM_LOCAL_MODEL_COST_MAP="True", **variables)


def run_ai_sdk(folder: Path, url: str, model: str = AUTO) -> str:
    """The program of the AI SDK, which has a tool that adds."""
    installed(NODE_MODULES / "@ai-sdk" / "openai")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    lines = named_lines("js", "createOpenAI", url, model)
    (folder / "documented.mjs").write_text(f"{lines}\nexport {{ model }};\n")
    shutil.copy(PROGRAMS / "ai_sdk.mjs", folder / "program.mjs")
    return run(folder, "node", "program.mjs")


def run_google_genai(folder: Path, url: str) -> str:
    """The program of Google's client for Node, which has a tool that adds."""
    installed(NODE_MODULES / "@google" / "genai")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    lines = documented_lines("js", "GoogleGenAI", url)
    (folder / "documented.mjs").write_text(f"{lines}\nexport {{ client }};\n")
    shutil.copy(PROGRAMS / "google_genai.mjs", folder / "program.mjs")
    return run(folder, "node", "program.mjs")


GEMINI_SETTINGS = (
    '{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false}}'
)


def run_gemini_cli(folder: Path, url: str, prompt: str) -> str:
    """Gemini's CLI, which has tools for files and a shell, and names of models of its own."""
    gemini = installed(NODE_MODULES / ".bin" / "gemini")
    (folder / ".gemini").mkdir()
    (folder / ".gemini" / "settings.json").write_text(GEMINI_SETTINGS)
    exports, command = documented_lines("sh", "GOOGLE_GEMINI_BASE_URL", url).strip().splitlines()
    assert command == "gemini"
    variables = dict(part.split("=", 1) for part in exports.removeprefix("export ").split())
    return run(folder, gemini, "--skip-trust", "-p", prompt, **variables)
