"""The first requests of a family are drawn densely, of few new families a day, and begin no second time."""

import msgspec
import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.features.routing_input import app_of
from migrations.tables.quality import training_rows
from quality.records.record import Record
from quality.verification.families import NEW_A_DAY, Families, Phase
from tests.quality.loop_world import record

DAY = 86_400.0


def asked(system: str, key: str = "k", **changes: object) -> Record:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "How many?"}]
    return record("r", messages=messages, key_id=key, **changes)


def yes() -> bool:
    return True


def test_the_first_requests_are_probes_where_a_rule_judges_and_draws_lower_the_rate() -> None:
    families = Families(2, lambda: 0.0)
    one = asked("Be brief.")
    assert [families.phase(one, yes) for _ in range(3)] == [Phase(1.0, 0.12), Phase(1.0, 0.12), Phase(0.0, 0.12)]
    assert families.phase(asked("Be long."), lambda: False) == Phase(0.0, 0.12)
    rates = []
    for drawn in range(301):
        if drawn in (99, 100, 299, 300):
            rates.append(families.phase(one, yes).sample)
        families.drawn(one)
    assert rates == [0.12, 0.05, 0.05, 0.0]


def test_open_questions_take_no_place_of_a_probe_and_the_search_for_some_ends() -> None:
    families = Families(2, lambda: 0.0)
    one, judged = asked("Be brief."), iter([False, True, False, False, True, True])
    assert [families.phase(one, lambda: next(judged)).probe for _ in range(6)] == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert list(judged) == [True]
    open_ones, looked = asked("Be long."), 0

    def no() -> bool:
        nonlocal looked
        looked += 1
        return False

    for _ in range(40):
        families.phase(open_ones, no)
    assert looked == 20


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("Today is 2026-11-26.", "Today is 2026-11-27.", True),
        ("It is Monday, 3 March.", "It is Friday, 12 December.", True),
        ("Session a91f-44 of user 17", "Session 77be-02 of user 9123", True),
        ("Answer in French.", "Answer in Dutch.", False),
    ],
)
def test_system_prompts_that_differ_in_dates_and_ids_are_one_family(first: str, second: str, is_one: bool) -> None:
    families = Families(1, lambda: 0.0)
    families.phase(asked(first), yes)
    assert (families.phase(asked(second), yes).probe == 0.0) == is_one


def test_keys_and_forms_of_answers_are_families_of_their_own() -> None:
    families = Families(1, lambda: 0.0)
    others = [
        asked("Be brief."),
        asked("Be brief.", "other"),
        asked("Be brief.", response_format={"type": "json_object"}),
    ]
    assert [families.phase(one, yes).probe for one in others] == [1.0, 1.0, 1.0]


def test_a_key_has_few_new_families_a_day() -> None:
    now = 0.0
    families = Families(30, lambda: now)
    prompts = [asked(word) for word in ("a", "b", "c", "d", "e")]
    found = [families.phase(one, yes) != Phase() for one in prompts]
    assert found == [True] * NEW_A_DAY + [False] * 2
    assert families.phase(asked("a", "other"), yes) != Phase()
    now = DAY
    assert families.phase(prompts[-1], yes) != Phase()


async def test_a_restart_keeps_the_counts_of_families(engine: AsyncEngine) -> None:
    row = {
        "key_id": "k", "source": "probe", "feature_spec": "s", "embedding": b"", "no_worse": [], "weights": [],
        "app": app_of("Be brief."), "created_at": 1.0,
    }  # fmt: skip
    async with engine.begin() as connection:
        await connection.execute(insert(training_rows), [row] * 120)
    families = Families(30, lambda: 0.0)
    await families.load(engine)
    assert families.phase(asked("Be brief."), yes) == Phase(0.0, 0.05)
    assert families.phase(asked("Be long."), yes) == Phase(1.0, 0.12)


def test_a_message_without_a_role_or_a_text_belongs_to_a_family_too() -> None:
    families = Families(1, lambda: 0.0)
    assert families.phase(msgspec.structs.replace(asked(""), messages=[{}]), yes) == Phase(1.0, 0.12)
