"""How servers say that a prompt is too long, or that a model cannot do something: the wordings are recordings
(`chat/too_long`, `chat/not_too_long`)."""

import msgspec
import pytest

from tests.recordings.recording import FOLDER, recordings
from tests.support.upstream import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.dialects.refusals import WORDINGS, too_long
from tiers.dialects.server_error import parse_error
from tiers.errors import (
    TierAnswerError,
    TierBusyError,
    TierCapabilityError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.remote.remote_tier import RemoteTier


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", 1048576),
        ("Range of input length should be [1, 30720]", 30720),
        ("Request body too large for gpt-4o model. Max size: 8000 tokens.", 8000),
        ("Invalid 'input[0]': maximum input length is 8192 tokens.", 8192),
    ],
)
def test_what_a_server_says_of_its_context_alone_is_read(message: str, most: int) -> None:
    excess = too_long(parse_error(msgspec.json.encode({"error": {"message": message}})))
    assert excess is not None
    assert (excess.prompt_tokens, excess.answer_tokens, excess.max_context) == (0, 0, most)


def test_each_wording_is_one_that_some_recording_has() -> None:
    cases = [recording.fields for recording in recordings(FOLDER / "chat/too_long.json")]
    said = [case["refused"][0][0] if "refused" in case else case["answers"].get("error") for case in cases]
    patterns = WORDINGS.compiled()
    messages = [words for words in said if isinstance(words, str)]
    first = {next(pattern for pattern in patterns if pattern.search(message)) for message in messages}
    assert [pattern.pattern for pattern in patterns if pattern not in first] == []


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Function calling with a response mime type: 'application/json' is unsupported", TierCapabilityError),
        (400, "This model does not support tools", TierCapabilityError),
        (422, "response_format is not supported with streaming", TierCapabilityError),
        (400, "top_k: must be positive", TierRequestError),
        (429, "Prompt exceeds max length", TierBusyError),
        (500, "this model does not support tools", TierUnavailableError),
        (200, "the engine has stopped", TierAnswerError),
    ],
)
async def test_what_the_model_cannot_do_differs_from_what_the_caller_did_wrong(
    status: int, message: str, kind: type[TierError]
) -> None:
    assert type(await refused(status, {"error": {"message": message, "type": "x"}})) is kind


async def refused(status: int, body: object) -> TierError:
    async def handler(call: Call) -> None:
        await call.reply(status, body)

    return await failure(handler)


async def failure(handler: object) -> TierError:
    async with LoopbackServer(handler) as server:  # type: ignore[arg-type]
        tier = RemoteTier(remote_spec(server.base_url))
        await tier.start()
        with pytest.raises(TierError) as caught:
            await collect(tier, chat())
        await tier.close()
    return caught.value
