"""The page of clients has one block of lines for each client that `make test-clients` runs."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from tests.clients.documented_lines import documented_lines
from tests.clients.test_tool_loops import PYTHON_CLIENTS

URL = "http://127.0.0.1:1"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(("program", "containing", "environment"), PYTHON_CLIENTS)
def test_a_python_clients_lines_define_what_its_program_takes(
    program: str, containing: str, environment: str | None
) -> None:
    lines = ast.parse(documented_lines("python", containing, URL))
    defined = {
        target.id
        for line in lines.body
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    imports = [
        line
        for line in ast.parse((PROGRAMS / f"{program}.py").read_text()).body
        if isinstance(line, ast.ImportFrom) and line.module == "documented"
    ]
    assert {name.name for line in imports for name in line.names} <= defined


def test_the_other_clients_lines_name_the_gateway() -> None:
    assert "const model =" in documented_lines("js", "createOpenAI", URL)
    codex = tomllib.loads(documented_lines("toml", "model_providers.aio", URL))
    assert codex["model_providers"][codex["model_provider"]]["base_url"] == f"{URL}/v1"
    opencode = json.loads(documented_lines("json", "opencode.ai", URL))
    assert opencode["provider"]["aio"]["options"]["baseURL"] == f"{URL}/v1"
    exports, command = documented_lines("sh", "aider --model", URL).strip().splitlines()
    assert exports.startswith("export ")
    assert command.startswith("aider ")
