"""Every key of every architecture's config.json: logits as transformers has them, or a refusal by the key's name."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_core.errors import ModelFileError
from inference_core.loaders.huggingface.hf_config import ignored_keys, keys_of
from tests.inference_core.loaders import config_keys
from tests.inference_core.loaders.config_keys import KINDS, MISSING, TOKENS, Folder, variants
from tests.inference_core.models.test_decoder_against_transformers import last_logits, runner_for

pytestmark = pytest.mark.models

# Where transformers refuses and we do not: Phi-3's class checks what its computation takes.
_OURS_ALONE = {("phi3", "rope_scaling")}
# A refusal may name what the key would lead to instead.
_NAMED_AS = {
    "num_experts_per_tok": "experts",
    "num_hidden_layers": "layer_types",
    "hidden_activation": "hidden_act",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "mlp_only_layers": "a mixture of experts in some layers",
    "decoder_sparse_step": "a mixture of experts in some layers",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def ours(folder: Folder, cache: Path) -> torch.Tensor | str:
    """Our log-probabilities after the last token, or why the file is refused."""
    try:
        return last_logits(runner_for(folder.path, cache, "torch"), TOKENS[0].tolist(), 0).log_softmax(-1)
    except ModelFileError as error:
        return str(error)


def problem(folder: Folder, key: str, value: Any, cache: Path) -> str | None:
    """What is wrong with how we read a file with this value; None if nothing is."""
    folder.change(key, value)
    shown = f"{folder.kind}: {key} = {'(left out)' if value is MISSING else value!r}"
    got = ours(folder, cache)
    if isinstance(got, str) and (key in got or _NAMED_AS.get(key, key) in got):
        return None
    want = folder.logits()
    if isinstance(got, str):
        is_shape = re.search(r"tensor|shape|heads|share|head_dim|vocab|layers|even", got) is not None
        return None if want is None and is_shape else f"{shown}: refused without its name: {got}"
    if want is None and isinstance(value, int):
        # Classes are strict about the two kinds of numbers; what files mean is the same.
        folder.change(key, float(value))
        want = folder.logits()
    if want is None:
        taken = value is MISSING or (folder.kind, key) in _OURS_ALONE or key in keys_of(folder.kind).without_effect
        return None if taken else f"{shown}: only transformers refuses it"
    difference = float((got - want[-1]).abs().max())
    return None if difference < 1e-3 else f"{shown}: differs by {difference:.2g}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_means_what_it_means_to_transformers_or_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    folder = Folder(kind, tmp_path / "model")

    cases = [(key, value) for key in folder.names() for value in variants(folder, key)]
    problems = [problem(folder, key, value, tmp_path / "cache") for key, value in cases]

    assert len(cases) > 40
    assert not (found := list(filter(None, problems))), "\n".join(found)


def test_the_table_of_keys_is_what_the_installed_classes_say() -> None:
    for kind in KINDS:
        assert keys_of(kind).defaults == config_keys.defaults(kind)
    assert sorted(ignored_keys()) == config_keys.ignored_keys()
