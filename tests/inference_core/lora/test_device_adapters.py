"""On a device each row uses its own adapter, captured and mixed, while adapters are loaded and unloaded."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from adapters import TINY, MergedCheckpoint, write_adapter

from benchmarks.core.random_checkpoint import RandomCheckpoint
from inference_core.device.adapter_bank import DeviceAdapterBank
from inference_core.device.batch import Graphs, NoGraphs
from inference_core.device.cards import MemoryProfile
from inference_core.device.load_device_core import load_device_core
from inference_core.engine.core import Core
from inference_core.errors import InvalidRequestError, ModelFileError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.lora.adapter import adapter_targets
from inference_core.lora.adapter_file import read_adapter
from inference_core.model_config import ExpertMixture, RotaryEmbedding
from inference_core.model_spec import Activations, DeviceCoreSpec, DeviceModelSpec
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.rank_runner import DeviceStage
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.device.tiny_device import RecordingGraphs
from tests.inference_core.lora.adapted_stages import divided, install, stage_of

SLAB, BLOCKS = 1 << 18, 8
CPU = torch.device("cpu")
ADAPTERS = [
    {"rank": 1},
    {"rank": 4, "modules": ("q_proj", "v_proj")},
    {"rank": 6, "modules": ("down_proj",)},
    {"rank": 16},
    {"rank": 7, "modules": ("gate_proj",), "layers": [0, 2]},
    {"rank": 3, "use_rslora": True},
    {"rank": 8, "ranks": {"k_proj": 2, "o_proj": 5}, "rank_pattern": {"k_proj": 2, "o_proj": 5}},
    {"rank": 2, "modules": ("up_proj", "o_proj"), "lora_alpha": 1},
]
Logits = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(root / str(seed), seed=seed, **fields) for seed, fields in enumerate(ADAPTERS)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def share(number: int, tokens: int, start: int = 0) -> ScheduledSequence:
    """Of sequence `number`, which goes through the adapter in slot `number`; those from 8 on through none."""
    token_ids = [(31 * number + 7 * (start + i)) % TINY.vocab_size for i in range(tokens)]
    table = list(range(number * BLOCKS, (number + 1) * BLOCKS))
    return ScheduledSequence(str(number), token_ids, start, table, None, adapter=number if number < 8 else -1)


# Prompts of many lengths; decodes with a chunk among them; decodes alone, which graphs repeat.
STEPS = [
    [share(n, 3 + 5 * n) for n in (0, 9, 1, 2, 3, 8, 4, 5, 6, 7)],
    [share(n, 9 if n == 5 else 1, 3 + 5 * n) for n in (7, 1, 8, 5, 3, 2, 9, 0, 6, 4)],
    [share(n, 1, 4 + 5 * n) for n in (9, 1, 0, 6)],
    [share(n, 1, 4 + 5 * n) for n in (7, 3, 8)],
    [share(n, 1, 5 + 5 * n) for n in (9, 1, 0)],
]


def last_logits(stage: DeviceStage, steps: list[list[ScheduledSequence]]) -> list[Logits]:
    """Of each sequence's last token, step by step."""
    found = []
    with torch.inference_mode():
        for step in steps:
            last = np.cumsum([len(s.token_ids) for s in step]) - 1
            rows = stage.head(stage.compute(step))[last.tolist()]
            found.append(dict(zip([s.sequence_id for s in step], rows, strict=True)))
    return found


def bare(step: list[ScheduledSequence]) -> list[ScheduledSequence]:
    return [ScheduledSequence(s.sequence_id, s.token_ids, s.start, s.block_table, None) for s in step]


def merged_logits(
    checkpoint: Checkpoint, cache: Path, folders: list[Path], activations: Activations = "float32"
) -> list[Logits]:
    """Of each sequence by the model that has its adapter merged into its weights."""
    wanted: list[Logits] = [{} for _ in STEPS]
    for slot in (-1, *range(8)):
        model = checkpoint
        if slot >= 0:
            model = MergedCheckpoint(checkpoint, read_adapter(folders[slot], TINY))
        stage = stage_of(divided(model, Mesh(), slots=0, activations=activations), cache)
        own = [bare([s for s in step if s.adapter == slot]) for step in STEPS]
        present = [(found, step) for found, step in zip(wanted, own, strict=True) if step]
        for (found, _), logits in zip(present, last_logits(stage, [step for _, step in present]), strict=True):
            found |= logits
    return wanted


def worst(got: list[Logits], want: list[Logits]) -> float:
    """The largest error against the spread of the logits."""
    pairs = [(g[name], w[name]) for g, w in zip(got, want, strict=True) for name in w]
    assert len(pairs) == sum(len(step) for step in STEPS)
    return max(float((g - w).abs().max() / w.std()) for g, w in pairs)


@pytest.fixture(scope="module")
def merged(cache: Path, folders: list[Path]) -> list[Logits]:
    return merged_logits(RandomCheckpoint(TINY, "BF16"), cache, folders)


@pytest.mark.parametrize("graphs", [None, RecordingGraphs], ids=["eager", "repeated"])
def test_each_row_equals_the_model_with_its_adapter_merged(
    graphs: type[Graphs] | None, cache: Path, folders: list[Path], merged: list[Logits]
) -> None:
    checkpoint = RandomCheckpoint(TINY, "BF16")
    model = divided(checkpoint, Mesh())
    stage = stage_of(model, cache, graphs=graphs() if graphs else None)
    install(model, stage, folders)

    got = last_logits(stage, STEPS)

    assert worst(got, merged) < 1e-4
    plain = last_logits(stage_of(model, cache), [bare(step) for step in STEPS])
    assert (
        min(float((p[n] - m[n]).abs().max()) for p, m in zip(plain, merged, strict=True) for n in m if int(n) < 8) > 0.1
    )


def test_in_bfloat16_rows_err_no_more_than_merged_models_do(
    cache: Path, folders: list[Path], merged: list[Logits]
) -> None:
    checkpoint = RandomCheckpoint(TINY, "BF16")
    model = divided(checkpoint, Mesh(), activations="bfloat16")
    stage = stage_of(model, cache)
    install(model, stage, folders)

    error = typical(last_logits(stage, STEPS), merged)

    assert error < 1.5 * typical(merged_logits(checkpoint, cache, folders, "bfloat16"), merged)


def test_rows_without_an_adapter_have_the_bits_of_a_model_without_adapters(cache: Path, folders: list[Path]) -> None:
    checkpoint = RandomCheckpoint(TINY, "BF16")
    model = divided(checkpoint, Mesh())
    stage = stage_of(model, cache)
    install(model, stage, folders)
    want = last_logits(stage_of(divided(checkpoint, Mesh(), slots=0), cache), [bare(step) for step in STEPS])

    for got, expected in zip(last_logits(stage, STEPS), want, strict=True):
        for name in got.keys() & {"8", "9"}:
            torch.testing.assert_close(got[name], expected[name], rtol=0, atol=0)


BEYOND_LLAMA: dict[str, dict[str, Any]] = {
    "post-norms and GEGLU": {
        "architecture": "gemma2",
        "post_norm": True,
        "activation": "gelu-tanh",
        "final_softcap": 3.0,
    },
    "experts": {"architecture": "mixtral", "experts": ExpertMixture(count=4, per_token=2, normalised=True)},
    "part of a head rotated": {"architecture": "phi3", "rope": RotaryEmbedding(theta=1e4, dim=12)},
}


@pytest.mark.parametrize("features", BEYOND_LLAMA)
def test_decoders_with_other_features_equal_the_models_with_an_adapter_merged(
    features: str, cache: Path, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(TINY, **BEYOND_LLAMA[features])
    checkpoint, modules = RandomCheckpoint(config, "BF16"), tuple(adapter_targets(config))
    folder = write_adapter(tmp_path / "adapter", config, modules=modules, strength=1.0)
    steps = [[share(0, 12), share(9, 7)], [share(0, 1, 12), share(9, 1, 7)]]
    model = divided(checkpoint, Mesh())
    stage = stage_of(model, cache)
    install(model, stage, [folder])

    got = last_logits(stage, steps)

    merged = stage_of(divided(MergedCheckpoint(checkpoint, read_adapter(folder, config)), Mesh(), slots=0), cache)
    plain = stage_of(divided(checkpoint, Mesh(), slots=0), cache)
    want, without = (last_logits(other, [bare(step) for step in steps]) for other in (merged, plain))
    for step in range(2):
        assert float((got[step]["0"] - want[step]["0"]).abs().max() / want[step]["0"].std()) < 1e-4
        assert float((without[step]["0"] - want[step]["0"]).abs().max() / want[step]["0"].std()) > 0.1
        torch.testing.assert_close(got[step]["9"], without[step]["9"], rtol=0, atol=1e-5)


def test_parts_without_adapters_keep_their_places_for_the_kernels(tmp_path: Path) -> None:
    """Kernels count the parts of a projection from its first output."""
    config = msgspec.structs.replace(TINY, rope=RotaryEmbedding(theta=1e4, dim=12))
    bank = DeviceAdapterBank(config, 2, 4, torch.float32, CPU)
    bank.install(1, bank.read(write_adapter(tmp_path / "adapter", config, modules=("v_proj",))))
    slots = bank.layers[0]["qkv"]
    assert slots.borders == (0, 64, 96, 128)
    assert slots.ranks[1].tolist() == [0, 0, 4]


def typical(got: list[Logits], want: list[Logits]) -> float:
    """The root of the mean square error against the spread of the logits."""
    errors = [(g[name] - w[name]) / w[name].std() for g, w in zip(got, want, strict=True) for name in w]
    return float(torch.cat(errors).square().mean().sqrt())


def core_of(checkpoint: Checkpoint, cache: Path, *, graphs: type[Graphs] = NoGraphs, **fields: object) -> Core:
    """A core with two slots, on a device of ten slabs."""
    settings = {"max_adapters": 2, "activations": "float32", "kv_dtype": "float32"} | fields
    spec = DeviceCoreSpec(
        models=[DeviceModelSpec(name="m", path="", **settings)],
        slab_bytes=SLAB,
        max_num_batched_tokens=64,
        max_num_seqs=4,
    )

    def profile(_: torch.device, largest_step: object) -> MemoryProfile:
        largest_step()
        return MemoryProfile(total=10 * SLAB, others=0, weights=SLAB, activations=SLAB)

    return load_device_core(spec, {"m": checkpoint}, CPU, cache, profile=profile, make_graphs=graphs)


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def add(core: Core, request: str, adapter: str = "", tokens: int = 8) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    core.add(AddRequest(request_id=request, model="m", prompt_token_ids=PROMPT, sampling=sampling, adapter=adapter))


def drain(core: Core, said: dict[str, list[int]] | None = None, steps: int = 10_000) -> dict[str, list[int]]:
    said = {} if said is None else said
    while core.has_work and steps:
        steps -= 1
        for output in core.step():
            assert output.error is None, output.error
            said.setdefault(output.request_id, []).extend(output.token_ids)
        core.check_integrity()
    return said


@pytest.fixture(scope="module")
def alone(cache: Path, folders: list[Path]) -> dict[str, list[int]]:
    """The answers with each adapter ("": the base model), by a model with the adapter merged."""
    checkpoint = RandomCheckpoint(TINY, "BF16")
    said = {}
    for name in ("", *"0356"):
        model = MergedCheckpoint(checkpoint, read_adapter(folders[int(name)], TINY)) if name else checkpoint
        core = core_of(model, cache, max_adapters=0)
        add(core, name)
        said |= drain(core)
    assert len({tuple(tokens) for tokens in said.values()}) == 5
    return said


def test_more_adapters_than_slots_are_all_served_and_brought_back_from_the_host(
    cache: Path, folders: list[Path], alone: dict[str, list[int]]
) -> None:
    core = core_of(RandomCheckpoint(TINY, "BF16"), cache, graphs=RecordingGraphs)
    for name in alone.keys() - {""}:
        core.load_adapter("m", name, str(folders[int(name)]))
    for number, name in enumerate("0356" * 2):
        add(core, f"{number}", name)
        add(core, f"{number} alone")

    said = drain(core)

    for number, name in enumerate("0356" * 2):
        assert said[f"{number}"] == alone[name], name
        assert said[f"{number} alone"] == alone[""]
    stats = core.stats().models[0]
    assert stats.adapter_slots == 2
    assert stats.adapter_installs == stats.adapter_evictions + 2
    assert stats.adapter_evictions >= 4


def test_adapters_come_and_go_while_others_are_served(
    cache: Path, folders: list[Path], alone: dict[str, list[int]]
) -> None:
    core = core_of(RandomCheckpoint(TINY, "BF16"), cache, graphs=RecordingGraphs)
    core.load_adapter("m", "a", str(folders[0]))
    add(core, "first", "a")
    add(core, "plain")
    said = drain(core, steps=3)

    core.unload_adapter("m", "a")
    core.load_adapter("m", "b", str(folders[3]))
    add(core, "second", "b")
    with pytest.raises(InvalidRequestError, match="'a' is being unloaded"):
        add(core, "late", "a")
    drain(core, said)
    core.load_adapter("m", "a", str(folders[5]))
    add(core, "third", "a")
    drain(core, said)

    assert said == {"first": alone["0"], "plain": alone[""], "second": alone["3"], "third": alone["5"]}


def test_prefixes_are_shared_with_the_same_adapter_alone(cache: Path, folders: list[Path]) -> None:
    core = core_of(RandomCheckpoint(TINY, "BF16"), cache, adapters={"a": str(folders[0]), "b": str(folders[3])})
    found = {}
    for request, adapter in (("1", ""), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "")):
        add(core, request, adapter)
        while core.has_work:
            for output in core.step():
                found[request] = output.cached_tokens if output.finish_reason else 0
    assert found == {"1": 0, "2": 0, "3": 0, "4": 16, "5": 16}


def test_what_a_slot_does_not_take_is_refused_with_the_reason(cache: Path, folders: list[Path]) -> None:
    checkpoint = RandomCheckpoint(TINY, "BF16")
    core = core_of(checkpoint, cache, max_adapter_rank=8)
    with pytest.raises(ModelFileError, match="rank 16; slots on the device take ranks up to 8"):
        core.load_adapter("m", "a", str(folders[3]))
    assert core.adapters("m") == []
    with pytest.raises(ModelFileError, match="give it slots for them: max_adapters > 0"):
        core_of(checkpoint, cache, max_adapters=0, adapters={"a": str(folders[0])})


def test_unloaded_adapters_leave_host_memory(cache: Path, folders: list[Path]) -> None:
    model = divided(RandomCheckpoint(TINY, "BF16"), Mesh(), slots=1)
    bank = stage_of(model, cache).adapters
    assert bank is not None
    adapter = bank.read(folders[0])
    bank.install(0, adapter)
    bank.forget(adapter)
    with pytest.raises(KeyError):
        bank.install(0, adapter)
