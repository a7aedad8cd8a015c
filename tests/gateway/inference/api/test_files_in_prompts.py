"""Files that were uploaded here are read where a prompt names them, in the form of the API that names them."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.base.errors import ApiError
from gateway.base.inference_request import KEYLESS
from gateway.inference.api.prompt_files import with_files
from tests.support.app import RunningGateway
from tests.support.served import UNCACHED
from tiers.dialects.chat_request import BILLING_HEADER, turns_of, without_billing
from tiers.dialects.chat_schemas import Message
from tiers.errors import BadRequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMED_FILES: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("/v1/chat/completions", lambda name: {"messages": [_saying({"type": "file", "file": {"file_id": name}})]}),
    ("/v1/responses", lambda name: {"input": [_saying({"type": "input_file", "file_id": name})]}),
    ("/v1/messages", lambda name: {
        "max_tokens": 9, "messages": [_saying({"type": "document", "source": {"type": "file", "file_id": name}})],
    }),
]  # fmt: skip


def _saying(part: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [part]}


@pytest.mark.parametrize(("path", "fields"), NAMED_FILES)
async def test_a_file_that_was_uploaded_here_is_read_where_a_prompt_names_it(
    gateway: RunningGateway, path: str, fields: Callable[[str], dict[str, Any]]
) -> None:
    made = await gateway.openai.files.create(file=("a.md", b"The word is heron."), purpose="assistants")
    answer = await gateway.http.post(path, json={"model": "tier-1"} | fields(made.id), headers=UNCACHED)
    assert answer.status_code == 200, answer.text
    (turn,) = gateway.tier(1).requests[-1].messages or ()
    assert (turn.role, turn.text.removeprefix("a.md\n")) == ("user", "The word is heron.")
    await gateway.openai.files.delete(made.id)
    gone = await gateway.http.post(path, json={"model": "tier-1"} | fields(made.id), headers=UNCACHED)
    assert gone.status_code == 400


async def test_ids_of_providers_files_stay_and_those_of_deleted_ones_are_refused(gateway: RunningGateway) -> None:
    theirs = {"type": "file", "file": {"file_id": "file-abc123"}}
    turns_of(msgspec.convert([_saying(theirs)], list[Message]))
    ours = {"type": "file", "file": {"file_id": f"file-{'0' * 32}"}}
    with pytest.raises(BadRequestError, match="may have expired"):
        turns_of(msgspec.convert([_saying(ours)], list[Message]))


@pytest.mark.parametrize(
    ("name", "content", "part", "read"),
    [
        (
            "a.pdf", b"%PDF", {"type": "input_file"},
            {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"},
        ),
        ("a.png", b"\x89PNG", {"type": "input_image"}, {"image_url": "data:image/png;base64,iVBORw=="}),
        ("a.png", b"\x89PNG", {"type": "file"}, {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}),
        ("a.ts", b"let a", {"type": "file"}, {"type": "text", "media_type": "text/plain", "data": "let a"}),
    ],
)  # fmt: skip
async def test_a_file_is_given_in_the_form_of_the_api_that_names_it(
    gateway: RunningGateway, name: str, content: bytes, part: dict[str, Any], read: dict[str, Any]
) -> None:
    made = await gateway.openai.files.create(file=(name, content), purpose="vision")
    named = json.dumps({"part": part | {"file_id": made.id}}).encode()
    with pytest.raises(ApiError, match="AIO_BODY_LIMIT"):
        await with_files(gateway.jobs.files, KEYLESS.tenant, named, 1)
    assert json.loads(await with_files(gateway.jobs.files, KEYLESS.tenant, named, 100)) == {"part": part | read}


def test_a_billing_header_is_taken_off_a_system_message() -> None:
    assert without_billing(f"{BILLING_HEADER} cc_version=2.1.9; cch=0a1b2;\n\nYou write code.") == "You write code."
    assert without_billing(f"{BILLING_HEADER} cch=0a1b2;") == ""
    assert without_billing("You write code.\nBriefly.") == "You write code.\nBriefly."
