import base64

import msgspec
import pytest

from inference_core.protocol import SamplingParams
from tests.tiers.audio import samples
from tiers.catalog.tier_spec import RemoteSpec
from tiers.conversation import (
    IMAGE_TOKENS,
    LOW_DETAIL_IMAGE_TOKENS,
    Call,
    MediaKind,
    Opaque,
    Text,
    Turn,
    media,
)
from tiers.dialects.chat import request_body
from tiers.dialects.messages_server import message_turns
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


CALLS = [Call(id="a", name="f", arguments="{}"), Call(id="b", name="g", arguments="{}", source=Opaque("chat", b'"s"'))]
GIVEN = Opaque("messages", b'{"type":"text","text":"given"}', "text")
RECALLED = Opaque("messages", b'{"type":"text","text":"recalled"}', "text")
ASSISTANT = Turn.of("assistant", "Well.", calls=CALLS, thoughts="Hm.", opaque=[GIVEN])


def test_a_turn_is_read_by_what_its_blocks_are() -> None:
    read = ASSISTANT.text, ASSISTANT.thoughts, list(ASSISTANT.calls), ASSISTANT.opaque, ASSISTANT.media
    assert read == ("Well.", "Hm.", CALLS, (GIVEN,), ())
    result = Turn.of("tool", PARTS, call_id="a", opaque=[GIVEN])
    assert (result.text, result.call_id, result.media, result.opaque) == ("What is \nthis?", "a", (IMAGE,), (GIVEN,))
    assert Turn.of("assistant") == Turn("assistant", ())


@pytest.mark.parametrize(
    ("turn", "is_plain"),
    [
        (Turn.of("user", PARTS), True),
        (Turn.of("assistant", "a", calls=CALLS[:1]), True),
        (Turn.of("assistant", "a", calls=CALLS), False),
        (Turn.of("assistant", "a", thoughts="Hm."), False),
        (Turn.of("user", "a", opaque=[GIVEN]), False),
        (Turn.of("assistant", "a", recalled=(RECALLED,)), False),
    ],
)
def test_a_turn_is_plain_if_nothing_of_it_is_for_one_server_alone(turn: Turn, is_plain: bool) -> None:
    assert turn.is_plain is is_plain


@pytest.mark.parametrize(
    ("opaque", "recalled", "sent"), [([GIVEN], (RECALLED,), "given"), ([], (RECALLED,), "recalled"), ([], (), "Well.")]
)
def test_a_dialect_gets_what_its_caller_gave_else_what_is_recalled_else_the_meaning(
    opaque: list[Opaque], recalled: tuple[Opaque, ...], sent: str
) -> None:
    turn = Turn.of("user", "Well.", opaque=[*opaque, Opaque("gemini", b"{}", "part")], recalled=recalled)
    body = msgspec.json.decode(msgspec.json.encode(message_turns([turn], controls=False)))
    assert body == [{"role": "user", "content": [{"type": "text", "text": sent}]}]


def test_an_empty_block_of_a_dialect_says_that_the_turn_is_not_written_there() -> None:
    turns = [Turn.of("user", "a", opaque=[Opaque("messages", b"")]), Turn.of("user", "b")]
    body = msgspec.to_builtins(message_turns(turns, controls=False))
    assert body == [{"role": "user", "content": [{"type": "text", "text": "b"}]}]


def test_other_content_leaves_thoughts_calls_and_dialects_as_they_are() -> None:
    assert ASSISTANT.with_text("Ill.") == Turn.of("assistant", "Ill.", calls=CALLS, thoughts="Hm.", opaque=[GIVEN])
    first, second = ASSISTANT.split_calls()
    assert (first.thoughts, first.text, first.calls) == ("Hm.", "Well.", (CALLS[0],))
    assert second == Turn.of("assistant", calls=CALLS[1:])


def test_turns_of_the_same_media_are_equal_without_them() -> None:
    turn = Turn.of("user", PARTS).without_media
    assert turn == Turn.of("user", [PARTS[0], media("image", {"detail": "low", "url": PNG}), PARTS[2]]).without_media
    assert turn.media[0].data is None
