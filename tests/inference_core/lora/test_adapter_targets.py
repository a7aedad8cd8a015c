"""Which layers an adapter may change: not those that the decoder holds in another form than the file."""

import msgspec
import pytest

from inference_core.loaders.decoder_tensors import shape
from inference_core.lora.adapter import adapter_targets


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, set()),
        ({"rotary_dim": 96}, {"q_proj", "k_proj"}),
        ({"num_experts": 8, "experts_per_token": 2}, {"gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_layers_that_are_held_in_another_form_are_refused(changes: dict[str, int], refused: set[str]) -> None:
    plain = shape("llama-3.1-8b")
    assert adapter_targets(plain).keys() - adapter_targets(msgspec.structs.replace(plain, **changes)).keys() == refused
