"""Labels that rules make of recorded answers, against recorded marks."""

from tests.quality.judges.recorded_labels import labels_of
from tests.shared_data import rows


async def test_no_rule_calls_a_recorded_answer_good_because_its_reference_is_broken() -> None:
    pairs = await labels_of(rows("replay_arena.jsonl.gz", limit=100))

    labelled = [pair for pair in pairs if pair.judge]
    assert labelled
    assert not any(pair.broken for pair in labelled)
    # Parsing alone proves no answer to be good.
    assert not any(pair.no_worse for pair in labelled if pair.judge == "code")
