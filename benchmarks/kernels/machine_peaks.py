"""What this machine can do at best, measured, and what follows from it for a model: the bound of every figure."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

from inference_core.execution.block_memory import allocate_arena
from inference_core.model_config import ModelConfig
from inference_core.native import cpu

_MEMORY_BYTES = 256 << 20  # several times the last-level cache
_READ_BYTES = 16 << 20  # at a time: within a millisecond or two, which other processes may leave alone
_ROUNDS = 20_000
_MEETINGS = 1_000


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """Per thread: 10^9 multiply-adds per second in registers, of INT8 activations with packed codes and of float32.

    `read_gb_s`: 10^9 bytes per second of memory that no cache holds, by one thread and by `threads` together.
    `barrier_ns`: one meeting of all threads.
    """

    instruction_set: str
    threads: int
    integer_gmac_s: float
    float_gmac_s: float
    read_gb_s_one: float
    read_gb_s_all: float
    barrier_ns: float


def fastest(work: Callable[[], None], repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs: what other processes take from the rest says nothing of the code."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def machine_peaks(threads: int | None = None) -> MachinePeaks:
    """Measure, in about a second. The kernels keep `threads` (None: one per CPU) afterwards.

    Raises RuntimeError where the native kernels were not built.
    """
    native = cpu.extension()
    memory = allocate_arena(_MEMORY_BYTES)
    memory.fill_(1)
    pieces = cycle(range(memory.data_ptr(), memory.data_ptr() + _MEMORY_BYTES, _READ_BYTES))

    def products(integers: bool) -> float:
        done: int = native.multiply(integers, _ROUNDS)
        return done / fastest(lambda: native.multiply(integers, _ROUNDS), 50) / 1e9

    def reading() -> float:
        return _READ_BYTES / fastest(lambda: native.read_memory(next(pieces), _READ_BYTES), 100) / 1e9

    cpu.set_threads(1)
    integers, floats, alone = products(True), products(False), reading()
    count = cpu.set_threads(threads)
    return MachinePeaks(
        instruction_set=native.instruction_set(),
        threads=count,
        integer_gmac_s=integers,
        float_gmac_s=floats,
        read_gb_s_one=alone,
        read_gb_s_all=reading(),
        barrier_ns=fastest(lambda: native.meet(_MEETINGS), 30) / _MEETINGS * 1e9,
    )


def model_bounds(peaks: MachinePeaks, config: ModelConfig, weight_bytes: int) -> dict[str, float]:
    """Tokens per second that no schedule and no kernel of this kind can pass on this machine, all its threads at work.

    Every step reads all weights once, its products take the peak's time, and what is slower of the two counts;
    attention multiplies in float32. `decode_N`: N streams after 128 tokens. `prefill_N`: a prompt of N tokens.
    `closed_loop_N`: N streams of 128 tokens in and 64 out, every prompt prefilled at its own best speed.
    """
    integers, floats = peaks.integer_gmac_s * 1e9 * peaks.threads, peaks.float_gmac_s * 1e9 * peaks.threads
    width = config.num_heads * config.head_dim
    cache = config.num_kv_heads * config.head_dim
    hidden = config.hidden_size
    per_layer = hidden * (width + 2 * cache) + width * hidden + 3 * hidden * config.intermediate_size
    body, head = config.num_layers * per_layer, hidden * config.vocab_size

    def attention(context: float) -> float:
        return 2 * config.num_layers * width * context / floats

    def prefill(tokens: int) -> float:
        return tokens * (body / integers + attention(tokens / 2)) + head / integers

    def step(streams: int, context: float) -> float:
        reading = weight_bytes / (peaks.read_gb_s_all * 1e9)
        return max(reading, streams * (body + head) / integers) + streams * attention(context)

    def closed_loop(streams: int, prompt: int = 128, answer: int = 64) -> float:
        return streams * answer / (streams * prefill(prompt) + answer * step(streams, prompt + answer / 2))

    return {
        **{f"decode_{n}": n / step(n, 160) for n in (1, 8, 32)},
        **{f"closed_loop_{n}": closed_loop(n) for n in (8, 32)},
        **{f"prefill_{n}": n / prefill(n) for n in (128, 1024)},
    }
