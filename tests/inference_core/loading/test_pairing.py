"""A draft model has its target's vocabulary, or is refused before anything is loaded (SPEC SD-07)."""

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from inference_core.errors import ModelFileError
from inference_core.loading.prepare_core import paired_drafts
from inference_core.model_spec import ModelSpec
from tests.inference_core.tokenization.vocabularies import train_byte_level, write_byte_level


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    tokens, merges = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), size=280)
    same = write_byte_level(tmp_path / "same.gguf", "smollm", tokens, merges)
    target = write_byte_level(tmp_path / "target.gguf", "smollm", tokens, merges)
    other = write_byte_level(tmp_path / "other.gguf", "smollm", [*tokens[:-2], tokens[-1], tokens[-2]], merges)

    def pair(draft: Path) -> dict[str, str]:
        return paired_drafts(
            [
                ModelSpec(name="target", path=str(target), compute="float32", draft="draft"),
                ModelSpec(name="draft", path=str(draft), compute="float32"),
            ]
        )

    assert pair(same) == {"target": "draft"}
    with pytest.raises(ModelFileError, match="its draft draft has another vocabulary: 2 of 280 tokens differ"):
        pair(other)
