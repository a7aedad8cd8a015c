"""Layer groups of models with windows: what they take, and which cached prefixes are found (SPEC KV-02, KV-05)."""

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from inference_core.kv_cache.layout import KVLayout, WindowGroups, group_layers, grouped
from inference_core.kv_cache.memory_plan import KVDemand
from inference_core.model_config import AttentionFeatures, ModelConfig, RotaryEmbedding
from inference_core.placement.hardware import Device, Machines, Workload
from inference_core.placement.planner import place
from inference_core.placement.weight_formats import weight_format

CONTEXT = 32768


def shape(layers: int, kv_heads: int, head_dim: int, window: int, is_full: int | None) -> ModelConfig:
    """A model of so many layers, of which every `is_full`-th has full attention."""
    return ModelConfig(
        architecture="gemma2", vocab_size=256000, hidden_size=2048, intermediate_size=8192, num_layers=layers,
        num_heads=8 * kv_heads, num_kv_heads=kv_heads, head_dim=head_dim, max_position=131072, rms_eps=1e-6,
        rope=RotaryEmbedding(theta=1e4),
        attention=AttentionFeatures(
            sliding_window=window,
            window_layers=None if is_full is None else tuple(i for i in range(layers) if (i + 1) % is_full),
        ),
    )  # fmt: skip


# As their files on the Hugging Face hub have them: layers, KV heads, head dim, window, every n-th layer is full.
REAL = {
    "gemma-2-2b": (shape(26, 4, 256, 4096, 2), 0.6),
    "gemma-2-9b": (shape(42, 8, 256, 4096, 2), 0.6),
    "gemma-3-1b": (shape(26, 1, 256, 512, 6), 0.3),
    "gemma-3-4b": (shape(34, 4, 256, 1024, 6), 0.3),
    "gemma-3-12b": (shape(48, 8, 256, 1024, 6), 0.3),
    "gemma-3-27b": (shape(62, 16, 128, 1024, 6), 0.3),
    "gpt-oss-20b": (shape(24, 8, 64, 128, 2), 0.55),
    "gpt-oss-120b": (shape(36, 8, 64, 128, 2), 0.55),
    "mistral-7b-v0.1": (shape(32, 8, 128, 4096, None), 0.17),
}


@pytest.mark.parametrize("name", REAL)
def test_a_long_context_takes_a_share_of_a_full_cache(name: str) -> None:
    config, most = REAL[name]
    whole = KVDemand.of_model(config, length=CONTEXT, batch=3, dtype="bfloat16")
    kept = KVDemand.of_model(config, length=CONTEXT, batch=3, dtype="bfloat16", window_groups=True)
    share = kept.total_bytes / whole.total_bytes
    assert share <= most
    assert f"{share:.3g}x a cache that keeps all" in "\n".join(kept.explain())
    # The plan is what the blocks of a pool take.
    layout = grouped(layout_of(config), config, CONTEXT)
    blocks = WindowGroups(layout).blocks_for(CONTEXT) * layout.block_bytes
    assert 3 * blocks == kept.total_bytes


def layout_of(config: ModelConfig) -> KVLayout:
    return KVLayout(
        num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, block_size=16,
        dtype="bfloat16",
    )  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_every_layer_has_a_place_of_its_own(name: str) -> None:
    config = REAL[name][0]
    layers, beside, places = group_layers(config)
    assert len(set(places)) == config.num_layers
    assert all(index < layers and table <= beside for table, index in places)
    windows_by_table = {
        table: {config.window_of(i) for i, (t, _) in enumerate(places) if t == table} for table, _ in places
    }
    assert all(len(windows) == 1 for windows in windows_by_table.values())


def test_windows_that_save_nothing_change_nothing() -> None:
    config = REAL["gemma-2-2b"][0]
    assert grouped(layout_of(config), config, 4096) == layout_of(config)
    plain = msgspec.structs.replace(config, attention=AttentionFeatures())
    assert grouped(layout_of(plain), plain, CONTEXT) == layout_of(plain)
    # One layer in ten has a window: its group would be as large as that of the nine others.
    one_window = msgspec.structs.replace(config.attention, window_layers=(4,))
    few = msgspec.structs.replace(config, num_layers=10, attention=one_window)
    assert grouped(layout_of(few), few, CONTEXT) == layout_of(few)
    narrow = msgspec.structs.replace(config, attention=msgspec.structs.replace(config.attention, sliding_window=8))
    assert grouped(layout_of(narrow), narrow, CONTEXT) == layout_of(narrow)


def test_the_planner_counts_windows_on_a_cpu_alone() -> None:
    config, load = REAL["gemma-3-1b"][0], Workload(length=CONTEXT, kv_dtype="bfloat16")
    memory = 8 << 30
    cpu = place(config, Machines(device=Device(name="cpu", kind="cpu", memory_bytes=memory)), load)
    card = Device(name="card", kind="gpu", memory_bytes=memory, compute_capability=90)
    gpu = place(config, Machines(device=card), load, weight_format(cpu.format))
    assert cpu.kv_tokens > 3 * gpu.kv_tokens
    assert any("with windows: 4 layers keep 32,768 tokens" in line for line in cpu.lines)


layouts = st.builds(
    KVLayout,
    num_layers=st.just(1), num_kv_heads=st.just(1), head_dim=st.just(2), block_size=st.integers(1, 6),
    dtype=st.just("float32"), window=st.integers(1, 40), window_groups=st.integers(0, 3),
).filter(lambda layout: layout.window >= layout.block_size)  # fmt: skip


def sees(windows: WindowGroups, tokens: int) -> set[int]:
    """The blocks that the token behind `tokens` others sees through the window, itself excepted."""
    return {p // windows.block_size for p in range(max(0, tokens - windows.window + 1), tokens)}


@given(layouts, st.integers(0, 30), st.data())
def test_the_longest_hit_is_the_longest_prefix_whose_blocks_are_all_cached(
    layout: KVLayout, count: int, data: st.DataObject
) -> None:
    windows = WindowGroups(layout)
    digests = [bytes([i]) * 16 for i in range(count)]
    every = windows.all_keys(digests)
    assert len(set(every)) == len(every) == count * windows.num_tables
    missing = data.draw(st.sets(st.sampled_from(every), max_size=6)) if every else set()
    cached = set(every) - missing

    def can_continue(length: int) -> bool:
        seen = sees(windows, length * windows.block_size)
        for position, digest in enumerate(digests[:length]):
            own, *beside = windows.keys(digest)
            needed = [own] if windows.keeps_all or position in seen else []
            needed += beside if position in seen else []
            if not cached.issuperset(needed):
                return False
        return True

    longest = max(length for length in range(count + 1) if can_continue(length))
    assert windows.longest_hit(digests, cached.__contains__) == longest
    needed = windows.needed(digests[:longest])
    assert cached.issuperset(key.key for key in needed)
    assert len({(key.table, key.position) for key in needed}) == len(needed)


@given(layouts, st.integers(1, 300), st.integers(1, 200))
def test_no_step_holds_more_blocks_than_are_counted(layout: KVLayout, tokens: int, chunk: int) -> None:
    windows = WindowGroups(layout)
    chunk = min(chunk, windows.most_chunk)
    computed = 0
    while computed < tokens:
        step = min(chunk, tokens - computed)
        first, last = windows.first_visible(computed), (computed + step - 1) // windows.block_size
        # What is released is seen by no token from here on.
        assert first <= min(sees(windows, computed), default=first)
        behind = last + 1 - first
        assert behind <= windows.window_blocks(step)
        held = last + 1 + behind * (windows.num_tables - 1) if windows.keeps_all else behind
        assert held <= windows.blocks_for(tokens)
        computed += step
    held = windows.blocks_for(tokens)
    assert windows.blocks_for(windows.tokens_in(held)) <= held
    if windows.keeps_all or tokens <= windows.window:
        assert windows.tokens_in(held) >= tokens
