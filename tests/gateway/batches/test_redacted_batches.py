"""With AIO_REDACTION a batch leaves what it redacts in its owner's files alone, and they go when they are deleted."""

from pathlib import Path

from sqlalchemy import select

from migrations.tables.columns import metadata
from tests.gateway.batches.batching import lines_of, made, outcome, request_line
from tests.polling import eventually
from tests.support.app import RunningGateway, StartApp

SECRET = "canary-4711"


async def test_a_batch_leaves_texts_in_its_owners_files_only_and_nothing_once_they_are_deleted(
    tmp_path: Path, app: StartApp
) -> None:
    (tmp_path / "patterns").write_text(f"{SECRET}\n")
    gateway = await app(data_dir=str(tmp_path / "data"), redaction=str(tmp_path / "patterns"))
    gateway.tier(1).words = (f"It is {SECRET}.",)
    messages = [{"role": "user", "content": f"My number is {SECRET}."}]
    batch = await made(gateway.openai, [request_line("r1", messages=messages)])
    batch, output, _ = await outcome(gateway.openai, batch.id)
    assert output["r1"]["response"]["body"]["choices"][0]["message"]["content"] == f"It is {SECRET}."
    # The record of a line may come after the line's outcome.
    await eventually(lambda: is_recorded(gateway))

    assert await tables_with(gateway, SECRET) == {"file_parts"}

    for file in (batch.input_file_id, batch.output_file_id):
        assert file is not None
        assert await lines_of(gateway.openai, file)
        await gateway.openai.files.delete(file)
    assert await tables_with(gateway, SECRET) == set()


async def is_recorded(gateway: RunningGateway) -> bool:
    """Whether a request is in the database, redacted."""
    await gateway.serving.records.flush()  # type: ignore[attr-defined]
    return "requests" in await tables_with(gateway, "[redacted]")


async def tables_with(gateway: RunningGateway, text: str) -> set[str]:
    """The tables with this text in any row."""
    async with gateway.serving.database.connect() as connection:
        rows = {name: (await connection.execute(select(table))).all() for name, table in metadata.tables.items()}
    return {name for name, found in rows.items() if text in repr(found)}
