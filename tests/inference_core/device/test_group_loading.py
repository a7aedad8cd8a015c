"""A group of one card is loaded with all its models into what its memory leaves; on the host the same code runs."""

import contextlib
import logging
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from inference_core.engine.core import Core
from inference_core.errors import InvalidRequestError, MemoryPlanError, ModelFileError
from inference_core.loading.load_core import use_threads
from inference_core.model_spec import DeviceCoreSpec, DeviceGroupSpec, DeviceModelSpec
from inference_core.parallel.load_group import load_group
from inference_core.protocol import AddRequest, SamplingParams
from tests.inference_core.tiny_gguf import decoder_weights, write_gguf

SLAB = 1 << 16


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> DeviceGroupSpec:
    """Two models of different weights on a card of 64 MiB of this machine's memory."""
    folder = tmp_path_factory.mktemp("models")
    models = []
    for seed, name in enumerate("ab"):
        write_gguf(folder / f"{name}.gguf", decoder_weights(seed=seed))
        models.append(
            DeviceModelSpec(name=name, path=str(folder / f"{name}.gguf"), activations="float32", kv_dtype="float32")
        )
    core = DeviceCoreSpec(models=models, slab_bytes=SLAB, max_num_batched_tokens=64, max_num_seqs=4)
    return DeviceGroupSpec(name="card", device="cpu", core=core, card_bytes=1 << 26)


def drafted(group: DeviceGroupSpec) -> DeviceGroupSpec:
    """The group with a third model, the first one's weights in INT8, which drafts for the first."""
    target, other = group.core.models
    draft = replace(target, name="draft", compute="int8")
    knobs = {"speculation": "draft_model", "draft_control": "fixed", "max_draft_tokens": 3}
    models = [replace(target, draft="draft", knobs=knobs), other, draft]
    return replace(group, core=replace(group.core, models=models))


def accepted(core: Core) -> int:
    stats = core.stats().models[0].speculation
    return 0 if stats is None else sum(stats.accepted)


def answer(core: Core, *names: str) -> dict[str, list[int]]:
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    for name in names:
        core.add(AddRequest(request_id=name, model=name, prompt_token_ids=list(range(1, 30)), sampling=sampling))
    tokens: dict[str, list[int]] = {name: [] for name in names}
    while core.has_work:
        for output in core.step():
            assert output.error is None
            tokens[output.request_id] += output.token_ids
        core.check_integrity()
    return tokens


def test_models_of_a_group_share_its_arena_and_answer_as_each_does_alone(
    group: DeviceGroupSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    together = load_group(group, tmp_path)
    assert [info.name for info in together.model_infos] == ["a", "b"]
    assert 0 < together.stats().arena_bytes < 0.9 * (1 << 26)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("card: ")]
    for part in ("weights of a (dense)", "weights of b (dense)", "usable: 64.00 MiB", "- activations", "slabs of"):
        assert any(part in line for line in lines), (part, lines)
    said = answer(together, "a", "b")
    for index, name in enumerate("ab"):
        alone = replace(group, core=replace(group.core, models=[group.core.models[index]]))
        assert answer(load_group(alone, tmp_path), name)[name] == said[name]
    assert said["a"] != said["b"]


def test_a_model_of_a_group_drafts_for_another_and_no_token_changes(group: DeviceGroupSpec, tmp_path: Path) -> None:
    core = load_group(drafted(group), tmp_path)
    assert answer(core, "a", "b") == answer(load_group(group, tmp_path), "a", "b")
    assert accepted(core) > 0


def test_a_draft_that_is_not_of_the_group_is_refused(group: DeviceGroupSpec, tmp_path: Path) -> None:
    alone = replace(group.core, models=[replace(group.core.models[0], draft="missing")])
    with pytest.raises(ModelFileError, match="its draft is 'missing'; it must be another model of this core: none"):
        load_group(replace(group, core=alone), tmp_path)


def test_a_card_that_is_too_small_is_refused_with_the_groups_name_and_the_arithmetic(
    group: DeviceGroupSpec, tmp_path: Path
) -> None:
    with pytest.raises(MemoryPlanError, match=r"card: nothing is left for keys and values:\n.*usable: 32"):
        load_group(replace(group, card_bytes=32 << 10), tmp_path)


def test_a_card_larger_than_the_hosts_memory_is_refused(group: DeviceGroupSpec, tmp_path: Path) -> None:
    with pytest.raises(MemoryPlanError, match=r"card: its card is .* are available; make card_bytes smaller"):
        load_group(replace(group, card_bytes=1 << 60), tmp_path)


def test_a_missing_file_is_named(group: DeviceGroupSpec, tmp_path: Path) -> None:
    absent = replace(group.core.models[0], path="/no/such/model.gguf")
    with pytest.raises(ModelFileError, match=r"/no/such/model\.gguf"):
        load_group(replace(group, core=replace(group.core, models=[absent])), tmp_path)


def test_stored_knobs_of_a_group_are_applied_again(group: DeviceGroupSpec, tmp_path: Path) -> None:
    file = tmp_path / "knobs.card.json"
    core = load_group(group, tmp_path, knobs_file=file)
    core.set_knobs({"max_num_seqs": 2}, "b", keep=True)
    again = load_group(group, tmp_path, knobs_file=file)
    assert {name: knobs.max_num_seqs for name, knobs in again.knobs.items()} == {"a": 4, "b": 2}
    with pytest.raises(InvalidRequestError, match="room for 4"):
        again.set_knobs({"max_num_seqs": 5})


@pytest.mark.mesh
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_group_of_two_cards_answers_as_one_card_does_and_ends_its_other_process_when_it_is_closed(
    group: DeviceGroupSpec, tmp_path: Path, pipeline: int
) -> None:
    one = answer(load_group(group, tmp_path), "a", "b")
    core = load_group(replace(drafted(group), cards=2, pipeline=pipeline), tmp_path, knobs_file=tmp_path / "knobs.json")
    try:
        assert answer(core, "a", "b") == one
        assert accepted(core) > 0
        (rank,) = living_ranks()
        core.set_knobs({"max_num_seqs": 2}, keep=True)
        assert (tmp_path / "knobs.json").exists()
    finally:
        core.close()
        use_threads(None)  # a leader computes with its part of the CPUs
    assert rank not in living_ranks()


def living_ranks() -> set[int]:
    """Process ids of this process's living children that are ranks of a mesh."""
    found = set()
    for pid in map(
        int, Path("/proc/self/task").joinpath(str(threading.get_native_id()), "children").read_text().split()
    ):
        with contextlib.suppress(FileNotFoundError):
            if b"-m\0inference_core.parallel\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found
