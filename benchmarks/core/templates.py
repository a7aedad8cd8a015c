"""Whether tool calls that chat templates write are read back by the dialect that was found for each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from inference_core.errors import CoreError
from inference_core.tokenization.chat_template import ChatTemplate
from tiers.tools.probe_dialect import probed

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
