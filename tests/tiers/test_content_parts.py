import base64

import pytest

from inference_core.protocol import SamplingParams
from tests.tiers.audio import samples
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import IMAGE_TOKENS, LOW_DETAIL_IMAGE_TOKENS, MediaKind, Text, Turn, media
from tiers.remote.openai_format import request_body
from tiers.tier import GenerationRequest

PNG = "data:image/png;base64," + "iVBORw0KGgo" * 100
IMAGE = media("image", {"url": PNG, "detail": "low"})
PARTS = (Text("What is "), IMAGE, Text("this?"))


def test_parts_go_to_an_openai_compatible_server_as_they_came_and_in_order() -> None:
    request = GenerationRequest(
        request_id="r", sampling=SamplingParams(), messages=[Turn.of("user", PARTS, name="ann")]
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
    assert Turn.of("user", PARTS).text == "What is \nthis?"
    assert Turn.of("user", [Text("a"), Text("b")]) == Turn.of("user", "a\nb")


def test_a_record_keeps_kind_size_and_digest_and_none_of_the_data() -> None:
    turn = Turn.of("user", PARTS)

    assert turn.recorded_content() == "What is \nthis?"
    assert turn.attachments == f"[image, 825 bytes, {IMAGE.digest}]"
    assert len(IMAGE.digest) == 32


def test_equal_data_have_equal_digests_and_others_other_ones() -> None:
    same = media("image", {"detail": "low", "url": PNG})
    other = media("image", {"detail": "low", "url": PNG + "A"})

    assert same.digest == IMAGE.digest != other.digest
    assert same.without_data == IMAGE.without_data


def test_tokens_of_media_are_estimated_by_kind_detail_and_size() -> None:
    assert IMAGE.tokens == LOW_DETAIL_IMAGE_TOKENS
    assert media("image", {"url": "https://example.org/a.png"}).tokens == IMAGE_TOKENS
    assert media("audio", {"data": "A" * 4096, "format": "wav"}).tokens == 4
    assert media("file", {"file_data": "A" * 4000}).tokens == 61
    assert media("file", {"file_id": "file-1"}).tokens > 0
    assert Turn.of("user", PARTS).media_tokens == LOW_DETAIL_IMAGE_TOKENS
    assert Turn.of("user", "long " * 100).media_tokens == 0


@pytest.mark.parametrize("kind", ["audio", "file"])
def test_tokens_of_audio_are_those_of_its_seconds_however_few_bytes_it_has(kind: MediaKind) -> None:
    silence = base64.b64encode(samples.flac(600, total=1)).decode()
    name = "data" if kind == "audio" else "file_data"
    part = media(kind, {name: f"data:audio/flac;base64,{silence}"})

    assert 10 * 600 <= part.tokens <= 32 * 600
    assert part.without_data.tokens == part.tokens


def test_audio_of_megabytes_is_read_off_the_event_loop_the_first_time() -> None:
    part = media("audio", {"data": base64.b64encode(samples.wav(60)).decode(), "format": "wav"})

    assert part.is_long_audio
    assert part.tokens == 751
    assert not part.is_long_audio
