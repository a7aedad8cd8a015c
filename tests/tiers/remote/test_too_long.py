"""How servers say that a prompt is too long, in their own words: recognised with its counts, and not mistaken for other
refusals."""

import msgspec
import pytest

from tests.tiers.remote.loopback_server import Call, LoopbackServer
from tests.tiers.tier_world import chat, collect, remote_spec
from tiers.errors import (
    TierAnswerError,
    TierBusyError,
    TierCapabilityError,
    TierContextError,
    TierError,
    TierRequestError,
    TierUnavailableError,
)
from tiers.remote.openai_format import parse_error
from tiers.remote.remote_tier import RemoteTier
from tiers.remote.too_long import WORDINGS, too_long

# Message; tokens of the prompt, of the answer, and the most: 0 where it does not say.
TOO_LONG = [
    ("This model's maximum context length is 128000 tokens. However, your messages resulted in 250000 tokens. Please "
     "reduce the length of the messages.", 250000, 0, 128000),
    ("This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 tokens (139000 "
     "in the messages, 1000 in the functions).", 140000, 0, 128000),
    ("Your input exceeds the context window of this model. Please adjust your input and try again.", 0, 0, 0),
    ("This model's maximum context length is 4096 tokens. However, you requested 9000 tokens (8000 in the messages, "
     "1000 in the completion).", 8000, 1000, 4096),
    ("This model's maximum context length is 4097 tokens, however you requested 5000 tokens (1000 in your prompt; "
     "4000 for the completion). Please reduce your prompt; or completion length.", 1000, 4000, 4097),
    ("This model's maximum context length is 4096 tokens. However, your request has 9000 input tokens.", 9000, 0, 4096),
    ("This model's maximum context length is 4096 tokens. However, you requested 100 output tokens and your prompt "
     "contains at least 3997 input tokens, for a total of at least 4097 tokens.", 3997, 100, 4096),
    ("'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is 4096 tokens "
     "and your request has 100 input tokens (5000 > 4096 - 100).", 100, 5000, 4096),
    ("You passed 9000 input tokens and requested 100 output tokens. However, the model's context length is only 4096 "
     "tokens, resulting in a maximum input length of 3996 tokens.", 9000, 100, 4096),
    ("The decoder prompt (length 9000) is longer than the maximum model length of 4096.", 9000, 0, 4096),
    ("This endpoint's maximum context length is 131072 tokens. However, you requested about 200000 tokens (199000 of "
     "text input, 1000 in the output). Please reduce the length of either one.", 199000, 1000, 131072),
    ("The input (9000 tokens) is longer than the model's context length (4096 tokens).", 9000, 0, 4096),
    ("Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 9100 "
     "tokens: 9000 tokens from the input messages and 100 tokens for the completion.", 9000, 100, 4096),
    ("Input length (265330) exceeds model's maximum context length (262144).", 265330, 0, 262144),
    ("Input length 9000 exceeds the maximum allowed input length of 8,000 tokens.", 9000, 0, 8000),
    ("Input length 40000 exceeds the maximum length 32768", 40000, 0, 32768),
    ("length of prompt_tokens (57535) must be less than max_seq_len (32768).", 57535, 0, 32768),
    ("The input (9000 tokens) exceeds max input length 8192", 9000, 0, 8192),
    ("Your prompt has 9000 tokens which is larger than the max length 8192", 9000, 0, 8192),
    ("Your input is 9000 tokens, but the model supports 8192 tokens", 9000, 0, 8192),
    ("prompt is too large: 300000 tokens, limit 262144", 300000, 0, 262144),
    ("The total tokens 9000 exceeds the model max tokens 8192", 9000, 0, 8192),
    ("number of tokens (9000) above the limit (8192)", 9000, 0, 8192),
    ("Request too large: 9000 > 8192 tokens", 0, 0, 0),
    ("Total tokens of image and text exceed max message tokens.", 0, 0, 0),
    ("The number of tokens in the prompt exceeds the model limit", 0, 0, 0),
    ("the length of messages must be less than 8000", 0, 0, 0),
    ("prompt tokens too large, max 8192", 0, 0, 0),
    ("Prompt length 9000 exceeds the model's maximum of 8192", 0, 0, 0),
    ("Input tokens exceed model max_sequence_length: 9000 > 8192", 0, 0, 0),
    ("Exceeded max input tokens: 9000, limit 8192", 0, 0, 0),
    ("max tokens of context exceeded", 0, 0, 0),
    ("size limit exceeded: too many tokens", 0, 0, 0),
    ("The message is too long for this bot", 0, 0, 0),
    ("total message size 10176584 exceeds limit 2097152", 0, 0, 0),
    ("The estimated number of input and maximum output tokens (9000) exceeded this model context window limit (8192).",
     9000, 0, 8192),
    ("request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it", 9000, 0, 4096),
    ("the request exceeds the available context size. try increasing the context size", 0, 0, 0),
    ("Context size has been exceeded.", 0, 0, 0),
    ("prompt too long; exceeded max context length by 100 tokens", 0, 0, 0),
    ("the input length exceeds the context length", 0, 0, 0),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens and 100 "
     "`max_new_tokens`", 9000, 100, 4096),
    ("Prompt length (9000) exceeds maximum input length (4096). Set log level to info", 9000, 0, 4096),
    ("`default_max_tokens` (-152) must be greater than 0, `default_max_tokens` (-152) = max_seq_len (8192) - "
     "`splited_prompt_len` (8000) - `query_token_len` (344)", 8000, 0, 8192),
    ("The sum of prompt length (9000.0), query length (0) should not exceed max_num_tokens (8192)", 9000, 0, 8192),
    ("Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context "
     "length of only 4096 tokens, which is not enough.", 9000, 0, 4096),
    ("prompt is too long: 250000 tokens > 200000 maximum", 250000, 0, 200000),
    ("input length and `max_tokens` exceed context limit: 150000 + 60000 > 200000, decrease input length or "
     "`max_tokens` and try again", 150000, 60000, 200000),
    ("The prompt is too long: 40177, model maximum context length: 32767", 40177, 0, 32767),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1200000, 0, 1048576),
    ("The input token count exceeds the maximum number of tokens allowed 1048576.", 0, 0, 1048576),
    ("Unable to submit request because the input token count is 36000 but model only supports up to 32768.",
     36000, 0, 32768),
    ("Input is too long for requested model.", 0, 0, 0),
    ("Too many input tokens. Max input tokens: 8192, request input token count: 9000", 9000, 0, 8192),
    ("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
     40000, 0, 32768),
    ("Please reduce the length of the messages or completion.", 0, 0, 0),
    ("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
     9000, 0, 8192),
    ("Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit 6000, Requested 9000",
     9000, 0, 6000),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 537812, 0, 131072),
    ("too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354.",
     6354, 0, 2048),
    ("Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)", 140000, 0, 131072),
    ("Prompt exceeds max length", 0, 0, 0),
    ("Range of input length should be [1, 30720]", 0, 0, 30720),
    ("invalid params, context window exceeds limit (2013)", 0, 0, 0),
    ("prompt token count of 9000 exceeds the limit of 8192", 9000, 0, 8192),
    ("Request body too large for gpt-4o model. Max size: 8000 tokens.", 0, 0, 8000),
    ("Input validation error: `inputs` must have less than 4095 tokens. Given: 9000", 9000, 0, 4095),
    ("`inputs` tokens + `max_new_tokens` must be <= 4096", 0, 0, 0),
    ("The number of tokens to keep from the initial prompt is greater than the context length", 0, 0, 0),
    ("The model returned the following errors: prompt is too long", 0, 0, 0),
    ("The input token count exceeds the maximum number of tokens allowed.", 0, 0, 0),
    ("The prompt exceeds the model's context length", 0, 0, 0),
    ("Input length (9000 tokens) exceeds the maximum allowed length (4095 tokens). Use a shorter input or enable "
     "--allow-auto-truncate.", 9000, 0, 4095),
    ("The engine prompt length 9000 exceeds the max_model_len 4096. Please reduce prompt.", 9000, 0, 4096),
    ("Requested tokens (9000) exceed context window of 4096", 9000, 0, 4096),
    ("Invalid 'input[0]': maximum input length is 8192 tokens.", 0, 0, 8192),
    ("Failed to generate: the number of input tokens 9000 cannot exceed the total tokens limit 4096 for this model",
     9000, 0, 4096),
    ("input tokens (9000) plus prefix length (0) must be < 4096", 9000, 0, 4096),
    ("Requested generation length 100 is not possible! The provided prompt is 9000 tokens long, so generating 100 "
     "tokens requires a sequence length of 9100, but the maximum supported sequence length is just 8192!",
     9000, 0, 8192),
    ("Cannot truncate prompt with n_keep (9000) >= n_ctx (4096)", 9000, 0, 4096),
    ("input (9000 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
     9000, 0, 512),
    ("Input prompt is too big compared to KV size. Please try increasing KV size.", 0, 0, 0),
    ("Reached context length of 4096 tokens with this model, but it does not currently support mid-generation context "
     "overflow.", 0, 0, 4096),
    ("Request payload size exceeds the limit: 20971520 bytes.", 0, 0, 0),
    ("Malformed input request: expected maxLength: 2048, actual: 3000, please reformat your input and try again.",
     0, 0, 0),
    ("The long context beta is not yet available for this subscription.", 0, 0, 0),
    ("prompt tokens too long", 0, 0, 0),
    ("The conversation is too long, please start a new one.", 0, 0, 0),
    ("输入内容过长，请减少后重试", 0, 0, 0),
    ("tokens 超限", 0, 0, 0),
    ("Prompt length 9000 is greater than max_seq_len 8192", 9000, 0, 8192),
    ("max tokens of 8192 exceeded", 0, 0, 0),
    ("prompt token count (9000) exceeds the limit (8192)", 0, 0, 0),
    ("对话内容过长，请缩短后重试", 0, 0, 0),
    ("Input prompt (9000 tokens) is too long and exceeds limit of 4096", 9000, 0, 4096),
    ("exceed_context_size_error", 0, 0, 0),
    ("input is too large to process. increase the physical batch size", 0, 0, 0),
    ("The request exceeds context limit", 0, 0, 0),
    ("Max input tokens exceeded", 0, 0, 0),
    ("The number of input tokens exceeds the limit", 0, 0, 0),
    ("too many tokens: size limit exceeded by 11 tokens", 0, 0, 0),
    ("Token limit exceeded.", 0, 0, 0),
    ("Messages too long", 0, 0, 0),
    ("This exceeds the maximum number of tokens per request", 0, 0, 0),
    ("max_completion_tokens=65536 cannot be greater than max_model_len=max_total_tokens=8192. Please request fewer "
     "output tokens.", 0, 65536, 8192),
    ("Prompt has 32769 tokens, but the configured context size is 32768 tokens", 32769, 0, 32768),
]  # fmt: skip
OTHER = [
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for this model",
    "max_tokens is too large: 200000. This model supports at most 16384 completion tokens",
    "Too many tokens, please wait before trying again.",
    "Rate limit reached for gpt-4 on tokens per min. Limit: 10000 / min.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 10",
    "messages: at least one message is required",
    "max_tokens must be at least 1, got -20",
    "The name of a tool is too long: at most 64 characters are allowed",
    "Invalid input: 超时",
]


@pytest.mark.parametrize(("message", "prompt", "answer", "most"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_read_with_its_counts(message: str, prompt: int, answer: int, most: int) -> None:
    found = too_long(parse_error(msgspec.json.encode({"error": {"message": message}})))
    assert found is not None
    assert (found.prompt_tokens, found.answer_tokens, found.max_context) == (prompt, answer, most)
    assert not found.in_bytes


@pytest.mark.parametrize("message", OTHER)
def test_other_refusals_are_not_mistaken_for_it(message: str) -> None:
    assert too_long(parse_error(msgspec.json.encode({"error": {"message": message}}))) is None


def test_each_wording_is_one_that_some_example_has() -> None:
    patterns = WORDINGS.compiled()
    first = {next(pattern for pattern in patterns if pattern.search(message)) for message, *_ in TOO_LONG}
    assert [pattern.pattern for pattern in patterns if pattern not in first] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"error": {"message": "no", "code": "context_length_exceeded"}}, 400),
        ({"error": {"message": "no", "type": "exceed_context_size_error", "code": 400}}, 400),
        ({"error": {"message": "Provider returned error", "code": 400,
                    "metadata": {"raw": '{"message":"prompt is too long: 9 tokens > 8 maximum"}'}}}, 400),
        ({"object": "error", "message": TOO_LONG[3][0], "type": "BadRequestError", "param": None, "code": 400}, 400),
        ([{"error": {"message": TOO_LONG[28][0], "status": "INVALID_ARGUMENT"}}], 400),
        ({"error": TOO_LONG[20][0], "error_type": "validation"}, 422),
        ({"error": TOO_LONG[24][0]}, 400),
        ({"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, 413),
        ({"message": "Request Entity Too Large"}, 413),
        ({"error": {"message": TOO_LONG[21][0]}}, 500),
    ],
)  # fmt: skip
async def test_whatever_the_form_it_is_one_error_of_the_tier(body: object, status: int) -> None:
    raised = await refused(status, body)
    assert type(raised) is TierContextError
    assert (raised.param, raised.code, raised.in_bytes) == ("messages", "context_length_exceeded", status == 413)


@pytest.mark.parametrize("event", [{"error": {"message": TOO_LONG[0][0], "code": 400}}, {"error": TOO_LONG[0][0]}])
@pytest.mark.parametrize("named", [b"", b"event: error\n"])
async def test_it_is_the_same_error_in_an_event_and_in_a_body_with_200(event: object, named: bytes) -> None:
    async def handler(call: Call) -> None:
        await call.begin()
        await call.send(named)
        await call.event(event)

    raised = await failure(handler)
    assert type(raised) is TierContextError
    assert (raised.prompt_tokens, raised.max_context) == (250000, 128000)
    assert type(await refused(200, {"error": {"message": TOO_LONG[0][0], "type": "x"}})) is TierContextError


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "Function calling with a response mime type: 'application/json' is unsupported", TierCapabilityError),
        (400, "This model does not support tools", TierCapabilityError),
        (422, "response_format is not supported with streaming", TierCapabilityError),
        (400, "top_k: must be positive", TierRequestError),
        (429, TOO_LONG[36][0], TierBusyError),
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
