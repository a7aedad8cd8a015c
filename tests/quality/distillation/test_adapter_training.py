"""Training an adapter: held-out figures improve, the core serves the folder, no gain is no adapter (SPEC TI-10)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from torch.nn import functional

from benchmarks.core.random_adapter import write_random_adapter
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.loading.load_core import load_core
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, SamplingParams
from inference_core.tokenization.load_tokenizer import load_tokenizer
from quality.distillation.examples import Example, TokenExample, encoded_split
from quality.distillation.network import AdaptedDecoder, LowRank
from quality.distillation.recipe import Recipe
from quality.distillation.train import (
    RECORD_FILE,
    DistillationError,
    NamedModel,
    NoGainError,
    TrainingRecord,
    train_adapter,
)
from tests.inference_core.models.test_decoder_against_transformers import checkpoint_folder
from tests.inference_core.quantization.tiny_model import TEXT, tiny_config, write_tiny_model
from tests.quality.distillation.tiny_students import merged_folder, questions

RECIPE = Recipe(base="float32", epochs=12, learning_rate=5e-3)
ASKED = ("a 1717?", "b 4321?", "c 9909?", "d 5005?")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Such small matrices are not worth a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> NamedModel:
    return NamedModel(name="tiny", path=str(write_tiny_model(tmp_path_factory.mktemp("base") / "model")))


@pytest.fixture(scope="module")
def trained(base: NamedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingRecord]:
    """An adapter that answers questions, and how it was trained."""
    folder = tmp_path_factory.mktemp("trained") / "compass"
    return folder, train_adapter(base, folder, questions(120), RECIPE, source="questions")


@pytest.mark.parametrize("name", ["llama", "llama-tied", "llama-3.1", "mistral", "qwen2", "qwen3"])
def test_the_network_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    model = checkpoint_folder(name, tmp_path)
    tokens = torch.randint(0, 128, (2, 40), generator=torch.Generator().manual_seed(3))
    rows = (torch.tensor([0, 0, 1]), torch.tensor([0, 39, 25]))
    with torch.no_grad():
        want = model(tokens).logits[rows].log_softmax(-1)
        got = AdaptedDecoder(open_checkpoint(tmp_path), LowRank(4, 1.0), torch.float32)(tokens, rows).log_softmax(-1)
    torch.testing.assert_close(got, want, atol=1e-3, rtol=0)


def test_the_held_out_loss_falls_and_answers_agree_more(trained: tuple[Path, TrainingRecord]) -> None:
    folder, record = trained
    before, after = record.outcome.before, record.outcome.after
    assert (record.training, record.held_out) == (108, 12)
    assert after.loss < 0.5 * before.loss
    assert after.agreement > 0.8 > before.agreement
    assert record.outcome.last_loss < record.outcome.first_loss
    assert '"gain"' in (folder / RECORD_FILE).read_text()


def test_the_core_answers_with_it_as_transformers_does_with_merged_weights(
    base: NamedModel, trained: tuple[Path, TrainingRecord], tmp_path: Path
) -> None:
    folder, record = trained
    merged = merged_folder(Path(base.path), folder, tmp_path / "merged")
    wanted = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    spec = ModelSpec(
        name="tiny", path=base.path, compute="float32", kv_dtype="float32", adapters={"compass": str(folder)}
    )
    core = load_core(CoreSpec(models=[spec], arena_bytes=16 << 20, slab_bytes=1 << 20), tmp_path / "cache")
    tokenizer = load_tokenizer(Path(base.path))
    # What was written is what was measured.
    held_out = encoded_split(questions(120), tokenizer, held_out=0.1, max_tokens=512).held_out
    assert np.mean([loss_of(wanted, one) for one in held_out]) == pytest.approx(record.outcome.after.loss, rel=1e-3)
    end = tokenizer.eos_token_ids[0]
    said: dict[str, list[int]] = {}
    for adapter in ("compass", ""):
        for text in ASKED:
            sampling = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(end,))
            core.add(
                AddRequest(
                    request_id=f"{adapter}/{text}",
                    model="tiny",
                    prompt_token_ids=tokenizer.encode(text),
                    sampling=sampling,
                    adapter=adapter,
                )
            )
    while core.has_work:
        for output in core.step():
            said.setdefault(output.request_id, []).extend(output.token_ids)
    core.close()
    for text in ASKED:
        ids = tokenizer.encode(text)
        for _ in range(8):
            with torch.no_grad():
                ids.append(int(wanted(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == end:
                break
        mine = [token for token in said[f"compass/{text}"] if token != end]
        assert tokenizer.decode(mine) == tokenizer.decode(ids[len(tokenizer.encode(text)) :])
        assert said[f"compass/{text}"] != said[f"/{text}"]
    assert "north" in tokenizer.decode(said["compass/a 1717?"])


def loss_of(model: transformers.PreTrainedModel, example: TokenExample) -> float:
    """Nats per token of the answer."""
    with torch.no_grad():
        logits = model(torch.tensor([example.prompt + example.answer])).logits[0, len(example.prompt) - 1 : -1]
    return float(functional.cross_entropy(logits, torch.tensor(example.answer)))


def test_a_student_comes_closer_to_its_teacher(base: NamedModel, tmp_path: Path) -> None:
    write_random_adapter(tmp_path / "secret", tiny_config(Path(base.path)), rank=2, seed=5, strength=2.0)
    teacher = NamedModel(name="wise", path=str(merged_folder(Path(base.path), tmp_path / "secret", tmp_path / "wise")))
    cuts = [TEXT[at : at + 40] for at in range(0, 177, 2)]
    examples = [Example(turns=[{"role": "user", "content": cut[:10]}], answer=cut[10:]) for cut in cuts]
    recipe = Recipe(base="float32", epochs=6, learning_rate=5e-3)
    record = train_adapter(base, tmp_path / "student", examples, recipe, source="text", teacher=teacher)
    before, after = record.outcome.before, record.outcome.after
    assert before.kl is not None
    assert after.kl is not None
    assert after.kl < 0.5 * before.kl
    assert before.teacher_agreement is not None
    assert after.teacher_agreement is not None
    assert after.teacher_agreement > before.teacher_agreement


def test_an_adapter_without_a_gain_is_not_written(base: NamedModel, tmp_path: Path) -> None:
    # Its own teacher: there is no divergence that could fall.
    with pytest.raises(NoGainError, match="is not better on 12 held-out answers: the KL divergence") as refused:
        train_adapter(base, tmp_path / "same", questions(120), Recipe(), source="questions", teacher=base)
    assert not refused.value.record.outcome.is_better
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("error", "is_better"), [(0.6, True), (0.61, False)])
def test_a_gain_counts_once_it_is_1_645_standard_errors_above_zero(
    trained: tuple[Path, TrainingRecord], error: float, is_better: bool
) -> None:
    assert replace(trained[1].outcome, gain=1.0, gain_error=error).is_better is is_better


def test_what_cannot_be_trained_is_refused_before_training(base: NamedModel, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(DistillationError, match="adapters are not overwritten"):
        train_adapter(base, tmp_path / "there", questions(120), RECIPE, source="questions")
    with pytest.raises(DistillationError, match="36 examples to train on and 4 to measure with; at least 1 and 8"):
        train_adapter(base, tmp_path / "few", questions(40), RECIPE, source="questions")
    with pytest.raises(DistillationError, match=r"\(120 have no prompt, more than 8 tokens, or"):
        train_adapter(base, tmp_path / "long", questions(120), RECIPE, source="questions", max_tokens=8)
