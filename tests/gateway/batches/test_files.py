"""Files by OpenAI's client: unchanged content, visible to one tenant only, within their limits."""

import io
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from sqlalchemy import func, select, update

from gateway.batches.file_store import PART_BYTES
from migrations.tables.api_objects import file_parts, files
from tests.support.app import RunningGateway, StartApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEYS = {"ada": "test-ada-021e396f1e3ce9d4889bb83e68344d8b", "bob": "test-bob-1b892e8121353734aca120232cf84021"}
ADMIN = "test-admin-07158b06243a3ef4b8e7746013aa659a"
LIMIT = 3 * PART_BYTES


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keeping(module_app: StartApp) -> RunningGateway:
    return await module_app(
        api_keys=",".join(f"{name}={key}" for name, key in KEYS.items()),
        admin_keys=f"root={ADMIN}",
        file_limit=LIMIT,
        files_quota=2 * LIMIT,
    )


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def emptied(keeping: RunningGateway) -> AsyncIterator[None]:
    yield
    for name in KEYS:
        async for file in client(keeping, name).files.list():
            await client(keeping, name).files.delete(file.id)


def client(gateway: RunningGateway, name: str) -> openai.AsyncOpenAI:
    return gateway.openai.with_options(api_key=KEYS[name])


async def uploaded(gateway: RunningGateway, content: bytes, name: str = "ada", **fields: Any) -> Any:
    given = {"purpose": "batch"} | fields
    return await client(gateway, name).files.create(file=("in.jsonl", io.BytesIO(content)), **given)


async def raw(gateway: RunningGateway, body: bytes, boundary: str = "x") -> httpx.Response:
    headers = {
        "authorization": f"Bearer {KEYS['ada']}",
        "content-type": f"multipart/form-data; boundary={boundary}",
    }
    return await gateway.http.post("/v1/files", content=body, headers=headers)


async def count(gateway: RunningGateway, table: Any) -> int:
    async with gateway.serving.database.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(table)) or 0)


@pytest.mark.parametrize("size", [1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 7])
async def test_what_was_sent_comes_back(keeping: RunningGateway, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    made = await uploaded(keeping, content[:size])
    assert (made.bytes, made.filename, made.purpose, made.status) == (size, "in.jsonl", "batch", "processed")
    assert made.object == "file"
    assert made.expires_at == made.created_at + 30 * 86_400
    assert await client(keeping, "ada").files.retrieve(made.id) == made
    answer = await client(keeping, "ada").files.content(made.id)
    assert answer.content == content[:size]
    assert answer.response.headers["content-type"] == "application/octet-stream"


async def test_a_deleted_file_is_gone_with_all_its_parts(keeping: RunningGateway) -> None:
    made = await uploaded(keeping, b"x" * (PART_BYTES + 1))
    gone = await client(keeping, "ada").files.delete(made.id)
    assert (gone.id, gone.deleted) == (made.id, True)
    for ask in (client(keeping, "ada").files.retrieve, client(keeping, "ada").files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await ask(made.id)
        assert (caught.value.param, caught.value.code) == ("file_id", "file_not_found")
    assert (await count(keeping, files), await count(keeping, file_parts)) == (0, 0)


async def test_anothers_file_is_as_if_there_were_none(keeping: RunningGateway) -> None:
    made = await uploaded(keeping, b"secret")
    bob = client(keeping, "bob")
    for ask in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    assert [file.id async for file in bob.files.list()] == []
    assert (await client(keeping, "ada").files.content(made.id)).content == b"secret"


async def test_pages_hold_every_file_once_in_either_order_and_by_purpose(keeping: RunningGateway) -> None:
    made = [(await uploaded(keeping, b"1", purpose=p)).id for p in ("batch", "user_data", "batch", "batch")]
    ada = client(keeping, "ada").files
    for order in ("asc", "desc"):
        listed = [file.id async for file in ada.list(limit=2, order=order)]  # type: ignore[arg-type]
        assert listed == sorted(made, reverse=order == "desc")
    assert [file.id async for file in ada.list(purpose="user_data")] == [made[1]]
    page = await ada.list(limit=3, order="asc")
    assert page.has_more
    assert page.model_extra is not None
    assert (page.model_extra["first_id"], page.model_extra["last_id"]) == (sorted(made)[0], sorted(made)[2])


async def test_a_chosen_expiry_is_kept_and_then_the_file_is_gone(keeping: RunningGateway) -> None:
    made = await uploaded(keeping, b"1", expires_after={"anchor": "created_at", "seconds": 3600})
    assert made.expires_at == made.created_at + 3600
    async with keeping.serving.database.begin() as connection:
        await connection.execute(update(files).values(expires_at=1.0))
    with pytest.raises(openai.NotFoundError):
        await client(keeping, "ada").files.retrieve(made.id)
    assert await keeping.jobs.files.sweep() == 1
    assert await count(keeping, file_parts) == 0


async def test_too_large_a_file_is_refused_and_nothing_of_it_stays(keeping: RunningGateway) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await uploaded(keeping, b"x" * (LIMIT + 1))
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (413, "file_too_large", "file")
    assert await count(keeping, files) == 0


async def test_a_tenant_keeps_no_more_than_the_quota_and_others_have_their_own(keeping: RunningGateway) -> None:
    for _ in range(2):
        await uploaded(keeping, b"x" * LIMIT)
    with pytest.raises(openai.APIStatusError) as caught:
        await uploaded(keeping, b"y")
    assert (caught.value.status_code, caught.value.code) == (413, "storage_limit_exceeded")
    assert await count(keeping, files) == 2
    await uploaded(keeping, b"y", "bob")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"extra_body": {"colour": "red"}}, "colour"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60}}, "expires_after[seconds]"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after[anchor]"),
    ],
)
async def test_what_is_wrong_with_the_form_is_named(keeping: RunningGateway, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await uploaded(keeping, b"x", **fields)
    assert caught.value.param == param
    assert await count(keeping, files) == 0


async def test_an_empty_file_is_refused(keeping: RunningGateway) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await uploaded(keeping, b"")
    assert caught.value.code == "empty_file"


PURPOSE = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nhello\r\n'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form at all",
        b"--x--\r\n",
        PURPOSE + b"--x--\r\n",
        PURPOSE + FILE,
        PURPOSE + FILE + FILE + b"--x--\r\n",
        PURPOSE + PURPOSE + FILE + b"--x--\r\n",
        PURPOSE + FILE.replace(b"a.jsonl", b"a\x07b") + b"--x--\r\n",
        PURPOSE + FILE.replace(b"a.jsonl", b"\xff\xfe") + b"--x--\r\n",
        PURPOSE.replace(b"batch", b"x" * 2000) + FILE + b"--x--\r\n",
        PURPOSE.replace(b"batch", b"\xff") + FILE + b"--x--\r\n",
        FILE.replace(b'; filename="a.jsonl"', b"") + PURPOSE + b"--x--\r\n",
        (b'--x\r\nContent-Disposition: form-data; name="a%d"\r\n\r\n\r\n' * 1 % 1) + b"\r\n" * 9000,
    ],
)
async def test_a_form_that_cannot_be_read_is_refused_and_leaves_nothing(keeping: RunningGateway, body: bytes) -> None:
    answer = await raw(keeping, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert await count(keeping, files) == 0


async def test_the_order_of_the_forms_fields_does_not_matter(keeping: RunningGateway) -> None:
    answer = await raw(keeping, FILE + PURPOSE + b"--x--\r\n")
    assert (answer.status_code, answer.json()["bytes"]) == (200, 5)


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up", "after=a/b", "purpose=%00", "y=1"])
async def test_a_query_that_means_nothing_is_refused_by_name(keeping: RunningGateway, query: str) -> None:
    answer = await keeping.http.get(f"/v1/files?{query}", headers={"authorization": f"Bearer {KEYS['ada']}"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.split("=")[0])


async def test_erasing_a_user_erases_her_files(keeping: RunningGateway) -> None:
    await uploaded(keeping, b"x")
    kept = await uploaded(keeping, b"y", "bob")
    answer = await keeping.http.delete("/admin/api/users/ada", headers={"authorization": f"Bearer {ADMIN}"})
    assert answer.json()["rows"]["files"] == 1
    assert await count(keeping, file_parts) == 1
    assert (await client(keeping, "bob").files.retrieve(kept.id)).id == kept.id


async def test_anthropics_client_uploads_reads_lists_and_deletes_in_its_own_form(keeping: RunningGateway) -> None:
    """It gives no purpose, and says in a header whose form it reads."""
    ours = anthropic.AsyncAnthropic(base_url=keeping.url, api_key=KEYS["ada"], max_retries=0)
    made = [await ours.beta.files.upload(file=(name, b"%PDF-1.4", "")) for name in ("a.pdf", "b.pdf")]
    assert [(one.type, one.filename, one.mime_type, one.size_bytes) for one in made] == [
        ("file", "a.pdf", "application/pdf", 8),
        ("file", "b.pdf", "application/pdf", 8),
    ]
    assert await ours.beta.files.retrieve_metadata(made[0].id) == made[0]
    assert await (await ours.beta.files.download(made[0].id)).read() == b"%PDF-1.4"
    assert [one.id async for one in ours.beta.files.list(limit=1)] == [made[1].id, made[0].id]
    headers = {"x-api-key": KEYS["ada"], "anthropic-version": "2023-06-01"}
    pages = [(await keeping.http.get("/v1/files?limit=1", headers=headers)).json()]
    pages += [(await keeping.http.get(f"/v1/files?page={pages[0]['next_page']}", headers=headers)).json()]
    assert [[one["id"] for one in page["data"]] for page in pages] == [[made[1].id], [made[0].id]]
    assert pages[1]["next_page"] is None
    gone = await ours.beta.files.delete(made[0].id)
    assert (gone.id, gone.type) == (made[0].id, "file_deleted")
    with pytest.raises(anthropic.NotFoundError):
        await ours.beta.files.retrieve_metadata(made[0].id)
    assert (await client(keeping, "ada").files.retrieve(made[1].id)).purpose == "user_data"
