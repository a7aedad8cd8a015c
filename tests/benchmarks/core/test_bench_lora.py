"""The measurement of adapters says what it measured, and leaves the core without them."""

import pytest

from benchmarks.core.lora import LoraOptions, lora_cost
from inference_core.lora.adapter_file import read_adapter
from inference_core.lora.random_adapter import write_random_adapter
from inference_core.model_config import ModelConfig
from inference_core.transport.core_thread import ThreadCoreClient
from tests.gateway.bench.word_tokenizer import WordTokenizer
from tests.inference_core.hash_model import hash_core

TINY = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    max_position=64,
    rms_eps=1e-5,
    rope_theta=1e4,
)


async def test_both_sides_are_measured_in_turn_and_nothing_stays(tmp_path):
    client = ThreadCoreClient(lambda: hash_core("m", adapter_slots=2))
    await client.start()
    options = LoraOptions(streams=3, adapters=2, rank=1, tokens=4, prompt_words=3, rounds=2)

    cost = await lora_cost(client, WordTokenizer(), "m", TINY, tmp_path, options)

    stats = (await client.stats()).models[0]
    await client.close()
    assert cost.ratio is not None
    assert (cost.streams, cost.adapters, cost.rounds) == (3, 2, 2)
    assert stats.adapters == []
    assert stats.adapter_installs == 2
    assert stats.generated_tokens == 3 * 3 * 2 * 4


def test_random_adapters_are_valid_and_differ_by_seed(tmp_path):
    for seed in (0, 1):
        write_random_adapter(tmp_path / str(seed), TINY, rank=3, seed=seed)

    one, other = (read_adapter(tmp_path / str(seed), TINY) for seed in (0, 1))

    assert [len(layer) for layer in one.layers] == [7, 7]
    assert one.rank == 3
    assert one.digest != other.digest


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="rank is 0"):
        LoraOptions(rank=0)
