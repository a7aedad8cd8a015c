"""The laptop's catalogue with small encoders for embeddings in addition to its own model."""

from importlib import resources
from pathlib import Path
from typing import Any

from gateway.base.settings import Settings
from tests.classifier.tiny_checkpoints import tiny_checkpoint
from tests.gateway.paraphrases import PARAPHRASES

TEXTS = [text for pair in PARAPHRASES for text in pair]
# US dollars of a token of `tiny`.
TOKEN_USD = 1e-4
_ENTRY = """
[[embeddings]]
name = "tiny"
path = "{path}"
max_tokens = 48
input_usd_per_million = 100
[[embeddings]]
name = "matryoshka"
path = "{path}"
shortenable = true
input_usd_per_million = 0
"""


def embedding_settings(folder: Path, **fields: Any) -> Settings:
    """Settings of a gateway with an encoder of 2 layers in `folder`."""
    encoder = tiny_checkpoint(folder / "distilbert", "distilbert", TEXTS)
    catalog = folder / "catalog.toml"
    laptop = resources.files("tiers.catalogs").joinpath("laptop.toml").read_text()
    catalog.write_text(laptop + _ENTRY.format(path=encoder))
    return Settings(data_dir=str(folder / "data"), monitor=False, catalog=str(catalog), **fields)
