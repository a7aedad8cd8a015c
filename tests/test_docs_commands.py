"""What pages tell a reader to type, set, scrape or write exists: commands with their options, variables, metrics,
endpoints and catalogues."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from benchmarks.__main__ import main as benchmarks
from gateway.base.configuration import IN_FILES, variable_of
from gateway.base.gone import GONE_VARIABLES
from inference_core.io.files import FILE_FORM
from tiers.catalog.load import load_catalog

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SNAPSHOTS = ROOT / "tests" / "snapshots"
# Read by commands, kernels, compose files and value files; no settings of a server.
OTHER_VARIABLES = {
    "AIO_ADMIN_KEY", "AIO_API_KEY", "AIO_CATALOG_FILE", "AIO_DATA", "AIO_ENV_FILE", "AIO_GROUP", "AIO_INSTRUCTION_SET",
    "AIO_NATIVE", "AIO_POOL_API_KEYS", "AIO_POOL_KEY", "AIO_URL", "AIO_WEIGHTS",
}  # fmt: skip
# Not in the schema: the WebSocket, the schema's own pages, `aio fleet serve`, and Triton's servers.
OTHER_ENDPOINTS = {
    "GET /v1/chat/completions/ws", "GET /docs", "GET /docs/openapi.json", "GET /v1/fleet", "GET /v2/models/*",
}  # fmt: skip
OPTION = re.compile(r"(?<!\S)(--[a-z][\w-]*)")


def by_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code_of(page: Path) -> Iterator[str]:
    """Lines of fenced code, those that end in a backslash with the next one, and code within lines."""
    fenced = False
    for line in re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        else:
            yield from [line] if fenced else re.findall(r"`([^`]+)`", line)


def typed(page: Path, program: str) -> Iterator[str]:
    """The arguments of each call of `program` in code of the page, up to the end of the command."""
    for code in code_of(page):
        for found in re.finditer(rf"(?:^|^\$ |; |&& |=\S+ ){program} ([a-z][^#|;&]*)", code):
            yield found[1]


def shipped_commands() -> dict[str, set[str]]:
    """Options of each `aio` command and group."""
    lines = (SNAPSHOTS / "commands.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        name, _, option = line.partition(" option ")
        name = name.partition(" argument ")[0]
        found.setdefault(name, {"--help"}).update(re.findall(r"--[\w-]+", option.partition(": ")[0]))
    return found


COMMANDS = shipped_commands()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    unknown = []
    for arguments in typed(page, "aio"):
        command, words = "aio", arguments.split()
        while words and f"{command} {words[0]}" in COMMANDS:
            command = f"{command} {words.pop(0)}"
        options = set(OPTION.findall(" ".join(words)))
        if command == "aio" or not options <= COMMANDS[command]:
            unknown.append(f"aio {arguments}")
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_benchmark_of_a_page_exists_with_its_options(page: Path) -> None:
    unknown, context = [], click.Context(benchmarks)
    for arguments in typed(page, "python -m benchmarks"):
        name, *words = arguments.split()
        command = benchmarks.get_command(context, name)
        options = set(OPTION.findall(" ".join(words)))
        if command is None or not options <= {name for each in command.params for name in each.opts}:
            unknown.append(arguments)
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    targets |= {"test-properties", "test-processes", "test-models"}
    assert {words.split()[0] for words in typed(page, "make")} - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_variable_that_a_page_names_is_read(page: Path) -> None:
    settings = (SNAPSHOTS / "settings.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"\bAIO_[A-Z][A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    named -= {f"{variable_of(field)}{FILE_FORM}" for field in IN_FILES}
    named -= GONE_VARIABLES.keys() if page.name == "CHANGELOG.md" else set()
    assert {name for name in named - OTHER_VARIABLES if not re.search(rf"^{name}\b", settings, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_metric_that_a_page_names_is_exported(page: Path) -> None:
    exported = "\n".join(
        (SNAPSHOTS / name).read_text(encoding="utf-8") for name in ("metrics.txt", "fleet_metrics.txt")
    )
    named = set(re.findall(r"`((?:aio_|vllm:)[a-z0-9_:]*[a-z0-9])(?:\{[^}]*\})?`", page.read_text(encoding="utf-8")))
    without = {re.sub(r"_(?:total|bucket|count|sum)$", "", name) for name in named}
    assert {name for name in without if not re.search(rf"^{name}(?:_total)?\b", exported, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_endpoint_that_a_page_names_is_in_the_schema(page: Path) -> None:
    schema = (SNAPSHOTS / "openapi.txt").read_text(encoding="utf-8")
    served = {f"{method} {path}" for path, method in re.findall(r"^(/\S*) ([A-Z]+) ", schema, re.MULTILINE)}
    served = {re.sub(r"\{\w+\}", "*", endpoint) for endpoint in served}
    named = re.findall(r"\b(?:GET|POST|PUT|PATCH|DELETE) /[\w/{}.-]+", page.read_text(encoding="utf-8"))
    named = [re.sub(r"\{\w+\}|(?<=/)[A-Z]+", "*", endpoint.rstrip(".")) for endpoint in named]
    assert set(named) - served - OTHER_ENDPOINTS == set()


def catalogues() -> list[Any]:
    """Catalogues of pages that are whole, or whole with another tier."""
    found = []
    other = '[[tiers]]\nname = "another-{}"\nurl = "http://127.0.0.1:9{}/v1"\nmodel = "m"\n'
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            if block.startswith("[tiers.remote]"):
                block = f'[[tiers]]\nname = "first"\n{block}'
            # Without tiers it belongs into a larger file; what `# …` leaves out is not there to be read.
            if "[[tiers]]" in block and "# …" not in block and "smollm2-int4" not in block:
                block += "".join(other.format(n, n) for n in range(2 - block.count("[[tiers]]")))
                found.append(pytest.param(block, id=f"{by_name(page)}-{number}"))
    return found


@pytest.mark.parametrize("text", catalogues())
def test_every_catalogue_of_a_page_is_read(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(text, encoding="utf-8")
    assert len(load_catalog(str(file)).tiers) >= 2


def test_some_pages_have_catalogues() -> None:
    assert len(catalogues()) >= 9
