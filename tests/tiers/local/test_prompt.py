"""A prompt is encoded once for all tiers that read it alike, and not at all if it has too many bytes."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from inference_core.tokenization import chat_template
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.tokenizer import LONG_TEXT, Tokenizer
from tests.polling import eventually
from tests.tiers.local.test_chain_of_thought import SPEC
from tests.tiers.tier_world import ScriptedCore, chat, collect, tier_spec
from tiers.conversation import Text, Turn, media
from tiers.dialects.written.tool_calling import template_turns
from tiers.errors import TierRequestError
from tiers.local.decoder import TextPrompt, TokenPrompt
from tiers.local.local_tier import CoreWatch, LocalTier
from tiers.local.text_threads import TextThreads

# Of few tokens.
LONG = f"Why is the sky blue?{' ' * (2 * LONG_TEXT)}Tell me."


class CountingTokenizer:
    """A tokeniser that notes what it is asked to do, and on which thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.rendered: list[int] = []
        self.variables: dict[str, Any] = {}
        self.encoded: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def chat_pieces(self, *args: Any, **named: Any) -> Any:
        self.rendered.append(threading.get_ident())
        self.variables = named
        return self._tokenizer.chat_pieces(*args, **named)

    def encode_pieces(self, *args: Any, **named: Any) -> Any:
        self.encoded.append(threading.get_ident())
        return self._tokenizer.encode_pieces(*args, **named)


@pytest.fixture
def counting(tokenizer: Tokenizer) -> Any:
    return CountingTokenizer(tokenizer)


async def started(tokenizer: Any, threads: TextThreads | None = None, **changes: Any) -> LocalTier:
    core = ScriptedCore(tokenizer, lambda add: ["Blue."] * add.n)
    tier = LocalTier(tier_spec(**changes), core, lambda: tokenizer, CoreWatch(core), threads=threads)
    await tier.start()
    return tier


async def test_tiers_that_read_a_prompt_alike_share_one_reading_of_it(counting: Any) -> None:
    plain, other, thinker = await started(counting), await started(counting), await started(counting, policy=SPEC)
    request = chat(LONG)
    before = len(counting.encoded)

    counts = [tier.prompt_tokens_up_to(request, 100_000) for tier in (plain, other, thinker)]
    (answer,), usage = await collect(plain, request)

    assert answer.text == "Blue."
    assert counts[0] == counts[1] == usage.prompt_tokens == plain.count_prompt_tokens(request)
    assert counts[2] > counts[0]
    assert (len(counting.rendered), len(counting.encoded) - before) == (2, 2)


async def test_a_prompt_too_long_by_its_bytes_is_not_encoded(counting: Any) -> None:
    tier = await started(counting)
    request = chat(LONG)
    before = len(counting.encoded)

    least = tier.prompt_tokens_up_to(request, 50)

    assert len(counting.encoded) == before
    assert 50 < least <= tier.count_prompt_tokens(chat(LONG))


async def test_a_long_prompt_is_read_on_a_thread_and_a_short_one_at_once(counting: Any) -> None:
    tier = await started(counting)
    counting.rendered.clear()

    await collect(tier, chat("Hello"))
    await collect(tier, chat(LONG))
    await collect(tier, chat("Hi"))

    here = threading.get_ident()
    assert [thread == here for thread in counting.rendered] == [True, False, True]


async def test_who_leaves_before_a_long_prompt_is_read_is_billed_no_tokens_of_it(counting: Any) -> None:
    threads, go = TextThreads(2), threading.Event()
    held = asyncio.create_task(threads.run("", go.wait))
    tier, request = await started(counting, threads), chat(LONG)
    before = len(counting.encoded)
    reading = asyncio.create_task(collect(tier, request))
    await eventually(lambda: threads.waiting == 1)
    reading.cancel()
    await asyncio.wait([reading])

    assert tier.count_prompt_tokens(request) == 0
    assert len(counting.encoded) == before
    go.set()
    await held
    threads.close()


class EndlessTokenizer(CountingTokenizer):
    """A tokeniser whose model has a template that loops for hours, which no deadline ends here."""

    template = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", {})

    def chat_pieces(self, *args: Any, **named: Any) -> Any:
        self.rendered.append(threading.get_ident())
        return [self.template.render(args[0], add_generation_prompt=True, extra={})]


async def test_a_template_whose_caller_left_stops(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 3600.0)
    endless, threads = EndlessTokenizer(tokenizer), TextThreads(2)
    tier, request = await started(endless, threads), chat(LONG)
    reading = asyncio.create_task(collect(tier, request))
    await eventually(lambda: len(endless.rendered) == 1)

    reading.cancel()
    await asyncio.wait([reading])

    await eventually(lambda: threads.running == 0)
    assert tier.count_prompt_tokens(request) == 0
    threads.close()


class SlowTokenizer(CountingTokenizer):
    """A tokeniser whose template takes long for the shortest chat, once that is known."""

    renders_slowly = False


async def test_short_chats_of_a_template_that_is_slow_are_rendered_on_a_thread(tokenizer: Tokenizer) -> None:
    slow = SlowTokenizer(tokenizer)
    tier = await started(slow)
    slow.rendered.clear()

    for text, is_slow in (("Hello", False), ("Hi", True)):
        slow.renders_slowly = is_slow
        await collect(tier, chat(text))

    assert [thread == threading.get_ident() for thread in slow.rendered] == [True, False]
    assert not tokenizer.renders_slowly


async def test_many_short_turns_are_read_on_a_thread(counting: Any) -> None:
    tier = await started(counting)
    counting.rendered.clear()
    request = chat("Hi")
    assert request.messages is not None

    with pytest.raises(TierRequestError, match="do not fit"):
        await collect(tier, msgspec.structs.replace(request, messages=request.messages * 201, prompts_read={}))

    assert [thread == threading.get_ident() for thread in counting.rendered] == [False]


async def test_what_a_template_refuses_is_refused_again_without_work(counting: Any) -> None:
    tier = await started(counting)
    request = msgspec.structs.replace(chat(), messages=[])

    for _ in range(2):
        with pytest.raises(TierRequestError, match="must not be empty") as caught:
            tier.prompt_tokens_up_to(request, 10)
        assert caught.value.param == "messages"
    with pytest.raises(TierRequestError):
        await collect(tier, request)
    assert counting.rendered == []


def test_a_list_of_what_is_too_long_is_made_only_if_it_is_asked_for(tokenizer: Tokenizer) -> None:
    prompt = TextPrompt(tokenizer, lambda: ["to be or not to be"], marked=True, param="prompt")
    exact = len(tokenizer.encode("to be or not to be", add_special_tokens=True))

    assert prompt.count(exact - 1) == exact
    assert not prompt.is_encoded
    assert len(prompt.ids()) == prompt.count(exact) == exact


def test_given_tokens_are_looked_at_only_if_they_may_fit() -> None:
    assert TokenPrompt([7, 1_000_000], 10).count(1) == 2
    with pytest.raises(TierRequestError, match=r"token ids \[1000000\] are not below the vocabulary size 10"):
        TokenPrompt([7, 1_000_000], 10).count(2)
    with pytest.raises(TierRequestError, match="must not be empty"):
        TokenPrompt([], 10).ids()


def test_requests_of_one_prompt_share_what_was_read() -> None:
    request = chat()

    assert msgspec.structs.replace(request, n=5).prompts_read is request.prompts_read
    assert chat().prompts_read is not request.prompts_read


async def test_a_requests_variables_and_effort_reach_the_models_template_and_cannot_replace_its_own(
    counting: Any,
) -> None:
    tier = await started(counting)
    variables = {"enable_thinking": False, "tools": "none", "reasoning_effort": "low"}
    request = msgspec.structs.replace(chat("Hello"), template_variables=variables, reasoning_effort="high")

    await collect(tier, request)

    assert counting.variables == {
        "add_generation_prompt": True,
        "enable_thinking": False,
        "reasoning_effort": "low",
        "tools": None,
    }


async def test_an_image_is_refused_by_a_model_that_reads_text(counting: Any) -> None:
    tier = await started(counting)
    image = media("image", {"url": "https://example.org/cat.png"})
    turn = Turn.of("user", [Text("What is it?"), image])

    with pytest.raises(TierRequestError, match="reads text only"):
        await collect(tier, msgspec.structs.replace(chat("Hello"), messages=[turn]))


async def test_earlier_thoughts_are_given_to_the_template() -> None:
    turns = [Turn.of("assistant", "Blue.", thoughts="Light scatters.")]

    assert template_turns(turns)[0]["reasoning_content"] == "Light scatters."
