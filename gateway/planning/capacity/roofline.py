"""The most that cards can do, by their data sheets: the roofline of Williams, Waterman and Patterson (2009).

A decode step reads all weights once, whatever the number of answers, and multiplies them for each; a prompt is bound by
arithmetic alone. Keys, values and attention are left out, so that long contexts stay further below.
"""

import msgspec

from gateway.runtime.device_report import GroupSpeed, ModelSpeed, StreamSpeed
from inference_core.model_config import ModelConfig
from inference_core.placement.hardware import Device, reported_device
from inference_core.placement.weight_formats import model_weights

FAR_SHARE = 0.5
"""A figure below this share of its roofline is noted."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """A group's cards together: `bandwidth` in bytes per second of the cards that share a layer, `flops` in FLOP/s of
    16 bits of all of them."""

    bandwidth: float
    flops: float

    def decode(self, streams: int, config: ModelConfig, weight_bytes: int) -> float:
        """Return the most generated tokens per second of `streams` answers at once."""
        weights = model_weights(config)
        head = config.vocab_size * config.hidden_size
        reading = weight_bytes / self.bandwidth
        computing = streams * 2 * (weights.linear + head) / self.flops
        return streams / max(reading, computing)

    def prefill(self, config: ModelConfig) -> float:
        """Return the most prompt tokens per second; only a prompt's last token passes the vocabulary."""
        return self.flops / (2 * model_weights(config).linear)


def peak_of(device: Device, *, cards: int, tensor: int) -> Peak | None:
    """Return the peak of `cards` cards, of which `tensor` share a layer; None without numbers in the catalogue."""
    if device.bandwidth is None or device.flops is None:
        return None
    return Peak(bandwidth=tensor * device.bandwidth, flops=cards * device.flops)


def with_roofline(group: GroupSpeed, tensor: int, configs: dict[str, ModelConfig]) -> GroupSpeed:
    """Return `group` with the rooflines of its cards, whose layers `tensor` of them share, and with notes.

    `configs`: the shapes of its models by name.
    """
    device = reported_device(group.card)
    peak = None if device is None else peak_of(device, cards=group.cards, tensor=tensor)
    if device is None or peak is None:
        return msgspec.structs.replace(group, notes=[f"no roofline: the table of cards has no {group.card!r}"])
    models = [_with_peak(model, peak, configs[model.model]) for model in group.models]
    bounded = msgspec.structs.replace(group, bandwidth_roofline=device.bandwidth, models=models)
    return msgspec.structs.replace(bounded, notes=_far(bounded))


def _with_peak(model: ModelSpeed, peak: Peak, config: ModelConfig) -> ModelSpeed:
    """A mixture of experts has none: how many experts a step reads depends on its tokens."""
    if config.num_experts:
        return model
    decode = [
        msgspec.structs.replace(one, roofline=peak.decode(one.streams, config, model.weight_bytes))
        for one in model.decode
    ]
    return msgspec.structs.replace(model, prefill_roofline=peak.prefill(config), decode=decode)


def _far(group: GroupSpeed) -> list[str]:
    """Return a sentence for every figure that is below `FAR_SHARE` of its roofline."""
    figures = [(f"{group.card} copies memory", group.bandwidth / 1e9, group.bandwidth_roofline, 1e9, "GB/s")]
    for model in group.models:
        figures.append(
            (f"prompts of {model.model}", model.prefill_tokens_per_second, model.prefill_roofline, 1.0, "tokens/s")
        )
        figures += [
            (_streams(model, one), one.tokens_per_second, one.roofline, 1.0, "tokens/s") for one in model.decode
        ]
    return [
        f"{what}: {value:,.0f} {unit}, {value * scale / most:.0%} of what the data sheet allows ({most / scale:,.0f})"
        for what, value, most, scale, unit in figures
        if most is not None and value * scale < FAR_SHARE * most
    ]


def _streams(model: ModelSpeed, speed: StreamSpeed) -> str:
    return f"{speed.streams} answer{'s' * (speed.streams > 1)} of {model.model} at once"
