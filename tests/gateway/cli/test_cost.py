"""`aio cost`: what routing would save, before anything is set up."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.gateway.in_process_cli import aio


def cost(*arguments: str) -> Result:
    return aio("cost", *arguments)


def test_two_model_names_give_three_lines_without_any_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("aio.toml").write_text("no catalogue at all")
    result = cost("--from", "gpt-5", "--to", "gpt-5-mini", "--requests", "1000000")
    assert result.exit_code == 0, result.output
    now, then, checked = result.output.splitlines()
    # 1,000 tokens at $1.25 and 200 at $10 per million, a million times; the small model costs a fifth.
    assert "$3,250.00" in now
    assert "$1,690.00" in then
    assert "48% less" in then
    assert "$1,787.50" in checked
    assert "45% less" in checked


def test_own_prices_providers_names_and_lengths_can_be_given() -> None:
    options = ("--easy", "50", "--prompt-tokens", "2000", "--answer-tokens", "100", "--requests", "1000", "--json")
    found = json.loads(cost("--from", "anthropic:claude-haiku-4-5", "--to", "0.1/0.5", *options).output)
    assert found["costs_usd"] == pytest.approx([0.00025, 0.0025])
    assert found["blended"]["saving"] == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "gpt-5"), "give --from, the model that you use now, and --to"),
        (("--from", "gtp-5-mini", "--to", "gpt-5"), "the price list has no 'gtp-5-mini'; it has gpt-5-mini"),
        (("--from", "gpt-5", "--to", "qwen3-8b"), "dollars per million tokens in/out such as 0.05/0.15"),
        (("--from", "gpt-5-mini", "--to", "gpt-5"), "gpt-5 costs $0.003250 a request, which is not less"),
    ],
)
def test_what_cannot_be_compared_says_why(arguments: tuple[str, ...], message: str) -> None:
    result = cost(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_traffic_mix_of_a_catalogue_is_calculated_as_before() -> None:
    result = cost("--costs", "0.0001,0.0005,0.003,0.01")
    assert result.exit_code == 0
    assert "63% less than tier 3 alone" in result.output
