"""Whether tool calls that chat templates write are read back by the dialect that was found for each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from gateway.cli.options import FOLDER, json_option
from inference_core.errors import CoreError
from inference_core.tokenization.chat_template import ChatTemplate
from tiers.dialects.written.probe_dialect import probed

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|call|>", "<|END_OF_TURN_TOKEN|>")


class TemplateRow(msgspec.Struct):
    """`refused`: it is no template. `shows no calls`: said when a model with it is loaded."""

    name: str
    outcome: Literal["refused", "no tools", "read back", "shows no calls"]
    detail: str = ""


def bench_templates(folder: Path) -> list[TemplateRow]:
    """Return a row for each template of `folder`."""
    return [_row(file) for file in sorted(folder.glob("*.jinja"))]


def _row(file: Path) -> TemplateRow:
    try:
        template = ChatTemplate(file.read_text("utf-8"), SPECIAL_TOKENS)
    except CoreError as error:
        return TemplateRow(file.name, "refused", str(error))
    if not template.uses_tools:
        return TemplateRow(file.name, "no tools")

    def render(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        return template.render(turns, add_generation_prompt=False, extra={"tools": tools})

    return TemplateRow(file.name, "shows no calls" if probed(render, _ENDS).dialect is None else "read back")


@click.command()
@click.argument("folder", type=FOLDER)
@json_option
def templates(folder: Path, as_json: bool) -> None:
    """Read each `*.jinja` of FOLDER: does it compile, does it know tools, and is a call that it writes read back?

    A template that knows tools and shows no calls is named when a model with it is loaded.
    """

    rows = bench_templates(folder)
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
        if row.outcome not in ("read back", "no tools"):
            click.echo(f"{row.name}: {row.outcome}{': ' + row.detail if row.detail else ''}")
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
