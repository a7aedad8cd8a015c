"""Prefixes are computed ahead, found by the first request, and never evicted; only public ones are shared (KV-06)."""

import pytest
from core_driver import BLOCK, CoreDriver, greedy

from inference_core.engine.pinned_prefixes import RETRY_SECONDS, PinnedPrefix
from inference_core.errors import InvalidRequestError, PrefixError
from inference_core.kv_cache.prefix_hash import chain_digests, public_root
from inference_core.protocol import Knobs, PrefixStats
from inference_core.protocol.kv_blocks import BlockChain

BLOCKS = 6
PREFIX = [t % 40 for t in range(BLOCKS * BLOCK)]
QUESTION = [7, 8, 9, 10, 11, 12, 13]


def prefix(name: str = "p", tenant: str | None = None, tokens: list[int] = PREFIX, model: str = "m") -> PinnedPrefix:
    return PinnedPrefix(name=name, model=model, token_ids=tokens, tenant=tenant)


def pinned(*prefixes: PinnedPrefix, **fields: object) -> CoreDriver:
    """A core that has computed `prefixes` and nothing else."""
    driver = CoreDriver(**fields)
    for one in prefixes:
        driver.pin(one)
    driver.drain()
    return driver


def state(driver: CoreDriver, model: str = "m") -> dict[str, PrefixStats]:
    return {p.name: p for m in driver.core.stats().models if m.name == model for p in m.prefixes}


def hits(driver: CoreDriver, tokens: list[int], salt: str = "", **fields: object) -> int:
    """How many tokens of a prompt were cached; the driver compares the answer with one computed without any cache."""
    request = driver.add(tokens, salt=salt, sampling=greedy(3), **fields)
    driver.drain()
    return driver.finished[request, 0].cached_tokens


def fill(driver: CoreDriver, salt: str = "other") -> None:
    """Let so many prompts pass that all that can be evicted was."""
    for token in range(30):
        driver.add([token] * 60, salt=salt, sampling=greedy(1))
        driver.drain()


def assert_nothing_stays(driver: CoreDriver) -> None:
    for name in state(driver):
        driver.core.unpin("m", name)
    driver.assert_all_free()


# -- hits ------------------------------------------------------------------------------------------


def test_the_first_request_after_the_pin_is_a_hit() -> None:
    driver = pinned(prefix(tenant="a"))
    assert state(driver)["p"] == PrefixStats(name="p", tenant="a", tokens=24, blocks=BLOCKS, ready=True)
    computed = driver.runners["m"].tokens_computed
    assert computed == len(PREFIX)
    assert hits(driver, PREFIX + QUESTION, "a") == len(PREFIX)
    assert driver.runners["m"].tokens_computed == computed + len(QUESTION) + 2
    assert_nothing_stays(driver)


def test_a_private_prefix_is_found_by_its_tenant_alone() -> None:
    driver = pinned(prefix(tenant="a"))
    assert hits(driver, PREFIX + QUESTION, "b") == 0
    assert hits(driver, PREFIX + QUESTION, "a") == len(PREFIX)
    assert_nothing_stays(driver)


@pytest.mark.parametrize("arithmetic", [False, True])
def test_a_public_prefix_is_found_by_all_tenants(arithmetic: bool) -> None:
    driver = pinned(prefix(), prompt_arithmetic=arithmetic)
    for tenant in ("", "a", "b"):
        assert hits(driver, PREFIX + QUESTION, tenant) == len(PREFIX)
    # The last token of a prompt is always computed; a prompt may end within the prefix, or leave it.
    assert hits(driver, PREFIX, "c") == len(PREFIX) - BLOCK
    assert hits(driver, [*PREFIX[: 2 * BLOCK], 45, *PREFIX], "c") == 2 * BLOCK
    assert_nothing_stays(driver)


def test_tenants_share_nothing_but_the_blocks_of_a_public_prefix() -> None:
    driver = pinned(prefix())
    assert hits(driver, PREFIX + QUESTION * 3, "a") == len(PREFIX)
    assert hits(driver, PREFIX + QUESTION * 3, "b") == len(PREFIX)
    # Each finds what it has asked itself.
    assert hits(driver, PREFIX + QUESTION * 3, "a") == (len(PREFIX) + 3 * len(QUESTION) - 1) // BLOCK * BLOCK
    driver.core.unpin("m", "p")
    assert hits(driver, PREFIX + QUESTION, "c") == 0
    assert hits(driver, PREFIX + QUESTION, "d") == 0
    driver.assert_all_free()


def test_what_one_tenant_computes_of_a_public_prefix_that_was_dropped_is_not_found_by_another() -> None:
    driver = pinned(prefix())
    first = driver.add(PREFIX + QUESTION, salt="a", sampling=greedy(3))
    driver.core.unpin("m", "p")
    driver.drain()
    assert driver.finished[first, 0].cached_tokens == 0
    assert driver.pool().match(chain_digests(public_root(), PREFIX, 0, BLOCKS, BLOCK)) == []
    assert hits(driver, PREFIX + QUESTION, "b") == 0
    driver.assert_all_free()


def test_the_longer_of_a_tenants_own_prefix_and_a_public_one_is_found() -> None:
    driver = pinned(prefix("all", tokens=PREFIX[: 2 * BLOCK]), prefix("own", "a"))
    assert hits(driver, PREFIX + QUESTION, "a") == len(PREFIX)
    assert hits(driver, PREFIX + QUESTION, "b") == 2 * BLOCK
    assert_nothing_stays(driver)


def test_a_prompt_with_an_adapter_does_not_find_what_was_computed_without() -> None:
    driver = CoreDriver(adapter_slots=1)
    driver.core.load_adapter("m", "x", "x-1")
    driver.pin(prefix())
    driver.drain()
    assert hits(driver, PREFIX + QUESTION, adapter="x") == 0
    assert_nothing_stays(driver)


def test_choices_share_a_public_prefix_and_what_follows_it() -> None:
    driver = pinned(prefix())
    request = driver.add(PREFIX + QUESTION, n=3, sampling=greedy(4))
    driver.drain()
    assert [driver.finished[request, i].cached_tokens for i in range(3)] == [24, 28, 28]
    assert_nothing_stays(driver)


def test_equal_content_that_was_cached_before_gives_way_to_the_pin() -> None:
    driver = CoreDriver()
    assert hits(driver, PREFIX + QUESTION, "a") == 0
    driver.pin(prefix(tenant="a"))
    driver.drain()
    fill(driver)
    assert hits(driver, PREFIX + QUESTION, "a") == len(PREFIX)
    assert_nothing_stays(driver)


def test_blocks_after_a_public_prefix_are_transferred_between_cores_that_have_pinned_it() -> None:
    source, target, bare = pinned(prefix()), pinned(prefix()), CoreDriver()
    prompt, size = PREFIX + QUESTION * 3, source.pool().block_bytes
    source.add(prompt, salt="a", prefill=True)
    source.drain()
    chain = BlockChain(model="m", token_ids=prompt, salt="a")
    frame = source.core.export_blocks(chain, target.core.import_blocks(chain, None), 100 * size)
    assert frame.first == BLOCKS
    target.take(chain, frame)
    assert hits(target, prompt, "a") == (len(prompt) - 1) // BLOCK * BLOCK
    assert bare.core.import_blocks(chain, None) == 0


# -- memory ----------------------------------------------------------------------------------------


def test_a_pinned_prefix_is_never_evicted() -> None:
    driver = pinned(prefix())
    fill(driver)
    assert hits(driver, PREFIX + QUESTION, "a") == len(PREFIX)
    assert_nothing_stays(driver)


def test_unpinning_frees_the_memory_once_no_request_uses_it() -> None:
    driver = pinned(prefix())
    request = driver.add(PREFIX + QUESTION, sampling=greedy(20))
    driver.step(3)
    driver.core.unpin("m", "p")
    driver.core.check_integrity()
    assert driver.arena.num_pinned == 1
    driver.drain()
    assert driver.finished[request, 0].cached_tokens == len(PREFIX)
    assert (driver.arena.num_pinned, state(driver)) == (0, {})
    driver.assert_all_free()


def test_prefixes_that_begin_alike_outlive_each_other() -> None:
    driver = pinned(prefix("one"), prefix("two", tokens=[*PREFIX, 1, 2, 3, 4]))
    driver.core.unpin("m", "one")
    assert hits(driver, [*PREFIX, 1, 2, 3, 4, 5], "a") == len(PREFIX) + BLOCK
    assert_nothing_stays(driver)


def test_more_than_the_share_is_refused_with_the_arithmetic() -> None:
    driver = pinned(prefix("first"), pinned_share=0.25)
    refusal = (
        r"'second' of 120 tokens takes 30 blocks; .* 3 slabs of 1024 bytes, but pinned_share = 0.25 allows 2 of .* 8"
    )
    with pytest.raises(PrefixError, match=refusal):
        driver.core.pin(prefix("second", tokens=[1] * 120))
    with pytest.raises(PrefixError, match="allows 0 of the arena's 8"):
        CoreDriver(pinned_share=0.0).core.pin(prefix())
    assert list(state(driver)) == ["first"]
    assert hits(driver, PREFIX + QUESTION) == len(PREFIX)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (prefix(tokens=[1, 2, 3]), "3 tokens, and only blocks of 4 can be pinned"),
        (prefix(tokens=[1] * 200), "leave nothing of the context of 200"),
        (prefix("known"), "is pinned already"),
    ],
)
def test_a_prefix_that_cannot_be_pinned_is_refused_with_the_reason(wrong: PinnedPrefix, why: str) -> None:
    driver = pinned(prefix("known"))
    with pytest.raises(PrefixError, match=why):
        driver.core.pin(wrong)
    with pytest.raises(PrefixError, match="no prefix 'unknown' is pinned"):
        driver.core.unpin("m", "unknown")


def test_a_prefix_of_an_unknown_model_or_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="model 'x' is unknown"):
        CoreDriver().core.pin(prefix(model="x"))
    with pytest.raises(InvalidRequestError, match="token 50"):
        CoreDriver().core.pin(prefix(tokens=[50] * 8))


def test_requests_that_do_not_fit_besides_pinned_prefixes_are_refused() -> None:
    driver = pinned(prefix(), slabs=2)
    driver.add([1] * 60, sampling=greedy(4))
    with pytest.raises(InvalidRequestError, match=r"has 16 blocks of 64 bytes for m besides pinned prefixes"):
        driver.add([1] * 60, sampling=greedy(6))
    driver.drain()
    assert_nothing_stays(driver)


def test_a_prefix_waits_for_memory_that_a_live_request_may_still_need() -> None:
    driver = CoreDriver(slabs=2)
    long = driver.add([1] * 60, sampling=greedy(40))
    driver.pin(prefix())
    driver.step(20)
    assert not state(driver)["p"].ready
    assert driver.arena.num_pinned == 0
    driver.drain()
    assert driver.finished[long, 0].times.preemptions == 0
    assert hits(driver, PREFIX + QUESTION) == len(PREFIX)
    assert_nothing_stays(driver)


def test_a_prefix_takes_the_cached_slabs_of_other_models() -> None:
    driver = CoreDriver({"a": 1, "m": 3}, slabs=4)
    for token in range(4):
        driver.add([token] * 60, "a", sampling=greedy(1))
    driver.drain()
    driver.pin(prefix())
    driver.drain()
    # 6 blocks of 192 bytes in slabs of 1024.
    assert (state(driver)["p"].ready, driver.arena.num_pinned) == (True, 2)
    assert driver.core.stats().models[1].blocks_pinned == BLOCKS
    assert_nothing_stays(driver)


# -- computing -------------------------------------------------------------------------------------


def test_a_prefix_is_computed_after_what_users_wait_for() -> None:
    driver = CoreDriver(knobs=Knobs(max_num_seqs=1, prefill_chunk=BLOCK))
    driver.pin(prefix())
    driver.step()
    request = driver.add(QUESTION, sampling=greedy(2))
    driver.step(4)
    assert (request, 0) in driver.finished
    assert not state(driver)["p"].ready
    driver.drain()
    assert state(driver)["p"].ready
    assert driver.core.stats().models[0].preemptions == 1
    assert_nothing_stays(driver)


def test_prefixes_count_neither_as_prompts_nor_as_hits() -> None:
    model = pinned(prefix()).core.stats().models[0]
    assert (model.prompt_tokens, model.prefix_query_tokens, model.generated_tokens) == (0, 0, 0)


def test_prefixes_come_back_with_the_cache() -> None:
    driver = pinned(prefix())
    driver.core.set_knobs({"prefix_caching": False})
    assert (driver.arena.num_pinned, state(driver)["p"].ready, driver.core.has_work) == (0, False, False)
    driver.core.set_knobs({"prefix_caching": True})
    driver.drain()
    assert hits(driver, PREFIX + QUESTION) == len(PREFIX)
    assert_nothing_stays(driver)


def test_prefixes_are_computed_again_in_the_arithmetic_of_the_prompts() -> None:
    driver = pinned(prefix(), prompt_arithmetic=True)
    driver.core.set_knobs({"prefill_arithmetic": "exact"})
    driver.drain()
    assert hits(driver, PREFIX + QUESTION) == len(PREFIX)
    assert_nothing_stays(driver)


def test_a_prefix_that_failed_is_computed_again_later() -> None:
    driver = CoreDriver()
    driver.pin(prefix())
    driver.runners["m"].fault = RuntimeError("device lost")
    driver.step()
    assert "device lost" in state(driver)["p"].error
    assert (driver.arena.num_pinned, driver.core.pause_seconds) == (0, pytest.approx(RETRY_SECONDS, abs=1))
    driver.drain()
    assert state(driver)["p"] == PrefixStats(name="p", tenant=None, tokens=24, blocks=BLOCKS, ready=True)
    assert_nothing_stays(driver)


def test_dropping_the_cache_drops_no_pinned_block() -> None:
    driver = pinned(prefix())
    driver.pool().drop_cache()
    assert hits(driver, PREFIX + QUESTION) == len(PREFIX)
    assert_nothing_stays(driver)


@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_requests_find_the_prefix_again(overlap: bool) -> None:
    driver = pinned(prefix(), slabs=2, overlap=overlap)
    for token in range(4):
        driver.add(PREFIX + [token] * 9, salt=str(token % 2), sampling=greedy(24))
    driver.drain()
    assert driver.core.stats().models[0].preemptions > 0
    assert all(output.cached_tokens == len(PREFIX) for output in driver.finished.values())
    assert_nothing_stays(driver)
