"""Figures and fields of the core page: arena, histograms, and which fields of a form are a change."""

from typing import Any

import pytest

from gateway.admin.core import arena_parts, size_bars, time_bars
from gateway.base.errors import ApiError
from gateway.operations.dashboard.html.forms import knob_fields, wanted_changes
from gateway.telemetry.overview import core_now
from inference_core.engine.live_knobs import knob_schemas
from inference_core.protocol import CoreStats, ModelStats

IDLE: dict[str, Any] = dict.fromkeys(
    (
        "running",
        "waiting",
        "prompt_tokens",
        "generated_tokens",
        "prefix_hit_tokens",
        "prefix_query_tokens",
        "preemptions",
    ),
    0,
)


def stats(in_use: int, cached: int, total: int) -> CoreStats:
    blocks = {"blocks_in_use": in_use, "blocks_cached": cached, "blocks_total": total}
    model = ModelStats(name="m", step_seconds_mean=0, predicted_wait_seconds=0, **IDLE, **blocks)
    return CoreStats(query_id="q", steps=1, arena_bytes=64, slab_bytes=8, slabs_free=4, models=[model])


def test_the_arena_is_cut_into_what_computes_what_is_kept_and_what_is_free() -> None:
    parts = arena_parts(stats(20, 30, 100))
    assert [(part.name, round(part.share, 6)) for part in parts] == [
        ("m, in use", 0.2), ("m, cached prefixes", 0.3), ("free", 0.5),
    ]  # fmt: skip
    assert arena_parts(stats(0, 0, 0))[-1].share == 1.0


def test_what_sequences_use_of_the_arena_is_less_than_what_is_reserved() -> None:
    now = core_now("cpu", stats(25, 30, 100))
    assert (now.used_bytes, now.reserved_bytes, now.arena_bytes) == (16, 32, 64)


def test_parts_of_the_arena_have_no_colour_of_a_tier() -> None:
    whole = stats(20, 30, 100)
    whole.models *= 2
    colours = [part.colour for part in arena_parts(whole)]
    assert len(set(colours)) == len(colours)
    assert {str(colour) for colour in colours}.isdisjoint(map(str, range(1, 9)))


def test_histograms_count_every_step_once() -> None:
    bars = size_bars({1: 5, 2: 3, 3: 2, 4: 1, 9: 4})
    assert [(bar.label, bar.count) for bar in bars] == [("1", 5), ("2", 3), ("3–4", 3), ("5–8", 0), ("9–16", 4)]
    assert bars[0].share == 1.0
    assert size_bars({}) == []
    assert [(bar.label, bar.count) for bar in time_bars([0, 2, 0, 4] + [0] * 14)] == [
        ("≤ 2.5 ms", 2), ("≤ 5 ms", 0), ("≤ 10 ms", 4),
    ]  # fmt: skip
    assert time_bars([0] * 18) == []


def test_only_what_differs_from_the_form_as_shown_is_a_change() -> None:
    schemas = knob_schemas()
    names = ["max_num_seqs", "preferred_batch_sizes", "prefix_caching", "speculation", "ageing_seconds"]
    shown = {
        "max_num_seqs": " 8 ", "was.max_num_seqs": "8",
        "preferred_batch_sizes": "4, 8", "was.preferred_batch_sizes": "",
        "prefix_caching": "false", "was.prefix_caching": "true", "speculation": "off", "was.speculation": "off",
        "ageing_seconds": "", "was.ageing_seconds": "5.0",
    }  # fmt: skip
    form = {name: [text.strip()] if text.strip() else [] for name, text in shown.items()}
    assert wanted_changes(form, names, schemas) == {
        "preferred_batch_sizes": [4, 8], "prefix_caching": False, "ageing_seconds": None,
    }  # fmt: skip
    with pytest.raises(ApiError, match="max_num_seqs"):
        wanted_changes({"max_num_seqs": ["a few"], "was.max_num_seqs": ["8"]}, names, schemas)


def test_fields_say_what_may_be_put_in() -> None:
    fields = {
        f.name: f
        for f in knob_fields({"batching": "continuous", "max_num_seqs": 8, "prefill_chunk": 4}, knob_schemas())
    }
    assert fields["batching"].choices == ("continuous", "dynamic", "static")
    assert (fields["max_num_seqs"].bounds, fields["max_num_seqs"].default) == ("1 to 4,096", "64")
    assert fields["prefill_chunk"].bounds == "1 to 1,048,576"
