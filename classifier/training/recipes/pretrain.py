"""Train a small DistilBERT from scratch: a WordPiece vocabulary and masked-language modelling on the training prompts;
and fine-tune a checkpoint to tell the complexity classes, from prompts with raters' classes.

`pretrain_encoder` is the command `aio classifier pretrain`, independent of the command-line library.
"""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from torch.nn.functional import cross_entropy
from transformers import DistilBertConfig, DistilBertForMaskedLM

from classifier.complexity.encoder_classes import save_classes
from classifier.complexity.model import CUTS
from classifier.encoders.checkpoint import TOKENIZER
from classifier.encoders.native_transformer import servable_config
from classifier.encoders.pooled_transformer import PooledTransformer, batches_by_length, runs, shuffled_batches
from classifier.errors import TrainingDataError
from classifier.features.routing_input import routing_input_of_text
from classifier.training.data.dataset import data_folder, load_outcomes
from classifier.training.fitting.complexity import LabelledPrompt
from classifier.training.recipes.fine_tune import FineTuneSettings, LabelledTexts, fine_tune
from classifier.training.recipes.training_loop import Progress, ResumableLoop, Schedule

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASKED_SHARE = 0.2  # Wettig et al., 2023: small models learn faster from more than BERT's 15 %
KEPT_SHARE, RANDOM_SHARE = 0.1, 0.1  # of the masked tokens, as in BERT (Devlin et al., 2019)
VALID_SHARE = 0.05


class PretrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the model and the length of training; `vocabulary` counts special tokens."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    vocabulary: int = 8192
    max_tokens: int = 256
    learning_rate: float = 1e-3
    epochs: int = 4
    tokens_per_step: int = 4096
    seed: int = 0


def pretrain(
    texts: Sequence[str],
    output: Path,
    settings: PretrainSettings,
    *,
    work: Path | None = None,
    report: Callable[[Progress, int], None] = lambda progress, steps: None,
) -> Path:
    """Train on `texts` (one in twenty is held out for the valid loss) and write `output`/: config.json,
    model.safetensors, tokenizer.json. `work` keeps the state, so that the same call resumes after an interruption.

    Raises `TrainingDataError` for too few texts or an `output` that exists.
    """
    if output.exists():
        raise TrainingDataError(f"{output} exists; a checkpoint is never overwritten.")
    if len(texts) < 1 / VALID_SHARE:
        raise TrainingDataError(f"{len(texts)} texts; masked-language modelling needs at least {1 / VALID_SHARE:.0f}.")
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    torch.manual_seed(settings.seed)
    model = DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            max_position_embeddings=settings.max_tokens,
            n_layers=settings.layers,
            n_heads=settings.heads,
            dim=settings.hidden,
            hidden_dim=4 * settings.hidden,
            attention_dropout=0.0,  # torch's fast kernel has none
            pad_token_id=tokenizer.token_to_id(PAD),
        )
    )
    body = PooledTransformer(model.distilbert, tokenizer, max_tokens=settings.max_tokens)
    MaskedLanguageModelling(model, body, texts, settings).run(work, report)
    _write(output, model.distilbert, tokenizer)
    return output


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Train a lower-case WordPiece tokeniser (Wu et al., 2016): single digits, BERT's special tokens and template."""
    tokenizer = Tokenizer(WordPiece(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.train_from_iterator(
        texts,
        WordPieceTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=list(SPECIAL), show_progress=False),
    )
    tokenizer.decoder = decoders.WordPiece()
    ids = {token: number for number, token in enumerate(SPECIAL)}  # the trainer numbers them first
    tokenizer.post_processor = processors.BertProcessing((SEP, ids[SEP]), (CLS, ids[CLS]))
    return tokenizer


class MaskedLanguageModelling:
    """Batches, masks and loss. Logits are computed at masked positions only: with a vocabulary of thousands they cost
    as much as the body."""

    def __init__(self, model: Any, body: PooledTransformer, texts: Sequence[str], settings: PretrainSettings) -> None:
        self.model, self.body, self.settings = model, body, settings
        rows = body.token_ids(texts)
        valid = np.random.default_rng([settings.seed, 1]).random(len(rows)) < VALID_SHARE
        valid[0], valid[-1] = True, False
        self.train = [row for row, held in zip(rows, valid, strict=True) if not held]
        self.valid = [row for row, held in zip(rows, valid, strict=True) if held]
        self._special = np.array([body.tokenizer.token_to_id(token) for token in SPECIAL])
        self._mask, self._vocabulary = body.tokenizer.token_to_id(MASK), body.tokenizer.get_vocab_size()

    def run(self, work: Path | None, report: Callable[[Progress, int], None]) -> Progress:
        """Train to the end, or until the valid loss stops falling."""
        settings = self.settings
        lengths = [len(row) for row in self.train]
        batches = [
            batch
            for epoch in range(settings.epochs)
            for batch in shuffled_batches(lengths, settings.tokens_per_step, (settings.seed, epoch))
        ]
        schedule = Schedule(
            steps=len(batches),
            measure_every=max(1, len(batches) // (2 * settings.epochs)),
            patience=3,
            seed=settings.seed,
        )
        key = hashlib.sha256(msgspec.json.encode([self.train, self.valid, settings])).hexdigest()
        loop = ResumableLoop(self.model, [(("",), settings.learning_rate)], schedule, key=key, work=work)
        return loop.run(
            lambda step: self.loss([self.train[i] for i in batches[step]], (settings.seed, 2, step)),
            self.valid_loss,
            lambda progress: report(progress, len(batches)),
        )

    def loss(self, rows: Sequence[Sequence[int]], seed: Sequence[int]) -> Any:
        """Return the mean cross-entropy at the masked positions of `rows`, nats."""
        rows = sorted(rows, key=len)
        truth = np.concatenate([np.asarray(row) for row in rows])
        rng = np.random.default_rng(list(seed))
        given, places = masked(truth, self._special, self._mask, self._vocabulary, rng)
        lengths = runs([len(row) for row in rows])
        edges = np.cumsum([0, *(len(row) for row in rows)])
        hidden = self.body.states([given[a:b].tolist() for a, b in pairwise(edges)], lengths)
        found = self.model.activation(self.model.vocab_transform(hidden[torch.from_numpy(places)]))
        logits = self.model.vocab_projector(self.model.vocab_layer_norm(found))
        return cross_entropy(logits, torch.from_numpy(truth[places]))

    def valid_loss(self) -> float:
        """Return the loss on held-out texts, always with the same masks."""
        total = places = 0.0
        for number, batch in enumerate(
            batches_by_length([len(row) for row in self.valid], self.settings.tokens_per_step)
        ):
            rows = [self.valid[i] for i in batch]
            tokens = sum(map(len, rows))
            total += float(self.loss(rows, (self.settings.seed, 3, number))) * tokens
            places += tokens
        return total / places


def masked(truth: Any, special: Any, mask: int | None, vocabulary: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return (the masked input, the positions to predict) of token ids [n]; at least one position, none of those of
    `special` ids if there are others. `mask`: the id that stands for most of them."""
    ordinary = ~np.isin(truth, special)
    chosen = ordinary & (rng.random(len(truth)) < MASKED_SHARE)
    if not chosen.any():
        chosen[np.flatnonzero(ordinary)[:1] if ordinary.any() else [0]] = True
    draw = rng.random(len(truth))
    given: Any = np.where(chosen & (draw >= KEPT_SHARE + RANDOM_SHARE), mask, truth)
    swapped = chosen & (draw < RANDOM_SHARE)
    given[swapped] = rng.integers(len(SPECIAL), max(vocabulary, len(SPECIAL) + 1), int(swapped.sum()))
    return np.minimum(given, vocabulary - 1), np.flatnonzero(chosen)


def _write(output: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the checkpoint atomically."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".incoming-") as folder:
        save_checkpoint(Path(folder) / output.name, model, tokenizer)
        (Path(folder) / output.name).rename(output)


def save_checkpoint(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Save `model` and `tokenizer` as config.json, model.safetensors and tokenizer.json in `folder`."""
    model.save_pretrained(folder)
    tokenizer.save(str(folder / TOKENIZER))


@dataclass(frozen=True)
class PretrainOutcome:
    """The written checkpoint and its masked-language-modelling loss on held-out prompts, nats."""

    folder: Path
    texts: int
    valid_loss: float
    losses: list[tuple[int, float]]


def pretrain_command(
    output: Path,
    settings: PretrainSettings,
    *,
    data: Path | None = None,
    hold: Sequence[str] = (),
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> PretrainOutcome:
    """Train a tokeniser and a DistilBERT from scratch on the prompts of the train split, into the folder `output`.

    Domains in `hold` are left out. The state is kept in `<output>.state` until the end: call again to resume after an
    interruption. Raises `TrainingDataError` if the data are missing or `output` exists.
    """
    rows = [row for row in load_outcomes(data or data_folder()) if row.split == "train" and row.domain not in hold]
    texts = [routing_input_of_text(row.prompt).turn for row in rows]
    last = Progress(key="")

    def report(now: Progress, steps: int) -> None:
        nonlocal last
        last = now
        progress(f"masked words, valid loss {now.losses[-1][1]:.2f}", now.step / steps)

    progress("training the tokeniser", 0.0)
    work = output.with_name(f"{output.name}.state")
    folder = pretrain(texts, output, settings, work=work, report=report)
    return PretrainOutcome(folder, len(texts), last.best if last.best is not None else float("nan"), last.losses)


VALID = 10  # one of so many rows decides when training stops


def train_classes(
    rows: Sequence[LabelledPrompt], checkpoint: Path, target: Path, settings: FineTuneSettings | None = None
) -> None:
    """Fine-tune the checkpoint on `rows` and write the folder `target`, for `load_classes`.

    Raises `CheckpointError` for one that is not served, `TrainingDataError` for too few rows or a `target` that exists.
    """
    servable_config(checkpoint)
    if len(rows) < VALID or target.exists():
        raise TrainingDataError(
            f"{len(rows)} rows for {target}; at least {VALID} are needed, and a folder that is new."
        )
    settings = settings or FineTuneSettings()
    raters = [np.array(row.classes)[:, None] <= np.arange(1, CUTS + 1) for row in rows]
    labels = np.stack([one.mean(axis=0, dtype=np.float32) for one in raters])
    turns = [routing_input_of_text(row.prompt).turn for row in rows]
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    valid, train = (
        LabelledTexts([turns[i] for i in part], labels[part], np.ones(len(part), np.float32))
        for part in (order[::VALID], np.delete(order, np.s_[::VALID]))
    )
    transformer = PooledTransformer.load(checkpoint)
    tuned = fine_tune(transformer, train, valid, settings)
    save_checkpoint(target, transformer.model, transformer.tokenizer)
    save_classes(target, tuned.head_weight, tuned.head_bias)
