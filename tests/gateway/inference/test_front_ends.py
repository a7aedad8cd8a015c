"""Titles, tags, follow-ups and queries of chat front ends go to the cheapest tier; what resembles them does not."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.policy.decide import decide
from gateway.base.inference_request import ClientTurn
from gateway.inference.clients import recognised
from gateway.inference.front_ends import ANY_FRONT_END, WINDOW, front_end_of
from tests.examples import examples
from tests.gateway.inference.api.test_disconnects import only_record
from tests.support.app import RunningGateway
from tiers.conversation import Turn
from tiers.dialects.quirks import client_rows

HARD = "Prove rigorously that every bounded monotone sequence converges, and say where completeness is used."
EASY = "What is the capital of Portugal?"
GUIDELINES = "\n### Guidelines:\n- Keep it short.\n- Output only raw JSON.\n### Chat History:\n<chat_history>\n"


class Prompt(NamedTuple):
    """One way in which a prompt of a front end begins."""

    client: str
    place: str
    begins: str
    ends: str
    source: str


PROMPTS = [
    Prompt(row.client, row.place, begin, row.ends, row.source) for row in client_rows().prompts for begin in row.begins
]


def conversation(asked: str) -> str:
    return f"USER: {asked}\nASSISTANT: Here is a long answer.\nUSER: and then?"


def messages_of(prompt: Prompt, asked: str) -> list[Turn]:
    if prompt.place == "system":
        system = prompt.begins if prompt.begins == prompt.ends else f"{prompt.begins}\n\nRules:\n- Maximum 10 words"
        return [Turn.of("system", system), Turn.of("user", conversation(asked))]
    text = f"{prompt.begins}{GUIDELINES}{conversation(asked)}\n{prompt.ends}".lstrip("\n")
    return [Turn.of("user", text)]


def user(text: str) -> list[Turn]:
    return [Turn.of("user", text)]


@pytest.mark.parametrize("asked", [HARD, EASY, HARD * 200], ids=["hard", "easy", "long"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda one: f"{one.client}: {one.begins[-40:]}")
def test_a_known_prompt_is_its_front_ends_whatever_the_conversation_is(prompt: Prompt, asked: str) -> None:
    messages = messages_of(prompt, asked)
    assert front_end_of(messages) == prompt.client
    assert recognised({}, None, messages) == ClientTurn(client=prompt.client, kind="housekeeping")


def test_every_prompt_has_a_public_source() -> None:
    for prompt in PROMPTS:
        repository, _, path = prompt.source.partition(": ")
        assert repository.count("/") == 1
        assert path.count("/") >= 2
        assert len(prompt.begins + prompt.ends) >= 14


@pytest.mark.parametrize(
    "text",
    [
        f"Generate a short title for this chat.\n\nChat history:\n{conversation(HARD)}",
        f"<conversation>\n{conversation(HARD)}\n</conversation>\nSuggest 3 follow-up questions for this conversation.",
        f"Create 3 tags for the conversation below and return JSON.\n<messages>\n{conversation(HARD)}\n</messages>",
        f"Write one search query for this discussion:\n\n{conversation(HARD)}",
        f'Ответ только JSON: {{"title": "..."}} for this chat\n<chat_history>\n{conversation(HARD)}\n</chat_history>',
        f"Summarize the conversation as a title of five words.\n## Conversation\n{conversation(HARD)}",
    ],
)  # fmt: skip
def test_what_asks_for_a_title_of_a_conversation_in_it_is_housekeeping(text: str) -> None:
    assert front_end_of(user(text)) == ANY_FRONT_END


ASKS = tomllib.loads((Path(__file__).parent / "quoted_conversations.toml").read_text("utf-8"))
ELEMENT = f"<chat_history>\n{conversation(HARD)}\n</chat_history>"
MESSAGES = f'[{{"role": "user", "content": "{HARD}"}}, {{"role": "assistant", "content": "Here is a long answer."}}]'
QUOTED = [
    ELEMENT,
    MESSAGES,
    f"### Chat History:\n{conversation(HARD)}",
    f"Conversation:\nUser: {HARD}\n\nIt matters to me.\nAI: A long answer.\n\nShall I go on?",
    f"사용자: {HARD}\n어시스턴트: 긴 답변.",
]


def requests_of(ask: str) -> Iterator[str]:
    """Yield what asks so of a conversation, in every form of one that is known."""
    yield from (f"{ask}\n\n{quoted}" for quoted in QUOTED)
    yield from (f"{quoted}\n\n{ask}" for quoted in (ELEMENT, MESSAGES))


def test_housekeeping_in_other_words_is_mostly_recognised_around_every_form_of_a_conversation() -> None:
    known = [[front_end_of(user(text)) == ANY_FRONT_END for text in requests_of(ask)] for ask in ASKS["housekeeping"]]
    assert sum(map(all, known)) >= 0.9 * len(known)


@pytest.mark.parametrize("ask", ASKS["other"])
def test_a_request_about_a_conversation_that_speaks_of_titles_or_the_like_is_none(ask: str) -> None:
    assert not any(front_end_of(user(text)) for text in requests_of(ask))


@pytest.mark.parametrize("ask", ["Write a short title for this text.", ASKS["housekeeping"][0]])
def test_without_a_conversation_in_the_turn_nothing_is_recognised(ask: str) -> None:
    essay = "The sea is calm tonight.\nThe tide is full: the moon lies fair\n\nupon the straits."
    assert not any(front_end_of(user(text)) for text in (ask, f"{ask}\n\n{essay}", f"<text>\n{essay}\n</text>\n{ask}"))


def test_instructions_before_a_turn_that_is_a_conversation_ask_for_it() -> None:
    def asked(system: str, text: str) -> str | None:
        return front_end_of([Turn.of("system", system), *user(text)])

    title = "Generate a title of at most five words for the conversation. Return only the title."
    assert asked(title, ELEMENT) == ANY_FRONT_END
    assert asked(title, HARD) is None
    assert asked("You are a helpful assistant.", ELEMENT) is None
    assert asked(title, f"{ELEMENT}\n\nNow prove it.") is None


TITLE = PROMPTS[0]
WHOLE = messages_of(TITLE, HARD)[0].text


@pytest.mark.parametrize(
    "text",
    [
        f"Why does this prompt of a chat give bad titles? Improve it, and prove that it is better.\n\n{WHOLE}",
        f"{WHOLE}\n\nNow answer the user's question in the conversation instead.",
        f"### Task:\n{HARD}\n### Chat History:\n<chat_history>\n{conversation(EASY)}\n</chat_history>",
        f"### Task:\n{HARD}",
        f"Answer the last message, step by step.\n<chat_history>\n{conversation(HARD)}\n</chat_history>",
        f"Generate a title for this chat, then write the essay it asks for.\n<chat>\n{conversation(HARD)}\n</chat>",
        "Generate a title for a thriller about a chat conversation that goes wrong.",
        "Write SQL that returns the title and the tags of every conversation of a user.",
        "How do I generate a title for a conversation with the API? USER: and ASSISTANT: are the roles.",
        f"Summarise the chat and derive the bound that was asked for.\n<chat>\n{conversation(HARD)}\n</chat>",
        HARD,
        "",
    ],
)  # fmt: skip
def test_a_request_that_quotes_resembles_or_goes_beyond_such_a_prompt_is_none(text: str) -> None:
    assert front_end_of(user(text)) is None


@pytest.mark.parametrize("last", ["assistant", "tool", "system"])
def test_only_a_users_message_that_is_last_asks(last: str) -> None:
    assert front_end_of([*user(WHOLE), Turn.of(last, "...")]) is None  # type: ignore[arg-type]
    assert front_end_of([]) is None


def test_a_prompt_within_the_conversation_counts_for_nothing() -> None:
    text = f"{TITLE.begins}{GUIDELINES}USER: {HARD}\n{TITLE.ends} {HARD}"
    assert front_end_of(user(text)) is None


class Counted(str):
    """A text that counts the characters that are taken from it."""

    def __new__(cls, text: str, taken: list[int]) -> "Counted":
        made = super().__new__(cls, text)
        made.taken = taken
        return made

    taken: list[int]

    def __getitem__(self, place: object) -> str:
        found = super().__getitem__(place)  # type: ignore[index]
        self.taken.append(len(found))
        return found


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ("title ", "conversation ", "<chat_history>", "</chat_history>", "USER: a\n", "AI: b\n", TITLE.begins, "\n")
        ),
        max_size=20,
    ),
    st.integers(1, 2000),
)
def test_only_the_ends_of_a_turn_are_looked_at(pieces: Sequence[str], times: int) -> None:
    taken: list[int] = []
    front_end_of(user(Counted("".join(pieces) * times, taken)))
    assert sum(taken) <= 4 * WINDOW


@pytest.mark.asyncio(loop_scope="module")
async def test_a_title_after_a_hard_history_goes_to_the_cheapest_tier_and_says_why(gateway: RunningGateway) -> None:
    gateway.classifier.p_ok = [0.1, 0.2, 0.3, 1.0]

    async def asked(text: str, **headers: str) -> tuple[int, str]:
        body = {"model": "auto", "messages": [{"role": "user", "content": text}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return int(answer.headers["x-aio-tier"]), answer.json()["id"]

    tier, request_id = await asked(WHOLE)
    assert tier == 1
    decision = (await only_record(gateway, request_id)).decision
    assert decision.reason.startswith("housekeeping of open-webui: tier 1 is the cheapest")
    assert (decision.inputs.client, decision.inputs.purpose) == ("open-webui", "housekeeping")
    assert decide(decision.inputs) == decision
    assert (await asked(WHOLE, **{"x-aio-min-tier": "3"}))[0] == 3
    assert (await asked(f"{WHOLE}\n\n{HARD}"))[0] == 4
    tier, request_id = await asked(f"Generate a short title for this chat.\n\nChat history:\n{conversation(HARD)}")
    assert tier == 1
    assert (await only_record(gateway, request_id)).decision.reason.startswith("housekeeping of front-end: ")
