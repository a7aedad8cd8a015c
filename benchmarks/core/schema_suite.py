"""The JSON-Schema-Test-Suite through grammars: no invalid instance may be accepted as a finished answer.

https://github.com/json-schema-org/JSON-Schema-Test-Suite. Grammars fix the order of properties, so an instance is
accepted if one order of them is.
"""

import json
from collections.abc import Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.core.schemas import SchemaCompiler
from inference_core.errors import CoreError
from inference_core.step_plan import MatcherFactory

# The folders of drafts under `tests`, and the identifier for schemas that have none.
DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# Orders of properties that are tried for an instance.
_MOST_ORDERS = 120


class GroupRow(msgspec.Struct):
    """The tests of one schema. `refused`: why it does not compile. `invalid_accepted`: descriptions and texts."""

    name: str
    refused: str = ""
    valid: int = 0
    valid_accepted: int = 0
    invalid: int = 0
    invalid_accepted: list[tuple[str, str]] = []


def bench_suite(compiler: SchemaCompiler, folder: Path) -> Iterator[GroupRow]:
    """Yield a row for each group of the suite in `folder`, its optional ones included."""
    for draft, identifier in DRAFTS.items():
        for file in sorted((folder / "tests" / draft).rglob("*.json")):
            for group in json.loads(file.read_bytes()):
                name = f"{file.relative_to(folder / 'tests')}: {group['description']}"
                yield _row(compiler, name, _identified(group["schema"], identifier), group["tests"])


def _identified(schema: Any, identifier: str) -> Any:
    return {"$schema": identifier, **schema} if isinstance(schema, dict) else schema


def _row(compiler: SchemaCompiler, name: str, schema: Any, tests: list[dict[str, Any]]) -> GroupRow:
    try:
        make = compiler.compile(schema)
    except CoreError as error:
        return GroupRow(name, str(error))
    row = GroupRow(name)
    for test in tests:
        accepted = next(
            (text for text in islice(_texts(test["data"]), _MOST_ORDERS) if accepts(compiler, make, text)), None
        )
        if test["valid"]:
            row.valid += 1
            row.valid_accepted += accepted is not None
        else:
            row.invalid += 1
            if accepted is not None:
                row.invalid_accepted.append((test["description"], accepted))
    return row


def accepts(compiler: SchemaCompiler, make: MatcherFactory, text: str) -> bool:
    """Whether `text` may be a finished answer."""
    matcher = make()
    for token in compiler.tokeniser.encode_continued(text):
        matcher.accept(token)
    matcher.ask_masks(())
    mask = matcher.masks()[0]
    return matcher.failure is None and any(mask[end // 8] >> end % 8 & 1 for end in compiler.eos_token_ids)


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value in grammars' style, by the orders of its properties."""
    if isinstance(value, dict):
        for order in permutations(value):
            for parts in product(*(list(islice(_texts(value[key]), _MOST_ORDERS)) for key in order)):
                yield "{" + ", ".join(f"{_dumped(k)}: {part}" for k, part in zip(order, parts, strict=True)) + "}"
    elif isinstance(value, list):
        for parts in product(*(list(islice(_texts(part), _MOST_ORDERS)) for part in value)):
            yield f"[{', '.join(parts)}]"
    else:
        yield _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
