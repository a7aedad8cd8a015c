"""The page on knobs names every knob there is, with its default, its bounds and its description."""

from pathlib import Path
from typing import Any

import msgspec

from gateway.runtime.cores.knob_profiles import PROFILES
from inference_core.engine.live_knobs import knob_schemas

PAGE = Path(__file__).parents[3] / "docs" / "knobs.md"


def row(name: str, schema: dict[str, Any]) -> str:
    default = msgspec.json.encode(schema["default"]).decode()
    if "enum" in schema:
        allowed = ", ".join(schema["enum"])
    elif "minimum" in schema:
        allowed = f"{schema['minimum']:,} to {schema['maximum']:,}"
    else:
        allowed = "true, false" if schema["type"] == "boolean" else "a list"
    return f"| `{name}` | {default} | {allowed} | {schema['description']} | "


def test_the_page_has_a_row_for_every_knob_as_it_is() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [row(name, schema) for name, schema in knob_schemas().items()]
    missing = [row for row in rows if not any(line.startswith(row) for line in lines)]
    assert not missing, "docs/knobs.md lacks these rows:\n" + "\n".join(missing)


def test_the_page_has_the_table_of_profiles_as_they_are() -> None:
    lines = PAGE.read_text().splitlines()
    assert f"| knob | {' | '.join(PROFILES)} |" in lines
    table = lines[lines.index(f"| knob | {' | '.join(PROFILES)} |") + 2 :]
    values = [line.split(" | ")[1:] for line in table[: table.index("")]]
    kept = [each.core | each.routing | each.replicas for each in PROFILES.values()]
    assert [[cell.strip(" |") for cell in row] for row in values] == [
        ["-" if each[knob] is None else _shown(each[knob]) for each in kept] for knob in kept[0]
    ]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value).lower()
