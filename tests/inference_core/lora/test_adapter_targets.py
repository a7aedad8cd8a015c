"""Which layers an adapter may change: not those that the decoder holds in another form than the file."""

import msgspec
import pytest

from inference_core.loaders.decoder_tensors import shape
from inference_core.lora.adapter import adapter_targets
from inference_core.model_config import ExpertMixture, RotaryEmbedding


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, set()),
        ({"rope": RotaryEmbedding(theta=5e5, dim=96)}, {"q_proj", "k_proj"}),
        ({"experts": ExpertMixture(count=8, per_token=2)}, {"gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_layers_that_are_held_in_another_form_are_refused(changes: dict[str, object], refused: set[str]) -> None:
    plain = shape("llama-3.1-8b")
    assert adapter_targets(plain).keys() - adapter_targets(msgspec.structs.replace(plain, **changes)).keys() == refused
