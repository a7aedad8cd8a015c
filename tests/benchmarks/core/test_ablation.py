"""The ablation: which systems it compares, how it survives a cut, and what it makes of their figures."""

from itertools import pairwise

import msgspec
import pytest

from benchmarks.core.ablation import COLUMNS, AblationOptions, ablate
from benchmarks.core.techniques import (
    BASELINE,
    COMPUTES,
    FEATURES,
    FULL,
    TECHNIQUES,
    Arm,
    alone,
    arms,
    in_full,
    ladder,
    of_feature,
)
from benchmarks.report.measurement import Measurement
from inference_core.model_spec import ModelSpec

MODEL = ModelSpec(name="m", path="nowhere", compute="int4-int8")

OPTIONS = AblationOptions(rounds=2, requests=32, concurrency=8, arena_mb=1)


def differences(one, other):
    plain = [msgspec.structs.asdict(arm.configuration) for arm in (one, other)]
    return {name for name in plain[0] if plain[0][name] != plain[1][name]}


def test_the_ladder_leads_from_the_baseline_to_the_full_system_one_change_at_a_time():
    rungs = [arm for _, arm in ladder()]

    assert (rungs[0].configuration, rungs[-1].configuration) == (BASELINE, FULL)
    steps = [differences(*pair) for pair in pairwise(rungs)]
    assert sorted(len(step) for step in steps) == [0] + [1] * len(TECHNIQUES)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_a_technique_is_compared_with_the_same_system_and_load_without_it(technique):
    for pair in (alone(technique), in_full(technique)):
        if pair is not None:
            assert differences(pair.without, pair.having) in ({next(iter(technique.on))}, set(technique.off))
            assert pair.without.small == pair.having.small == technique.slow


def test_only_what_is_slow_runs_on_torch_and_then_on_the_small_load():
    assert {arm.small for arm in arms() if not arm.configuration.native} == {True}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f"{f.name} {f.load}")
def test_a_decoding_feature_is_compared_with_the_full_system_without_it_on_the_same_load(feature):
    pair = of_feature(feature)

    assert differences(pair.without, pair.having) == set(feature.on)
    assert pair.without.load == pair.having.load == feature.load
    assert differences(pair.having, Arm(FULL)) <= {*feature.on, *(feature.beside or {})}


def speed_of(configuration):
    """Every technique doubles throughput but the prefix cache, which is worth 3 with paging and nothing else."""
    speed = 1.0 * 2**configuration.native * 2**configuration.paging * 2**configuration.chunked_prefill
    speed *= {"static": 1, "dynamic": 2, "continuous": 4}[configuration.batching]
    speed *= {"float32": 1, "bfloat16": 1.5, "int4": 1.6, "int4-int8": 2}[configuration.compute]
    speed *= 2 if configuration.kv_dtype == "int8" else 1
    speed *= 0.5 if configuration.structured else 1
    return speed * (3 if configuration.prefix_caching else 1)


class Machine:
    """Answers as `speed_of` says, slower from round to round, and remembers what it was asked."""

    def __init__(self, fails_after=1000):
        self.tasks = []
        self.fails_after = fails_after

    async def __call__(self, task):
        if len(self.tasks) == self.fails_after:
            raise RuntimeError("power failure")
        self.tasks.append(task)
        drift = 1 + task.seed / 10
        row = dict.fromkeys(COLUMNS, 1.0) | {"weights_mb": 70.0}
        return row | {"out_tok_s": speed_of(task.configuration) / drift}


async def measured(machine, measurement):
    return await ablate(
        OPTIONS,
        MODEL,
        measurement,
        cache_dir="nowhere",
        slab_bytes=2**20,
        threads=None,
        run_arm=machine,
    )


async def test_effects_are_ratios_within_rounds_alone_and_in_the_full_system():
    results = await measured(Machine(), Measurement.begin("ablation", {}))

    effects = {effect.technique: effect for effect in results.effects}
    for name, factor in (("native kernels", 2), ("paging", 2), ("prefix cache", 3)):
        speed = effects[name].alone["out_tok_s"]
        assert (speed.median, speed.low, speed.high) == pytest.approx((factor, factor, factor))
    # Without paging the prefix cache goes too.
    assert effects["paging"].full["out_tok_s"].median == pytest.approx(6)
    assert effects["paging"].interaction == pytest.approx(3)
    assert effects["continuous batching"].alone["out_tok_s"].median == pytest.approx(4)
    assert effects["continuous batching"].full["out_tok_s"].median == pytest.approx(2)
    assert effects["dynamic batching"].full is None
    features = {effect.feature: effect.ratios["out_tok_s"].median for effect in results.features}
    assert (features["JSON schema"], features["8 adapters of rank 8"]) == pytest.approx((0.5, 1))
    assert [v.ratios["out_tok_s"].median for v in results.computes] == pytest.approx([1, 1.5, 1.6, 2])
    assert [v.compute for v in results.computes] == list(COMPUTES)


async def test_steps_of_the_ladder_multiply_to_the_whole():
    results = await measured(Machine(), Measurement.begin("ablation", {}))

    product = 1.0
    for rung in results.ladder:
        product *= rung.step["out_tok_s"].median if rung.step else 1
    assert product == pytest.approx(speed_of(FULL) / speed_of(BASELINE))


async def test_every_arm_runs_once_per_round_with_that_rounds_prompts():
    machine = Machine()

    await measured(machine, Measurement.begin("ablation", {}))

    assert len(machine.tasks) == 2 * len(arms())
    assert {task.seed for task in machine.tasks[: len(arms())]} == {OPTIONS.seed}
    forth, back = machine.tasks[: len(arms())], machine.tasks[len(arms()) :]
    assert [task.configuration for task in forth] == [task.configuration for task in back[::-1]]


async def test_after_a_failure_only_what_is_missing_is_measured(tmp_path):
    path = tmp_path / "ablation.jsonl"
    with pytest.raises(RuntimeError, match="power failure"):
        await measured(Machine(fails_after=5), Measurement.begin("ablation", {}, path))
    machine = Machine()

    await measured(machine, Measurement.begin("ablation", {}, path))

    assert len(machine.tasks) == 2 * len(arms()) - 5
    assert Measurement.read(path).finished


def test_options_out_of_range_are_refused_by_name():
    with pytest.raises(ValueError, match="rounds is 0"):
        AblationOptions(rounds=0)
