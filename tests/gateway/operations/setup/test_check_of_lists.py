"""`aio check` says which lists prices come from, and asks every server elsewhere that gives embeddings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from tests.gateway.operations.setup.model_servers import ModelServer, model_server, openai_pages
from tiers.catalog.price_list import list_version

VECTORS = {"data": [{"index": 0, "embedding": [0.5, 1.0, 2.0]}], "usage": {"prompt_tokens": 8}}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIO_CATALOG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    pages: dict[str, Any] = {**openai_pages("own-model", "claude-sonnet-4-5"), "/v1/embeddings": VECTORS}
    with model_server(pages) as one:
        yield one


def checked(server: ModelServer, *embeddings: str, first: str = "own-model", **environment: str) -> Result:
    """The output of `aio check` for a tier with a price of its own and another of the list's."""
    price = "price = { input_usd_per_million = 0.1, output_usd_per_million = 0.2 }"
    tiers = [f'name = "a"\nurl = "{server.url}"\nmodel = "{first}"\n{price}']
    tiers.append(f'name = "b"\nurl = "{server.url}"\nmodel = "claude-sonnet-4-5"')
    entries = [f"[[tiers]]\n{one}\n" for one in tiers] + [f"[[embeddings]]\n{one}\n" for one in embeddings]
    Path("aio.toml").write_text("\n".join(entries))
    command = ["check", "--data-dir", "data", "--cache-dir", "cache"]
    return CliRunner().invoke(main, command, env=environment)


def test_prices_of_the_packages_list_are_named_with_its_version(server: ModelServer) -> None:
    result = checked(server)
    assert result.exit_code == 0, result.output
    assert f"prices: genai-prices {list_version()}, as of 20" in result.output
    assert "Embeddings" not in result.output


def test_embeddings_are_listed_with_their_price_and_a_server_elsewhere_is_asked_for_one(server: ModelServer) -> None:
    elsewhere = f'name = "small"\nurl = "{server.url}"\nmodel = "embed-3"\ninput_usd_per_million = 0.02'
    result = checked(server, elsewhere)
    assert result.exit_code == 0, result.output
    assert f"embeddings: small ({server.url}), $0.02 per million" in result.output
    assert "Embeddings small: 3 dimensions" in result.output
    assert server.asked.count("/v1/embeddings") == 1


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('url = "http://127.0.0.1:1/v1"', "cannot be reached"),
        ('url = "{url}"\napi_key_env = "ABSENT_KEY"', "ABSENT_KEY, which is not set"),
        ('url = "{url}/elsewhere"', "answered 404"),
    ],
)
def test_embeddings_that_do_not_come_fail_the_check(server: ModelServer, entry: str, problem: str) -> None:
    where = entry.format(url=server.url)
    result = checked(server, f'name = "small"\n{where}\nmodel = "embed-3"\ninput_usd_per_million = 0.02')
    assert result.exit_code == 1
    assert "Embeddings small: PROBLEM" in result.output
    assert problem in result.output.partition("problem: embeddings 'small'")[2]
