"""Blocks that another core has computed are prefix hits here, or are refused with a reason (SPEC BS-08)."""

import msgspec
import pytest
from core_driver import BLOCK, CoreDriver, greedy
from kv_transfer_machine import damaged

from inference_core.errors import InvalidRequestError, KVTransferError
from inference_core.protocol import Knobs
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame

PROMPT = list(range(30))
FULL = 7  # blocks of four tokens before the last token
ALL = 1 << 30


def chain(prompt: list[int] = PROMPT, **fields: str) -> BlockChain:
    return BlockChain(model="m", token_ids=prompt, **fields)


def prefilled(prompt: list[int] = PROMPT, **fields: object) -> CoreDriver:
    """A core that has computed a prompt's blocks and nothing else."""
    driver = CoreDriver(adapter_slots=1)
    if fields.get("adapter"):
        driver.core.load_adapter("m", "x", "x-1")
    driver.add(prompt, prefill=True, **fields)
    driver.drain()
    return driver


def frame_of(prompt: list[int] = PROMPT, **fields: object) -> BlockFrame:
    return prefilled(prompt, **fields).core.export_blocks(chain(prompt, **fields), 0, ALL)


def assert_refused(driver: CoreDriver, reason: str, asked: BlockChain, frame: BlockFrame) -> None:
    """And nothing is cached or held."""
    with pytest.raises(KVTransferError) as caught:
        driver.core.import_blocks(asked, frame)
    assert caught.value.reason == reason
    assert driver.core.import_blocks(asked, None) == 0
    driver.core.check_integrity()
    assert driver.pool().num_referenced == 0
    assert driver.core.stats().models[0].handover.refused_frames == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_a_prefill_computes_full_blocks_draws_nothing_and_holds_nothing(overlap: bool) -> None:
    driver = CoreDriver(overlap=overlap)
    asked = driver.add(PROMPT, prefill=True)
    driver.drain()

    output = driver.finished[asked, 0]
    assert (output.finish_reason, output.prompt_tokens, output.completion_tokens) == ("stop", FULL * BLOCK, 0)
    assert driver.runners["m"].tokens_computed == FULL * BLOCK
    stats = driver.core.stats().models[0]
    assert (stats.generated_tokens, stats.blocks_in_use, stats.blocks_cached) == (0, 0, FULL)
    driver.assert_all_free()


def test_prefills_and_answers_share_overlapping_steps() -> None:
    driver = CoreDriver(overlap=True, knobs=Knobs(max_num_batched_tokens=12, prefill_chunk=5))
    for token in range(6):
        driver.add([token] * 25, prefill=token % 2 == 0, sampling=greedy(9))
    runner = driver.runners["m"]
    while driver.core.has_work:
        driver.step()
        assert all(share.token_ids for plan in getattr(runner, "plans", []) for share in plan.sequences)
    assert runner.overlapped > 0
    driver.assert_all_free()


def test_what_was_handed_over_is_found_and_the_answer_is_the_same() -> None:
    source, target = prefilled(), CoreDriver()
    target.take(chain(), source.core.export_blocks(chain(), 0, ALL))

    asked = target.add(PROMPT, sampling=greedy(20))
    target.drain()

    # The driver compares the tokens with those computed without any cache.
    assert target.finished[asked, 0].cached_tokens == FULL * BLOCK
    assert target.runners["m"].tokens_computed == len(PROMPT) - FULL * BLOCK + 19
    assert source.core.stats().models[0].handover.out_blocks == FULL
    assert target.core.stats().models[0].handover.in_blocks == FULL
    target.assert_all_free()


def test_only_missing_blocks_are_transferred_in_frames_of_any_size() -> None:
    source, target = prefilled(), CoreDriver()
    target.add(PROMPT[: 2 * BLOCK + 1], sampling=greedy(1))
    target.drain()
    held = target.core.import_blocks(chain(), None)
    assert held == 2
    sizes = []
    while held < FULL:
        frame = source.core.export_blocks(chain(), held, 2 * target.pool().block_bytes)
        sizes.append(len(frame.blocks))
        held = target.take(chain(), frame)
    assert sizes == [2, 2, 1]
    assert target.core.stats().models[0].handover.in_blocks == FULL - 2
    assert source.core.export_blocks(chain(), FULL, ALL).blocks == []


def test_blocks_that_are_there_already_change_nothing() -> None:
    target = prefilled()
    before = target.pool().match(target.core._models["m"].kv_transfer._digests(target_root(), [], PROMPT))
    assert target.take(chain(), frame_of()) == FULL
    assert target.core.stats().models[0].handover.in_blocks == 0
    assert target.pool().match(target.core._models["m"].kv_transfer._digests(target_root(), [], PROMPT)) == before


def target_root() -> bytes:
    from inference_core.kv_cache.prefix_hash import root_digest

    return root_digest("")


@pytest.mark.parametrize(
    ("damage", "reason"), [("content", "corrupt"), ("kind", "incompatible"), ("tenant", "refused")]
)
def test_a_frame_that_is_damaged_or_of_another_model_is_refused_whole(damage: str, reason: str) -> None:
    assert_refused(CoreDriver(), reason, chain(), damaged(frame_of(), damage))


@pytest.mark.parametrize("field", ["compute", "kernels", "layout"])
def test_blocks_of_another_kind_of_core_are_refused_with_the_difference(field: str) -> None:
    frame = frame_of()
    other = msgspec.structs.replace(frame.kv.layout, dtype="int8") if field == "layout" else "others"
    kv = msgspec.structs.replace(frame.kv, **{field: other})
    with pytest.raises(KVTransferError, match=field):
        CoreDriver().core.import_blocks(chain(), msgspec.structs.replace(frame, kv=kv))


def test_a_checksum_is_of_the_content_under_its_name() -> None:
    """Blocks with exchanged contents are refused."""
    frame = frame_of()
    a, b, *rest = frame.blocks
    exchanged = [type(a)(a.digest, b.checksum, b.content), type(a)(b.digest, a.checksum, a.content), *rest]
    assert_refused(CoreDriver(), "corrupt", chain(), msgspec.structs.replace(frame, blocks=exchanged))


def test_other_tokens_and_blocks_without_their_parents_are_refused() -> None:
    frame = frame_of()
    assert_refused(CoreDriver(), "refused", chain([5, *PROMPT[1:]]), frame)
    later = msgspec.structs.replace(frame, first=2, parent=frame.blocks[1].digest, blocks=frame.blocks[2:])
    assert_refused(CoreDriver(), "missing", chain(), later)
    negative = msgspec.structs.replace(frame, first=-1)
    assert_refused(CoreDriver(), "refused", chain(), negative)


def test_another_tenant_neither_finds_the_blocks_nor_can_claim_them() -> None:
    target, frame = CoreDriver(), frame_of(salt="a")
    assert_refused(target, "refused", chain(salt="b"), frame)
    assert target.take(chain(salt="a"), frame) == FULL
    asked = target.add(PROMPT, salt="b", sampling=greedy(3))
    target.drain()
    assert target.finished[asked, 0].cached_tokens == 0


def test_blocks_of_an_adapter_are_for_adapters_of_the_same_content() -> None:
    frame = frame_of(adapter="x")
    same, other = CoreDriver(adapter_slots=1), CoreDriver(adapter_slots=1)
    same.core.load_adapter("m", "x", "x-1")
    other.core.load_adapter("m", "x", "x-2")
    assert same.core.import_blocks(chain(adapter="x"), frame) == FULL
    assert_refused(other, "refused", chain(adapter="x"), frame)
    with pytest.raises(KVTransferError, match="'y'"):
        same.core.import_blocks(chain(adapter="y"), frame)


def test_without_room_no_block_is_imported_and_running_requests_continue() -> None:
    target = CoreDriver(slabs=1)
    asked = target.add([1] * 40, sampling=greedy(20))
    target.step(3)
    with pytest.raises(KVTransferError) as caught:
        target.core.import_blocks(chain(), frame_of())
    assert caught.value.reason == "full"
    target.drain()
    assert len(target.tokens[asked, 0]) == 20
    target.assert_all_free()


def test_a_chain_does_not_push_out_its_own_head() -> None:
    """Sixteen blocks, eight of them in use: five of the chain are cached, and the other eight do not fit."""
    prompt = list(range(49)) + [1] * 4
    source, target = prefilled(prompt), CoreDriver(slabs=1)
    target.add([1] * 29, sampling=greedy(20))
    target.step(2)
    size = target.pool().block_bytes
    target.take(chain(prompt), source.core.export_blocks(chain(prompt), 0, 5 * size))
    with pytest.raises(KVTransferError) as caught:
        target.take(chain(prompt), source.core.export_blocks(chain(prompt), 5, 8 * size))
    assert caught.value.reason == "full"
    assert target.core.import_blocks(chain(prompt), None) == 5
    target.core.check_integrity()


def test_what_makes_room_for_handed_blocks_is_not_copied_to_host_memory_afterwards() -> None:
    """Its content has been overwritten by then."""
    target = CoreDriver(slabs=1, knobs=Knobs(host_cache_blocks=100))
    for token in range(40, 46):
        target.add([token] * 12, sampling=greedy(2))
        target.drain()
    target.take(chain(), frame_of())
    target.core.check_integrity()
    for token in range(40, 46):
        target.add([token] * 12, sampling=greedy(2))
        target.drain()
    target.assert_all_free()


def test_handed_blocks_are_evicted_like_others() -> None:
    target = CoreDriver(slabs=1)
    target.take(chain(), frame_of())
    for token in range(31, 36):
        target.add([token] * 30, sampling=greedy(2))
        target.drain()
    assert target.core.import_blocks(chain(), None) == 0


def test_an_aborted_prefill_frees_its_blocks() -> None:
    driver = CoreDriver(knobs=Knobs(prefill_chunk=5))
    asked = driver.add(PROMPT, prefill=True)
    driver.step(3)
    assert driver.pool().num_referenced > 0
    driver.abort(asked)
    driver.assert_all_free()


def test_switching_prefix_caching_off_refuses_both_ways() -> None:
    driver = CoreDriver(knobs=Knobs(prefix_caching=False))
    with pytest.raises(InvalidRequestError, match="prefix_caching"):
        driver.add(PROMPT, prefill=True)
    assert_off = pytest.raises(KVTransferError, match="prefix_caching")
    with assert_off:
        driver.core.import_blocks(chain(), frame_of())


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [(PROMPT[:BLOCK], {}), (PROMPT, {"n": 2}), (PROMPT, {"sampling": greedy(1, prompt_logprobs=0)})],
)
def test_a_prefill_that_leaves_no_block_is_refused(prompt: list[int], fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        CoreDriver().add(prompt, prefill=True, **fields)
    assert caught.value.param == "prefill"


@pytest.mark.parametrize("token", [-1, 50, 1 << 32])
def test_invalid_token_ids_are_refused_like_those_of_a_request(token: int) -> None:
    """An invalid token must not end the core."""
    with pytest.raises(KVTransferError, match=f"token {token}") as caught:
        CoreDriver().core.import_blocks(chain([*PROMPT, token]), None)
    assert caught.value.reason == "refused"


def test_an_unknown_model_and_blocks_that_are_none_are_refused() -> None:
    core = prefilled().core
    with pytest.raises(KVTransferError, match="'x' is unknown"):
        core.export_blocks(BlockChain(model="x", token_ids=PROMPT), 0, ALL)
    with pytest.raises(KVTransferError, match="block 8"):
        core.export_blocks(chain(), FULL + 1, ALL)
