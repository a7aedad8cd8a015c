"""Which requests another tier can answer later, from what records keep, so that the answers can be compared."""

import pytest

from gateway.requests.inference_request import InferenceRequest
from inference_core.protocol import SamplingParams
from tiers.content_parts import ContentPart, media_part
from tiers.tier import ChatMessage

TEXT = ContentPart(type="text", text="What is this?")
IMAGE = media_part("image_url", {"url": "data:image/png;base64,iVBORw0KGgo="})


@pytest.mark.parametrize(("parts", "comparable"), [([TEXT], True), ([TEXT, TEXT], True), ([TEXT, IMAGE], False)])
def test_a_message_with_an_image_cannot_be_answered_again_from_its_record(
    parts: list[ContentPart], comparable: bool
) -> None:
    request = InferenceRequest(
        request_id="r",
        api="chat",
        requested_model="auto",
        sampling=SamplingParams(),
        arrival=0.0,
        created_at=0.0,
        messages=[ChatMessage(role="system", content="Be short."), ChatMessage.of_parts("user", parts)],
    )

    assert request.is_comparable == comparable
