"""`POST /v1/responses`: OpenAI's newer API over the same tiers; stateless, so that conversations come whole."""

import msgspec
from litestar import post
from litestar.types import ASGIApp

from gateway.answering.answer import Answer
from gateway.api.inference.build_request import chat_request, received
from gateway.api.inference.chunks import OpenAIStream
from gateway.api.inference.parsing import read_body
from gateway.api.inference.response_body import ResponseBody, output_of, status_of
from gateway.api.inference.response_events import ResponseEvents
from gateway.api.inference.responses_input import chat_of, renamed
from gateway.api.inference.responses_schemas import ResponsesRequest
from gateway.api.operations import describe
from gateway.api.streaming.sending import respond
from gateway.errors import ApiError
from gateway.parts import HttpRequest, Parts, parts_of

_decoder = msgspec.json.Decoder(ResponsesRequest)


@post(
    "/responses",
    status_code=200,
    operation_class=describe(ResponsesRequest, streamed=True),
    summary="Answer an input",
    opt={"id_prefix": "resp"},
)
async def responses(request: HttpRequest) -> ASGIApp:
    """Answer a text or a list of items, whole or as OpenAI's events; see docs/clients.md for what is not kept."""
    body = await read_body(request, _decoder)
    parts = parts_of(request)
    try:
        inference_request = chat_request(parts, received(request), chat_of(body))
        return await respond(request, parts, inference_request, ResponsesFormat(parts, body))
    except ApiError as error:
        raise renamed(error) from None


class ResponsesFormat(OpenAIStream):
    """The format of `/v1/responses`."""

    def __init__(self, parts: Parts, body: ResponsesRequest) -> None:
        self._parts, self._request = parts, body

    def whole(self, answer: Answer) -> bytes:
        """See `AnswerFormat.whole`."""
        return msgspec.json.encode(self._body(answer).shown(status_of(answer), output_of(answer)))

    def chunks(self, answer: Answer) -> ResponseEvents:
        """See `AnswerFormat.chunks`."""
        return ResponseEvents(answer, self._body(answer))

    def _body(self, answer: Answer) -> ResponseBody:
        return ResponseBody(self._request, answer, self._parts.routing.spec(answer.tier.number).sampling)
