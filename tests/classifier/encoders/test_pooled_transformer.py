"""A Hugging Face encoder without padding gives what transformers gives with it, packed, bucketed or one at a time."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from classifier.encoders.pooled_transformer import PooledTransformer, batches_by_length, runs, shuffled_batches
from classifier.errors import CheckpointError
from tests.classifier.tiny_checkpoints import ARCHITECTURES, WINDOW, tiny_checkpoint

WORDS = [
    *("the", "lattice", "of", "prime", "numbers", "is", "dense", "where", "a", "river", "meets", "every"),
    *("second", "house", "and", "no", "dog", "barks"),
]


def texts(n: int = 24) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=size)) for size in rng.integers(1, 40, n)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), request.param, texts())


def padded(folder: Path, rows: list[list[int]]) -> np.ndarray:
    """Mean states as usually computed: padded to the longest, with an attention mask."""
    model = AutoModel.from_pretrained(folder).eval()
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.inference_mode():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]
    return (states.sum(1) / mask.sum(1, keepdim=True)).numpy()


def test_packed_sequences_have_the_states_of_padded_ones(checkpoint: Path) -> None:
    transformer = PooledTransformer.load(checkpoint)
    rows = transformer.token_ids(texts())
    assert transformer.packs
    assert max(map(len, rows)) > 2 * WINDOW  # a sliding window matters
    np.testing.assert_allclose(transformer.encode_ids(rows, budget=200), padded(checkpoint, rows), atol=2e-5)


def test_batches_of_equal_length_have_the_states_of_padded_ones(checkpoint: Path) -> None:
    transformer = PooledTransformer.load(checkpoint)
    transformer.packs = False
    rows = transformer.token_ids(texts())
    np.testing.assert_allclose(transformer.encode_ids(rows, budget=200), padded(checkpoint, rows), atol=2e-5)


def test_a_prompts_state_does_not_depend_on_its_neighbours(checkpoint: Path) -> None:
    transformer = PooledTransformer.load(checkpoint)
    wanted = texts()
    alone = np.vstack([transformer.encode([text]) for text in wanted])
    np.testing.assert_allclose(transformer.encode(wanted), alone, atol=2e-5)


def test_a_vectors_entries_depend_on_its_neighbours_by_no_more_than_the_page_says(checkpoint: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "catalogue.md"
    said = re.search(r"on the batch, except\s+for\s+rounding \(([0-9.e-]+) of an\s+entry\)", page.read_text())
    assert said is not None
    transformer = PooledTransformer.load(checkpoint)
    alone = np.vstack([transformer.encode([text]) for text in texts()])
    apart = np.abs(normalised(transformer.encode(texts())) - normalised(alone)).max()
    assert apart <= float(said[1])


def normalised(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_gradients_through_packed_sequences_are_those_of_each_alone(checkpoint: Path) -> None:
    transformer = PooledTransformer.load(checkpoint)
    rows = transformer.token_ids(texts(4))
    weight = transformer.model.get_input_embeddings().weight
    transformer.pooled(rows).square().sum().backward()
    together = weight.grad.clone()
    weight.grad = None
    for row in rows:
        transformer.pooled([row]).square().sum().backward()
    torch.testing.assert_close(weight.grad, together, atol=1e-4, rtol=1e-3)


def test_a_long_prompt_keeps_its_start_and_its_end(checkpoint: Path) -> None:
    transformer = PooledTransformer.load(checkpoint, max_tokens=16)
    text = " ".join(WORDS * 5)
    (cut,) = transformer.token_ids([text])
    (whole,) = PooledTransformer.load(checkpoint, max_tokens=256).token_ids([text])
    assert len(cut) == 16
    assert cut == transformer.tokenizer.encode(text).ids[:12] + transformer.tokenizer.encode(text).ids[-4:]
    assert len(whole) == 64  # the model has no more positions


def test_an_empty_prompt_has_a_state(checkpoint: Path) -> None:
    assert np.isfinite(PooledTransformer.load(checkpoint).encode([""])).all()


def test_an_architecture_that_counts_positions_otherwise_is_computed_in_equal_lengths(tmp_path: Path) -> None:
    from transformers import RobertaConfig, RobertaModel

    folder = tiny_checkpoint(tmp_path / "other", "distilbert", texts())
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        pad_token_id=1,
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    transformer = PooledTransformer.load(folder)
    rows = [[token + 5 for token in row] for row in transformer.token_ids(texts(6))]  # none is the pad token
    assert not transformer.packs
    alone = np.vstack([transformer.encode_ids([row]) for row in rows])
    np.testing.assert_allclose(transformer.encode_ids(rows), alone, atol=2e-5)


def test_weights_as_pickle_are_refused_before_anything_reads_them(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    torch.save(AutoModel.from_pretrained(checkpoint).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, which can run code"):
        PooledTransformer.load(tmp_path)


def test_a_checkpoint_that_brings_its_own_code_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoModel": "mine.Model"}}')
    (tmp_path / "mine.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        PooledTransformer.load(tmp_path)


def test_a_tokeniser_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    other = tiny_checkpoint(tmp_path / "other", "distilbert", texts())
    tokenizer = Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer.add_tokens(["far-away"])
    tokenizer.save(str(other / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"the tokeniser knows \d+ tokens, the model has"):
        PooledTransformer.load(other)


def test_batches_keep_to_the_budget_and_hold_every_row_once() -> None:
    lengths = [3, 50, 7, 7, 120, 1, 49]
    for batches in (batches_by_length(lengths, 100), shuffled_batches(lengths, 100, (0, 1))):
        assert sorted(i for batch in batches for i in batch) == list(range(7))
        assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= 100 for batch in batches)
    assert batches_by_length([], 100) == []


def test_runs_name_equal_lengths_in_order() -> None:
    assert [tuple(run) for run in runs([2, 2, 5, 9, 9, 9])] == [(0, 2, 2), (4, 1, 5), (9, 3, 9)]
