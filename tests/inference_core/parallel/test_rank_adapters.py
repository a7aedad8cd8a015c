"""Ranks that hold parts of adapters add up to what the whole adapters give, whatever is divided over how many."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from inference_core.errors import ModelFileError
from inference_core.execution.block_memory import allocate_arena
from inference_core.loading.load_core import runner_of
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.packing import TorchAdapterBank
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.parallel.collectives import TensorGroup
from inference_core.parallel.mesh import Mesh
from inference_core.parallel.rank_runner import DeviceStage, RankAdapters
from inference_core.parallel.shards import DividedModel as Model
from inference_core.step_plan import ScheduledSequence
from tests.inference_core.lora.adapted_stages import divided, install, stage_of
from tests.inference_core.lora.adapters import write_adapter
from tests.inference_core.parallel.side_by_side import SHAPES, Drawn, in_turns, steps

SPEC = ModelSpec(name="m", path="-", compute="float32", kv_dtype="float32", max_context=128)
CORE = CoreSpec(models=[SPEC], arena_bytes=4 << 20, slab_bytes=1 << 20)
BOUND = 2e-5


def adapted_steps() -> list[list[ScheduledSequence]]:
    """The two sequences through one adapter each, then one of them through none."""
    slots = [{"a": 1, "b": 0}, {"a": 0, "b": 1}, {"a": 1, "b": -1}]
    return [
        [msgspec.structs.replace(s, adapter=own[s.sequence_id]) for s in step]
        for own, step in zip(slots, steps(), strict=True)
    ]


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[str], list[Path]]:
    def write(name: str) -> list[Path]:
        config = SHAPES[name]
        some = ("q_proj", "k_proj", "down_proj")
        return [
            write_adapter(tmp_path / "all", config, rank=8, seed=1),
            write_adapter(tmp_path / "some", config, rank=5, seed=2, modules=some),
        ]

    return write


def whole_logits(name: str, folders: list[Path], cache: Path) -> list[torch.Tensor]:
    """By the undivided model on the CPU's own runner."""
    whole = runner_of(SPEC, Drawn(SHAPES[name], "BF16"), CORE, allocate_arena(CORE.arena_bytes), cache)
    assert whole.adapters is not None
    for slot, folder in enumerate(folders):
        whole.adapters.install(slot, whole.adapters.read(folder))
    return [whole.logits(step, list(range(sum(len(s.token_ids) for s in step)))).clone() for step in adapted_steps()]


def device_stage(model: Model, rank: int, group: TensorGroup, folders: list[Path], cache: Path) -> DeviceStage:
    stage = stage_of(model, cache, rank, group)
    install(model, stage, folders, rank)
    return stage


def check(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for mine, whole in zip(given, wanted, strict=True):
        assert whole.std() > 0.1
        assert (mine - whole).abs().max().item() <= BOUND * whole.abs().max().item()


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["llama", "one-kv-head", "nine-heads"])
def test_shards_of_any_shape_give_the_logits_of_the_whole(
    name: str, ranks: int, folders: Callable[[str], list[Path]], tmp_path: Path
) -> None:
    model, written = divided(Drawn(SHAPES[name], "BF16"), Mesh(tensor=ranks), slots=2), folders(name)

    def compute(rank: int, group: TensorGroup) -> list[torch.Tensor]:
        stage = device_stage(model, rank, group, written, tmp_path)
        with torch.inference_mode():
            return [stage.head(stage.compute(step)) for step in adapted_steps()]

    parts = in_turns(ranks, compute)

    check([torch.cat(step, 1) for step in zip(*parts, strict=True)], whole_logits(name, written, tmp_path))


def test_stages_hold_the_parts_of_their_own_layers(folders: Callable[[str], list[Path]], tmp_path: Path) -> None:
    model, written = divided(Drawn(SHAPES["llama"], "BF16"), Mesh(pipeline=2), slots=2), folders("llama")
    alone = TensorGroup([0], 0)
    first, last = (device_stage(model, number, alone, written, tmp_path) for number in (0, 1))
    with torch.inference_mode():
        given = [last.head(last.compute(step, first.compute(step))) for step in adapted_steps()]
    check(given, whole_logits("llama", written, tmp_path))


def test_a_folder_that_is_another_on_this_machine_is_refused(
    folders: Callable[[str], list[Path]], tmp_path: Path
) -> None:
    model, written = divided(Drawn(SHAPES["llama"], "BF16"), Mesh(tensor=2), slots=2), folders("llama")
    share = model.shares[1]
    adapters = RankAdapters(model.config, share, TorchAdapterBank(share.config(model.config), 1, "float32"))
    with pytest.raises(ModelFileError, match="on this machine differs from the leader's"):
        adapters.read(0, written[0], read_adapter(written[1], model.config).digest)
