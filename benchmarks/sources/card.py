"""What `make bench-gpu` printed of one card, in the terms of the sources' claims."""

from pathlib import Path

from benchmarks.sources.rows import rows_of
from gateway.planning.capacity.roofline import peak_of
from inference_core.loaders.decoder_tensors import SHAPES
from inference_core.placement.hardware import reported_device
from inference_core.placement.weight_formats import model_weights

CARD = "gpu-h200.jsonl"
_SHAPE = "llama-3.1-8b"


def card_speeds(folder: Path) -> dict[str, float]:
    """Return output tokens per second of an 8B with one answer at a time, by arithmetic of the weights."""
    found = rows_of(folder / CARD)
    return {row["compute"]: row["out_tok_s"] for row in found if str(row.get("stage")).endswith("-one-stream")
            and row.get("shape") == _SHAPE and "out_tok_s" in row}  # fmt: skip


def card_shares(folder: Path) -> dict[str, float]:
    """Return what the card reached of its data sheet, by what was computed; empty without a data sheet.

    A step of one answer reads every weight but the table of embeddings, of which it reads a row.
    """
    rows = rows_of(folder / CARD)
    name = next((row["machine"]["gpu"] for row in rows if "machine" in row), "")
    device = reported_device(name)
    peak = None if device is None else peak_of(device, cards=1, tensor=1)
    if peak is None:
        return {}
    config = SHAPES[_SHAPE]
    read_bytes = 2 * (model_weights(config).linear + config.vocab_size * config.hidden_size)
    shares = {}
    for row in rows:
        if row.get("stage") == "8b-bf16-one-stream" and "itl_mean_ms" in row:
            steps = 1000 / row["itl_mean_ms"]
            shares["one answer of an 8B in BF16, bandwidth"] = steps / peak.decode(1, config, read_bytes)
        if row.get("stage") == "8b-bf16-prefill" and "seconds" in row:
            tokens_per_second = row["requests"] * row["prompt_tokens"] / row["seconds"]
            shares["products of its prompts of 8,192 tokens, operations"] = tokens_per_second / peak.prefill(config)
    attention = [row["tflop_s"] for row in rows if row.get("kernel") == "prefill"]
    if attention:
        shares["attention of prompts, operations"] = max(attention) * 1e12 / peak.flops
    return shares
