import base64

import pytest

from inference_core.protocol import SamplingParams
from tests.tiers.audio import samples
from tiers.catalog.tier_spec import RemoteSpec
from tiers.message_content import IMAGE_TOKENS, LOW_DETAIL_IMAGE_TOKENS, MediaType, media_part, text_part
from tiers.remote.openai_format import request_body
from tiers.tier import ChatMessage, GenerationRequest

PNG = "data:image/png;base64," + "iVBORw0KGgo" * 100
PARTS = (text_part("What is "), media_part("image_url", {"url": PNG, "detail": "low"}), text_part("this?"))


def test_parts_go_to_an_openai_compatible_server_as_they_came_and_in_order() -> None:
    request = GenerationRequest(
        request_id="r", sampling=SamplingParams(), messages=[ChatMessage.of_parts("user", PARTS, name="ann")]
    )

    body = request_body(RemoteSpec(base_url="http://x/v1", model="m"), request, 5)

    assert body["messages"] == [
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                {"type": "text", "text": "this?"},
            ],
        }
    ]


def test_the_content_of_a_turn_is_the_text_of_its_parts() -> None:
    assert ChatMessage.of_parts("user", PARTS).content == "What is \nthis?"
    assert ChatMessage.of_parts("user", [text_part("a"), text_part("b")]) == ChatMessage(role="user", content="a\nb")


def test_a_record_keeps_kind_size_and_digest_and_none_of_the_data() -> None:
    turn = ChatMessage.of_parts("user", PARTS)

    assert turn.recorded_content() == "What is \nthis?"
    assert turn.attachments == f"[image, 825 bytes, {PARTS[1].digest}]"
    assert len(PARTS[1].digest) == 32


def test_equal_data_have_equal_digests_and_others_other_ones() -> None:
    same = media_part("image_url", {"detail": "low", "url": PNG})
    other = media_part("image_url", {"detail": "low", "url": PNG + "A"})

    assert same.digest == PARTS[1].digest != other.digest
    assert same.without_data == PARTS[1].without_data


def test_tokens_of_media_are_estimated_by_kind_detail_and_size() -> None:
    assert PARTS[1].media_tokens == LOW_DETAIL_IMAGE_TOKENS
    assert media_part("image_url", {"url": "https://example.org/a.png"}).media_tokens == IMAGE_TOKENS
    assert media_part("input_audio", {"data": "A" * 4096, "format": "wav"}).media_tokens == 4
    assert media_part("file", {"file_data": "A" * 4000}).media_tokens == 61
    assert media_part("file", {"file_id": "file-1"}).media_tokens > 0
    assert ChatMessage.of_parts("user", PARTS).media_tokens == LOW_DETAIL_IMAGE_TOKENS
    assert ChatMessage(role="user", content="long " * 100).media_tokens == 0


@pytest.mark.parametrize("kind", ["input_audio", "file"])
def test_tokens_of_audio_are_those_of_its_seconds_however_few_bytes_it_has(kind: MediaType) -> None:
    silence = base64.b64encode(samples.flac(600, total=1)).decode()
    name = "data" if kind == "input_audio" else "file_data"
    part = media_part(kind, {name: f"data:audio/flac;base64,{silence}"})

    assert 10 * 600 <= part.media_tokens <= 32 * 600
    assert part.without_data.media_tokens == part.media_tokens


def test_audio_of_megabytes_is_read_off_the_event_loop_the_first_time() -> None:
    part = media_part("input_audio", {"data": base64.b64encode(samples.wav(60)).decode(), "format": "wav"})

    assert part.is_long_audio
    assert part.media_tokens == 751
    assert not part.is_long_audio
