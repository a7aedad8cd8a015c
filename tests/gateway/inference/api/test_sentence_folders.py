"""Vectors of a sentence-transformers folder: its pooling, longest text and prompt are followed, or refused by name."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from gateway.inference.embedding.embedder import unit_vectors
from gateway.inference.embedding.encoder_embedder import EncoderEmbedder
from tests.classifier.tiny_checkpoints import tiny_checkpoint
from tests.gateway.paraphrases import PARAPHRASES
from tiers.catalog.catalog import EmbeddingSpec
from tiers.errors import CatalogError
from tiers.tier import UsageMeter

TEXTS = [text for pair in PARAPHRASES for text in pair]
MODULES = ("Transformer", "Pooling", "Normalize")
MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "last": "lasttoken"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_checkpoint(tmp_path / "encoder", "bert", TEXTS)


def write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def as_sentence_folder(folder: Path, mode: str, modules: tuple[str, ...] = MODULES, **pooling: Any) -> None:
    """Add the files that sentence-transformers writes next to the checkpoint's."""
    places = ["", *(f"{number}_{kind}" for number, kind in enumerate(modules) if number)]
    listed = [
        {"idx": number, "name": str(number), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, place) in enumerate(zip(modules, places, strict=True))
    ]
    write(folder / "modules.json", listed)
    modes = {f"pooling_mode_{one}": one == mode for one in (*MODES.values(), "weightedmean_tokens")}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, **modes, **pooling})


def embedder(folder: Path) -> EncoderEmbedder:
    return EncoderEmbedder(EmbeddingSpec(name="own", path=str(folder), max_tokens=64))


async def vectors(model: EncoderEmbedder, texts: list[str]) -> Any:
    await model.open()
    rows = [await asyncio.to_thread(model.tokens, text) for text in texts]
    return unit_vectors(await model.embed(rows, priority=1, salt="", meter=UsageMeter()), None)


def reference(folder: Path, texts: list[str], mode: str) -> Any:
    """Vectors by transformers, one text at a time."""
    model, tokenizer = AutoModel.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for text in texts:
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].numpy()
        pooled = {"cls": states[0], "mean": states.mean(0), "max": states.max(0), "last": states[-1]}[mode]
        found.append(pooled / np.linalg.norm(pooled))
    return np.stack(found)


@pytest.mark.parametrize("mode", MODES)
async def test_the_pooling_of_the_folder_is_followed(folder: Path, mode: str) -> None:
    as_sentence_folder(folder, MODES[mode])
    np.testing.assert_allclose(
        await vectors(embedder(folder), TEXTS[:4]), reference(folder, TEXTS[:4], mode), atol=1e-5
    )


async def test_a_plain_checkpoint_is_averaged(folder: Path) -> None:
    np.testing.assert_allclose(
        await vectors(embedder(folder), TEXTS[:4]), reference(folder, TEXTS[:4], "mean"), atol=1e-5
    )


async def test_the_longest_text_is_the_folders(folder: Path) -> None:
    as_sentence_folder(folder, "mean_tokens")
    write(folder / "sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})
    model = embedder(folder)
    await model.open()
    assert model.max_tokens == 16


async def test_the_default_prompt_stands_before_a_text(folder: Path) -> None:
    as_sentence_folder(folder, "cls_token")
    prompts = {"prompts": {"query": "how to ", "document": ""}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    prompted = [f"how to {text}" for text in TEXTS[:3]]
    np.testing.assert_allclose(
        await vectors(embedder(folder), TEXTS[:3]), reference(folder, prompted, "cls"), atol=1e-5
    )


async def test_texts_are_lower_cased_where_the_folder_says_so(folder: Path) -> None:
    as_sentence_folder(folder, "mean_tokens")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.normalizer = None
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})
    low, high = await vectors(embedder(folder), [TEXTS[0].lower(), TEXTS[0].upper()])
    np.testing.assert_array_equal(low, high)


@pytest.mark.parametrize(
    ("modules", "mode", "pooling", "named"),
    [
        (("Transformer", "Pooling", "Dense"), "mean_tokens", {}, "Dense"),
        (("Transformer", "Pooling"), "weightedmean_tokens", {}, "weightedmean_tokens"),
        (("Transformer", "Pooling"), "mean_tokens", {"pooling_mode_cls_token": True}, "cls_token and mean_tokens"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    folder: Path, modules: tuple[str, ...], mode: str, pooling: dict[str, Any], named: str
) -> None:
    as_sentence_folder(folder, mode, modules, **pooling)
    with pytest.raises(CatalogError, match=named):
        embedder(folder)


@pytest.mark.parametrize("content", ["[", "7", '[{"type": "a.Transformer", "path": "../elsewhere"}]'])
def test_a_list_of_modules_that_cannot_be_followed_is_refused(folder: Path, content: str) -> None:
    (folder / "modules.json").write_text(content)
    with pytest.raises(CatalogError, match=r"modules\.json"):
        embedder(folder)
