"""A workload of a given mix goes to the tiers in the shares that were asked for."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import main
from benchmarks.gateway.mixed_workload import MixError, counts_of, mixed_workload
from gateway.cli import main as aio_main
from gateway.inference.router import RoutingService
from tests.support.scripted_classifier import ScriptedClassifier
from tiers.catalog.load import load_catalog


def backtest(*arguments: str) -> Result:
    return CliRunner().invoke(aio_main, ["backtest", *arguments])


@pytest.mark.parametrize("total", [1, 7, 100, 997])
def test_a_generated_mix_is_within_one_prompt_of_its_shares(total: int) -> None:
    mix = (0.6, 0.2, 0.15, 0.05)
    counts = counts_of(mix, total)
    assert sum(counts) == total
    assert all(abs(count - share * total) < 1 for count, share in zip(counts, mix, strict=True))


class ByFirstWord(ScriptedClassifier):
    """Tier k is the first that is good enough for prompts that begin with k."""

    def predict(self, given):  # type: ignore[no-untyped-def]
        tier = int(given.turn.split()[0])
        self.p_ok = tuple(1.0 if k >= tier else 0.0 for k in (1, 2, 3, 4))
        return super().predict(given)


def test_a_workload_has_the_mix_that_was_asked_for_and_routing_says_so() -> None:
    routing = RoutingService(load_catalog("laptop"), {}, ByFirstWord(), None)
    prompts = [f"{number % 4 + 1} is the tier of case {number}" for number in range(400)]
    made = mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 100, seed=3)
    assert [sum(one.tier == k for one in made) for k in (1, 2, 3, 4)] == [60, 20, 15, 5]
    assert all(one.messages[0]["content"].startswith(str(one.tier)) for one in made)
    assert len({one.messages[0]["content"] for one in made}) == 100
    assert made == mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 100, seed=3)
    with pytest.raises(MixError, match="only 100 go to tier 1 and 120 are wanted"):
        mixed_workload(routing, prompts, (0.6, 0.2, 0.15, 0.05), 200)


def test_the_command_writes_what_a_back_test_reads(tmp_path: Path) -> None:
    log, made = tmp_path / "log.jsonl", tmp_path / "mix.jsonl"
    log.write_text("".join(json.dumps({"prompt": f"What is {i} plus {i + 1}?"}) + "\n" for i in range(30)))
    place = ("--data-dir", str(tmp_path))
    report = json.loads(backtest(str(log), *place, "--quality", "0.95", "--json").output)
    [split] = [target["split"] for target in report["targets"]]
    tier = max(range(4), key=lambda k: split[k])
    mix = "/".join("100" if k == tier else "0" for k in range(4))
    arguments = ("--prompts", str(log), "--rows", "10", "--mix", mix, "--quality-target", "0.95")
    assert CliRunner().invoke(main, ["mix", str(made), *arguments, *place]).exit_code == 0
    again = json.loads(backtest(str(made), *place, "--quality", "0.95", "--json").output)
    assert again["targets"][0]["split"][tier] == 1
