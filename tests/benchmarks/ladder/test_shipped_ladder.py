"""The ladder that ships: its catalogue uses what the adapter learned, and its card says what its record says."""

import msgspec

from benchmarks.ladder.packing import ANSWER_OPENING, BRIEF_OPENING, DETAILED_OPENING
from benchmarks.ladder.record import CARD_FILE, LadderRecord, model_card
from inference_core.loaders.hub_model import resolve_model_path
from inference_core.loaders.open_checkpoint import open_checkpoint
from inference_core.lora.adapter_file import WEIGHTS_FILE, read_adapter
from quality.distillation.train import RECORD_FILE
from tiers.catalog.hardware_check import validate_files
from tiers.catalog.load import load_catalog
from tiers.catalog.tier_spec import ChainOfThoughtSpec, PlainSpec

CATALOG = load_catalog("ladder")
BASE = CATALOG.core.models[1]
# As the catalogue names it, and where it is installed.
NAMED = BASE.adapters["ladder"]
FOLDER = resolve_model_path(NAMED)


def test_tiers_are_the_base_and_one_adapter_in_the_three_ways_that_it_learned() -> None:
    validate_files(CATALOG)
    assert [tier.adapter for tier in CATALOG.tiers] == [None, "ladder", "ladder", "ladder"]
    assert [type(CATALOG.tier(number).policy) for number in (1, 2)] == [PlainSpec, PlainSpec]
    for number, opening in ((3, BRIEF_OPENING), (4, DETAILED_OPENING)):
        policy = CATALOG.tier(number).policy
        assert isinstance(policy, ChainOfThoughtSpec)
        assert (policy.instruction, policy.opening) == ("", opening)
        assert (policy.end_markers, policy.answer_opening) == ((ANSWER_OPENING,), ANSWER_OPENING)


def test_the_adapter_fits_its_model_and_a_wheel() -> None:
    adapter = read_adapter(FOLDER, open_checkpoint(resolve_model_path(BASE.path)).config)
    assert len(adapter.layers) == 30
    assert (FOLDER / WEIGHTS_FILE).stat().st_size <= 10_000_000


def test_the_card_says_what_the_record_says() -> None:
    record = msgspec.json.decode((FOLDER / RECORD_FILE).read_bytes(), type=LadderRecord)
    checkpoint = open_checkpoint(resolve_model_path(BASE.path))
    assert (record.base, record.base_path, record.base_weights) == (BASE.name, BASE.path, checkpoint.fingerprint)
    assert (FOLDER / CARD_FILE).read_text(encoding="utf-8") == model_card(record, NAMED)
