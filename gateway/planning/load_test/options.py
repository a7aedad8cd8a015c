"""What `aio bench core` can be asked for; one field per command-line option."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """A trace if there is one, else Poisson arrivals at each `rate`, else a closed loop at each `concurrency`.

    Lengths are in words of the prompt (about one token each) and in tokens of the answer. `rounds`: closed loop,
    requests per unit of concurrency. `requests`: at least this many per row (closed loop), exactly this many
    (rates), at most this many (trace); 0 leaves it to the others. `duration`: seconds of arrivals at a rate.
    `trace_speed`: 2 replays twice as fast. `max_prompt` clips a trace's prompts. `timeout`: seconds for one request.
    Raises `ValueError`.
    """

    concurrency: tuple[int, ...] = (1, 8, 32)
    rate: tuple[float, ...] = ()
    trace: Path | None = None
    prompt_tokens: int = 128
    output_tokens: int = 64
    shared_prefix: int = 0
    rounds: int = 3
    requests: int = 0
    duration: float = 30.0
    trace_speed: float = 1.0
    trace_unit: Literal["s", "ms"] = "s"
    max_prompt: int = 0
    seed: int = 7
    warmup: int = 2
    timeout: float = 300.0
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None

    def __post_init__(self) -> None:
        least: dict[str, tuple[tuple[float, ...], float]] = {
            "concurrency": (self.concurrency, 1),
            "prompt_tokens": ((self.prompt_tokens,), 1),
            "output_tokens": ((self.output_tokens,), 1),
            "shared_prefix": ((self.shared_prefix,), 0),
            "rounds": ((self.rounds,), 1),
            "requests": ((self.requests,), 0),
            "max_prompt": ((self.max_prompt,), 0),
            "warmup": ((self.warmup,), 0),
        }
        for name, (values, low) in least.items():
            for value in values:
                if value < low:
                    raise ValueError(f"{name} is {value}; allowed is {low:g} and more")
        positive: dict[str, tuple[float | None, ...]] = {
            "rate": self.rate,
            "duration": (self.duration,),
            "trace_speed": (self.trace_speed,),
            "timeout": (self.timeout,),
            "slo_ttft_ms": (self.slo_ttft_ms,),
            "slo_itl_ms": (self.slo_itl_ms,),
        }
        for name, numbers in positive.items():
            for number in numbers:
                if number is not None and number <= 0:
                    raise ValueError(f"{name} is {number:g}; it must be above 0")
        if not (self.concurrency or self.rate or self.trace):
            raise ValueError("there is no load; give a concurrency, a rate or a trace")
