"""Steps of decoders with features beyond Llama's: one native call has the bits of the operators, in any arithmetic."""

from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks.core.random_checkpoint import RandomCheckpoint
from inference_core.attention import CpuAttention
from inference_core.execution.logits_runner import DecoderRunner
from inference_core.execution.native_runner import NativeDecoder
from inference_core.loading.load_core import layout_of
from inference_core.loading.outliers import load_decoder
from inference_core.model_config import AttentionFeatures, ExpertMixture, ModelConfig, RotaryEmbedding
from inference_core.model_spec import ModelSpec
from inference_core.models.transformer import rotary_table
from inference_core.native import cpu
from inference_core.protocol import ModelInfo, SamplingParams
from inference_core.step_plan import SampleSpec, ScheduledSequence

pytestmark = pytest.mark.skipif(not cpu.AVAILABLE, reason="the native kernels were not built (no C++ compiler)")
SLAB = 2 << 20
GREEDY = SampleSpec(SamplingParams(temperature=0), [], [], 0, 0, ())
PLAIN = ModelConfig(
    architecture="llama", vocab_size=200, hidden_size=64, intermediate_size=96, num_layers=4, num_heads=4,
    num_kv_heads=2, head_dim=32, max_position=512, rms_eps=1e-5, rope=RotaryEmbedding(theta=1e4),
)  # fmt: skip
CONFIGS = {
    "gemma2": msgspec.structs.replace(
        PLAIN, architecture="gemma2", embedding_scale=8.0, activation="gelu-tanh", post_norm=True,
        attention=AttentionFeatures(sliding_window=24, window_layers=(0, 2), softcap=3.0, scale=0.3),
        final_softcap=2.0, tie_embeddings=True,
    ),
    "gemma3": msgspec.structs.replace(
        PLAIN, architecture="gemma3_text", embedding_scale=8.0, activation="gelu-tanh", post_norm=True,
        attention=AttentionFeatures(qk_norm=True, sliding_window=24, window_layers=(0, 1, 3)),
        rope=RotaryEmbedding(theta=1e4, local_theta=1e3),
    ),
    "olmo2": msgspec.structs.replace(
        PLAIN, architecture="olmo2", pre_norm=False, post_norm=True,
        attention=AttentionFeatures(qk_norm=True, qk_norm_whole=True),
    ),
    "experts": msgspec.structs.replace(
        PLAIN, architecture="qwen3_moe", intermediate_size=64,
        experts=ExpertMixture(count=8, per_token=2), attention=AttentionFeatures(qk_norm=True),
    ),
    "gpt-oss": msgspec.structs.replace(
        PLAIN, architecture="gpt_oss", intermediate_size=64,
        experts=ExpertMixture(count=8, per_token=2, normalised=True, has_bias=True),
        attention=AttentionFeatures(
            sliding_window=24, window_layers=(0, 2), sinks=True, qkv_bias=True, output_bias=True
        ),
        activation="clamped-swiglu", swiglu_limit=0.5,
    ),
    "clamped": msgspec.structs.replace(
        PLAIN, activation="clamped-swiglu", swiglu_limit=0.5, attention=AttentionFeatures(sinks=True)
    ),
    "smollm3": msgspec.structs.replace(
        PLAIN, architecture="smollm3", rope=RotaryEmbedding(theta=1e4, skipped_layers=(1, 3), dim=16)
    ),
}  # fmt: skip


class Twins:
    """One model in one native call, and operator by operator, over an arena each."""

    def __init__(self, name: str, compute: str, cache: Path) -> None:
        checkpoint = RandomCheckpoint(CONFIGS[name], "Q4_0" if compute == "int4-int8" else "BF16")
        decoder = load_decoder(checkpoint, compute, cache)
        config, layout = checkpoint.config, layout_of(ModelSpec(name="m", path="m", compute=compute), checkpoint.config)
        arenas, table = [torch.zeros(SLAB, dtype=torch.uint8) for _ in range(2)], rotary_table(config, 256)
        info = ModelInfo(name="m", model_path="", max_context=256, vocab_size=200, weight_bytes=0, compute=compute)
        self.native = NativeDecoder(config, layout, arenas[0], SLAB, table)
        self.native.load(decoder)
        self.operators = DecoderRunner(info, decoder, layout, CpuAttention(config, layout, arenas[1], table), SLAB)


def share(number: int, tokens: int, start: int, fast_until: int = 0) -> ScheduledSequence:
    ids = [(31 * number + 7 * (start + i)) % 200 for i in range(tokens)]
    blocks = list(range(10 * number, 10 * number + 10))
    return ScheduledSequence(str(number), ids, start, blocks, GREEDY, fast_until=fast_until)


@pytest.mark.parametrize("compute", ["int4-int8", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_one_call_has_the_bits_of_the_operators(name: str, compute: str, tmp_path: Path) -> None:
    twins = Twins(name, compute, tmp_path)
    for step in ([share(0, 70, 0), share(1, 3, 0)], [share(0, 1, 70), share(1, 40, 3), share(2, 9, 0)]):
        got, _ = twins.native.decode(step)
        want = twins.operators.logits(step)
        # The weights of experts are torch's softmax there.
        torch.testing.assert_close(got, want, atol=2e-3 if CONFIGS[name].num_experts else 0, rtol=0)
        assert got.isfinite().all()
        assert got.std() > 0.05


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_has_the_same_bits_in_chunks(name: str, tmp_path: Path) -> None:
    native = Twins(name, "int4-int8", tmp_path).native
    whole = native.decode([share(0, 80, 0)])[0].clone()
    for start, end in ((0, 33), (33, 50), (50, 79)):
        native.decode([share(0, end - start, start), share(1, 20, 0)])
    assert torch.equal(native.decode([share(0, 1, 79)])[0], whole)


def exact_and_fast(native: NativeDecoder) -> tuple[torch.Tensor, torch.Tensor]:
    exact = native.decode([share(0, 80, 0)])[0].clone()
    return exact, native.decode([share(0, 80, 0, fast_until=80)])[0].clone()


@pytest.mark.usefixtures("attention_kernels")
@pytest.mark.parametrize("name", CONFIGS)
def test_prompt_arithmetic_is_close_to_the_exact_one(name: str, tmp_path: Path) -> None:
    exact, fast = exact_and_fast(Twins(name, "bfloat16", tmp_path).native)
    assert not torch.equal(exact, fast)
    torch.testing.assert_close(fast, exact, atol=0.1, rtol=0)


@pytest.mark.usefixtures("span_kernels")
@pytest.mark.parametrize("name", CONFIGS)
def test_spans_of_integers_are_close_to_the_exact_arithmetic_too(name: str, tmp_path: Path) -> None:
    native = Twins(name, "int4-int8", tmp_path).native
    exact, fast = exact_and_fast(native)
    assert not torch.equal(exact, fast)
    # A router may take another expert: so much the tiles differ by, too.
    assert (fast - exact).norm() / exact.norm() < (0.12 if name == "experts" else 0.04)
    for start, end in ((0, 33), (33, 50), (50, 79)):
        native.decode([share(0, end - start, start, fast_until=80), share(1, 20, 0, fast_until=9)])
    assert torch.equal(native.decode([share(0, 1, 79, fast_until=80)])[0], fast)
