"""What a machine could do at best: bytes over bandwidth and operations over peak, for the loads that are compared."""

import msgspec

from inference_core.model_config import ModelConfig


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Of all threads together: bytes read from memory, INT8 and float32 multiply-adds, each per second."""

    read_bytes: float
    int8_macs: float
    float32_macs: float


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs. `layer_macs` per token in all layers' linears, `head_macs` per token that is sampled,
    `attention_macs` per token and token of its context; `weight_bytes` read per step, `kv_bytes` per token of context.
    """

    layer_macs: int
    head_macs: int
    attention_macs: int
    weight_bytes: int
    kv_bytes: int

    @classmethod
    def of_model(cls, config: ModelConfig, *, weight_bytes: int, kv_bytes: int) -> "Work":
        width = config.num_heads * config.head_dim
        projections = width + 2 * config.num_kv_heads * config.head_dim
        each = config.hidden_size * (projections + width + 3 * config.intermediate_size)
        return cls(
            layer_macs=config.num_layers * each,
            head_macs=config.hidden_size * config.vocab_size,
            attention_macs=2 * config.num_layers * width,
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
        )


def decode_seconds(work: Work, peaks: Peaks, *, sequences: int, context: int) -> float:
    """One step of `sequences` at `context`, reading and computing at the same time."""
    read = (work.weight_bytes + sequences * context * work.kv_bytes) / peaks.read_bytes
    linears = sequences * (work.layer_macs + work.head_macs) / peaks.int8_macs
    attention = sequences * context * work.attention_macs / peaks.float32_macs
    return max(read, linears + attention)


def prefill_seconds(work: Work, peaks: Peaks, *, tokens: int) -> float:
    """A prompt of `tokens` up to its first drawn token; causal attention sees half of the square."""
    read = (work.weight_bytes + tokens * work.kv_bytes) / peaks.read_bytes
    linears = (tokens * work.layer_macs + work.head_macs) / peaks.int8_macs
    attention = tokens * (tokens + 1) / 2 * work.attention_macs / peaks.float32_macs
    return max(read, linears + attention)


def closed_loop_tokens(work: Work, peaks: Peaks, *, streams: int, prompt: int, output: int) -> float:
    """Output tokens per second of `streams` requests in flight, each with its prefill and its share of decode steps."""
    step = decode_seconds(work, peaks, sequences=streams, context=prompt + output // 2)
    return output / (prefill_seconds(work, peaks, tokens=prompt) + (output - 1) * step / streams)


def bounds(work: Work, peaks: Peaks) -> dict[str, float]:
    """By the names in `peer_tables.GOALS`: output tokens per second, and prompt tokens per second of a prefill."""
    named = {
        f"closed_loop_{streams}": closed_loop_tokens(work, peaks, streams=streams, prompt=128, output=64)
        for streams in (1, 8, 32)
    }
    return named | {"prefill_1024": 1024 / prefill_seconds(work, peaks, tokens=1024)}
