"""The prefixes that a catalogue pins: who may find them, and what is wrong with them (SPEC KV-06)."""

from typing import Any

import pytest

from inference_core.model_spec import PrefixMessage, PrefixSpec
from tests.tiers.catalog.test_catalog import complaint, put, shipped_table
from tiers.catalog.core_spec import core_spec, group_spec
from tiers.catalog.load import parse_catalog

SYSTEM = {"role": "system", "content": "Answer with one word."}
SHOP: dict[str, Any] = {"name": "shop", "public": True, "messages": [SYSTEM]}


def test_prefixes_reach_the_cores_that_pin_them() -> None:
    laptop, datacenter = shipped_table(), shipped_table("datacenter")
    laptop["core"] |= {"prefixes": [SHOP], "pinned_share": 0.5}
    datacenter["gpu_groups"][0] |= {"prefixes": [SHOP | {"models": [datacenter["gpu_groups"][0]["models"][0]["name"]]}]}
    cpu = core_spec(parse_catalog(laptop, "catalogue 'edited'"))
    card = group_spec(parse_catalog(datacenter, "catalogue 'edited'"), datacenter["gpu_groups"][0]["name"]).core
    message = PrefixMessage(role="system", content="Answer with one word.")
    assert cpu.prefixes == [PrefixSpec(name="shop", messages=[message], public=True)]
    assert (cpu.pinned_share, card.pinned_share) == (0.5, 0.25)
    assert [prefix.is_for("another") for prefix in (*cpu.prefixes, *card.prefixes)] == [True, False]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"public": False}, "core.prefixes 'shop': give either tenant, whose prompts find it, or public = true"),
        ({"tenant": "team"}, "core.prefixes 'shop': give either tenant"),
        ({"models": ["gpt"]}, "core.prefixes 'shop'.models: no such model here: gpt; there are smollm2-int4"),
        ({"messages": []}, "core.prefixes 'shop'.messages: is empty"),
        ({"messages": [SYSTEM, {"role": "user", "content": "Hi"}]}, "'shop'.messages: the last message is a user's"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "core.prefixes[0].messages[0].role"),
    ],
)
def test_a_prefix_that_says_too_little_or_too_much_is_refused(changes: dict[str, Any], why: str) -> None:
    assert why in complaint(put("core.prefixes", [SHOP | changes]))


def test_two_prefixes_have_two_names_and_leave_room_for_requests() -> None:
    assert "core.prefixes: " in complaint(put("core.prefixes", [SHOP, SHOP]))
    assert "core.pinned_share = 0.95" in complaint(put("core.pinned_share", 0.95))
