"""Tiers of one model share its prefix cache: the weights are the same, and so is the caller's salt (SPEC KV-05)."""

import msgspec

from inference_core.tokenization.tokenizer import Tokenizer
from tests.tiers.test_tier_contract import hash_core
from tests.tiers.tier_world import chat, collect, local_tier, tier_spec
from tiers.catalog.load import load_catalog
from tiers.conversation import Turn
from tiers.local.local_tier import LocalTier
from tiers.tier import GenerationRequest

HISTORY = [
    Turn.of("system", "You are patient. " * 12),
    Turn.of("user", "Where does the river come from? " * 6),
    Turn.of("assistant", "From the mountains in the east. " * 6),
    Turn.of("user", "And where does it go?"),
]


async def tiers_of_one_model(core, tokenizer: Tokenizer) -> tuple[LocalTier, LocalTier]:
    """Tier 1, which answers plainly, and tier 4, which thinks first, on the same model."""
    plain = local_tier(tier_spec(), core, tokenizer)
    thinking = local_tier(tier_spec(load_catalog("laptop").tier(4).policy), core, tokenizer)
    await plain.start()
    await thinking.start()
    return plain, thinking


def asked(salt: str = "") -> GenerationRequest:
    return msgspec.structs.replace(chat(), messages=HISTORY, salt=salt, max_tokens=30)


async def test_what_one_tier_has_read_the_other_does_not_compute_again(tokenizer: Tokenizer) -> None:
    async with hash_core(tokenizer) as (core, runner):
        plain, thinking = await tiers_of_one_model(core, tokenizer)
        _, first = await collect(plain, asked())
        computed = runner.tokens_computed
        _, second = await collect(thinking, asked())
        history = len(tokenizer.encode_chat([{"role": m.role, "content": m.text} for m in HISTORY[:-1]]))
        assert first.cached_tokens == 0
        # All but the last turn, which tier 4 instructs, and what is left of a block.
        assert second.cached_tokens >= (history - 24) // 16 * 16 > 100
        assert runner.tokens_computed - computed < second.prompt_tokens + second.completion_tokens - 100
        _, again = await collect(plain, asked())
        assert again.cached_tokens >= (again.prompt_tokens - 1) // 16 * 16
        await plain.close()
        await thinking.close()


async def test_tenants_do_not_share_across_tiers_either(tokenizer: Tokenizer) -> None:
    async with hash_core(tokenizer) as (core, _):
        plain, thinking = await tiers_of_one_model(core, tokenizer)
        await collect(plain, asked("alice"))
        _, usage = await collect(thinking, asked("bob"))
        assert usage.cached_tokens == 0
        await plain.close()
        await thinking.close()
