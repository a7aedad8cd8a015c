"""Knobs change by name, whole or not at all, model by model, and outlast the process only if asked."""

import contextlib
import json
import logging
import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inference_core.engine.core import Core
from inference_core.engine.live_knobs import KNOB_NAMES, KnobsFile, LiveKnobs, knob_schemas, start_knobs
from inference_core.errors import InvalidRequestError
from inference_core.model_spec import CoreSpec, ModelSpec
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from tests.inference_core.hash_model import HashModelRunner, hash_core

START = {"a": Knobs(), "b": Knobs(prefill_chunk=64)}


def test_a_change_names_what_it_changes_and_leaves_the_rest() -> None:
    knobs = LiveKnobs(START)
    knobs.change({"max_num_seqs": 7})
    assert knobs.active == {"a": Knobs(max_num_seqs=7), "b": Knobs(max_num_seqs=7, prefill_chunk=64)}


def test_a_change_can_be_for_one_model() -> None:
    knobs = LiveKnobs(START)
    knobs.change({"prefix_caching": False}, "b")
    assert (knobs.of("a").prefix_caching, knobs.of("b").prefix_caching) == (True, False)


def test_null_resets_a_knob_to_the_start_value_of_its_model() -> None:
    knobs = LiveKnobs(START)
    knobs.change({"prefill_chunk": 16})
    knobs.change({"prefill_chunk": None})
    assert knobs.active == START


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("prefill_chunk", 0, "prefill_chunk is 0; allowed: a whole number from 1 to 1,048,576"),
        ("prefill_chunk", 2.5, "prefill_chunk is 2.5; allowed: a whole number from 1"),
        ("prefill_chunk", True, "prefill_chunk is true; allowed: a whole number"),
        ("prefix_caching", "maybe", 'prefix_caching is "maybe"; allowed: true or false'),
        ("prefix_caching", 1, "prefix_caching is 1; allowed: true or false"),
        ("ageing_seconds", math.nan, "ageing_seconds is nan; allowed: a number from 0.001 to 86,400"),
        ("ageing_seconds", math.inf, "ageing_seconds is inf; allowed"),
        ("max_num_seqs", [1], "max_num_seqs is [1]; allowed"),
        ("speed", 3, "speed is no knob; there are max_num_batched_tokens, max_num_seqs"),
    ],
)
def test_a_refused_knob_names_the_given_and_the_allowed_value_and_changes_nothing(
    name: str, value: object, said: str
) -> None:
    knobs = LiveKnobs(START)
    with pytest.raises(InvalidRequestError) as caught:
        knobs.change({"max_waiting": 5, name: value, "max_num_batched_tokens": 9})  # type: ignore[dict-item]
    assert str(caught.value).startswith(said)
    assert caught.value.param == name
    assert knobs.active == START


def test_threads_are_the_same_for_all_models() -> None:
    used: list[int] = []
    runners = {name: HashModelRunner(name, bytearray(4096), 4096) for name in ("a", "b")}
    core = Core(runners, arena_bytes=4096, slab_bytes=4096, use_threads=used.append)
    with pytest.raises(InvalidRequestError, match="leave model out") as caught:
        core.set_knobs({"threads": 3, "max_waiting": 9}, "a")
    assert caught.value.param == "threads"
    core.set_knobs({"max_waiting": 9})
    assert used == []
    core.set_knobs({"threads": 3})
    core.set_knobs({"threads": None})
    assert used == [3, 0]
    models = [ModelSpec(name="a", path="", compute="bfloat16", knobs={"threads": 2})]
    with pytest.raises(InvalidRequestError, match="the same for all models"):
        start_knobs(CoreSpec(models=models))
    assert start_knobs(CoreSpec(models=[ModelSpec(name="a", path="", compute="bfloat16")], threads=2))["a"].threads == 2


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="model 'c' is unknown; loaded: a, b") as caught:
        LiveKnobs(START).change({"max_waiting": 5}, "c")
    assert caught.value.param == "model"


def test_a_core_does_not_start_with_a_knob_out_of_range() -> None:
    with pytest.raises(InvalidRequestError, match="max_num_seqs is 0"):
        LiveKnobs({"m": Knobs(max_num_seqs=0)})


@given(name=st.sampled_from(KNOB_NAMES), value=st.none() | st.booleans() | st.integers() | st.floats() | st.text())
def test_after_any_change_the_knobs_are_within_their_bounds(name: str, value: object) -> None:
    knobs = LiveKnobs(START)
    with contextlib.suppress(InvalidRequestError):
        knobs.change({name: value})  # type: ignore[dict-item]
    LiveKnobs(knobs.active)


def test_every_knob_is_described_with_its_bounds() -> None:
    for name, schema in knob_schemas().items():
        assert schema["description"].endswith("."), name
        assert "default" in schema, name
        assert schema.get("type") in ("boolean", "array") or "enum" in schema or "minimum" in schema, name


def test_models_start_with_the_cores_knobs_and_their_own_over_them() -> None:
    models = [
        ModelSpec(name="a", path="", compute="bfloat16", knobs={"prefill_chunk": 64}),
        ModelSpec(name="b", path="", compute="bfloat16"),
    ]
    start = start_knobs(CoreSpec(models=models, knobs={"prefill_chunk": 128, "max_num_seqs": 8}))
    assert start == {"a": Knobs(prefill_chunk=64, max_num_seqs=8), "b": Knobs(prefill_chunk=128, max_num_seqs=8)}


# -- across restarts -------------------------------------------------------------------------------


def test_only_kept_changes_outlast_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "knobs.json"
    first = LiveKnobs(START, KnobsFile(path))
    first.change({"max_num_seqs": 3})
    first.change({"max_waiting": 9, "prefill_chunk": 8}, "a", keep=True)
    first.change({"prefill_chunk": 32}, "a")
    again = LiveKnobs(START, KnobsFile(path))
    assert again.active == {"a": Knobs(max_waiting=9, prefill_chunk=8), "b": START["b"]}


def test_a_kept_knob_is_let_go_by_keeping_null(tmp_path: Path) -> None:
    path = tmp_path / "knobs.json"
    LiveKnobs(START, KnobsFile(path)).change({"max_waiting": 9, "max_num_seqs": 2}, keep=True)
    LiveKnobs(START, KnobsFile(path)).change({"max_waiting": None}, keep=True)
    assert LiveKnobs(START, KnobsFile(path)).of("a") == Knobs(max_num_seqs=2)


def test_kept_knobs_that_cannot_be_used_are_named_in_the_log_and_the_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "knobs.json"
    path.write_text(json.dumps({"a": {"max_waiting": 9, "gone": 1, "prefill_chunk": 0}, "old": {"max_waiting": 1}}))
    with caplog.at_level(logging.WARNING):
        assert LiveKnobs(START, KnobsFile(path)).of("a") == Knobs(max_waiting=9)
    assert "gone is no knob" in caplog.text
    assert "prefill_chunk is 0" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 3}', b"\xff"])
def test_a_damaged_file_stops_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "knobs.json"
    path.write_bytes(content)
    assert LiveKnobs(START, KnobsFile(path)).active == START


def test_a_change_that_cannot_be_kept_is_refused_whole(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file is in the way")
    for file in (None, KnobsFile(tmp_path / "folder" / "knobs.json")):
        knobs = LiveKnobs(START, file)
        with pytest.raises(InvalidRequestError) as caught:
            knobs.change({"max_waiting": 9}, keep=True)
        assert caught.value.param == "keep"
        assert knobs.active == START


# -- in a core -------------------------------------------------------------------------------------


def test_one_models_prefix_cache_can_be_switched_off_while_anothers_stays() -> None:
    core = hash_core("a", "b")
    for name in ("a", "b"):
        core.add(AddRequest(request_id=name, model=name, prompt_token_ids=[1] * 40, sampling=SamplingParams()))
    while core.has_work:
        core.step()
    core.set_knobs({"prefix_caching": False}, "a")
    a, b = core.stats().models
    assert (a.blocks_cached, a.knobs.prefix_caching) == (0, False)
    assert b.blocks_cached > 0
    assert b.knobs.prefix_caching
