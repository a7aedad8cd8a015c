"""Tiny random checkpoints, written as transformers writes them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
)

from classifier.training.recipes.fine_tune import save_checkpoint

ARCHITECTURES = ("distilbert", "modernbert")
WINDOW = 8
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A lower-case WordPiece tokeniser with single digits, BERT's special tokens and template."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.train_from_iterator(
        texts,
        WordPieceTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=list(_SPECIAL), show_progress=False),
    )
    tokenizer.decoder = decoders.WordPiece()
    ids = {token: number for number, token in enumerate(_SPECIAL)}  # the trainer numbers them first
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return tokenizer


def tiny_checkpoint(folder: Path, architecture: str, texts: list[str], seed: int = 0) -> Path:
    """A checkpoint of 2 layers x 32 with a tokeniser of its own in `folder`."""
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(texts, 300)
    size = tokenizer.get_vocab_size()
    if architecture == "distilbert":
        config = DistilBertConfig(
            vocab_size=size, max_position_embeddings=64, n_layers=2, n_heads=2, dim=32, hidden_dim=64
        )
        model = DistilBertModel(config)
    elif architecture in ("bert", "roberta"):
        kind, config_kind = (BertModel, BertConfig) if architecture == "bert" else (RobertaModel, RobertaConfig)
        model = kind(
            config_kind(
                vocab_size=size,
                hidden_size=48,
                intermediate_size=80,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=66,
                pad_token_id=0,
            )
        )
    else:
        model = ModernBertModel(
            ModernBertConfig(
                vocab_size=size,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=64,
                local_attention=WINDOW,
                pad_token_id=0,
                bos_token_id=2,
                cls_token_id=2,
                eos_token_id=3,
                sep_token_id=3,
            )
        )
    save_checkpoint(folder, model, tokenizer)
    return folder
