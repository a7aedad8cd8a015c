"""Measures what a device and a core on it do: memory bandwidth, prompt tokens and generated tokens per second."""

import time
from collections.abc import Callable
from random import Random

import torch

from inference_core.engine.core import Core
from inference_core.protocol import AddRequest, ModelInfo, SamplingParams

Clock = Callable[[], float]
# Larger than any cache, and small enough to fit next to a core's arena.
COPY_BYTES = 256 * 2**20
MOST_PROMPT, DECODE_PROMPT = 2048, 64
# Of every answer, before time is taken: their steps compile kernels and capture graphs.
_WARM_TOKENS = 4


def memory_bandwidth(
    device: torch.device, seconds: float, *, num_bytes: int = COPY_BYTES, clock: Clock = time.perf_counter
) -> float:
    """Return the bytes per second that `device` reads and writes while it copies `num_bytes`, for `seconds`."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    _finish(device)
    began, copies = clock(), 0
    while copies == 0 or clock() - began < seconds:
        # Several at a time, so that waiting for the device takes no share of it.
        for _ in range(8):
            target.copy_(source)
        _finish(device)
        copies += 8
    return 2 * copies * num_bytes / (clock() - began)


class CoreSpeed:
    """Measures one model of `core`, which has no other requests meanwhile. Prompts are random and share no prefix.

    Raises `RuntimeError` if the core cannot compute a request.
    """

    def __init__(self, core: Core, info: ModelInfo) -> None:
        self._core = core
        self._info = info
        self._random = Random(7)
        self._added = 0
        # Random text is neither drafted nor ended by its repetitions.
        core.set_knobs({"speculation": "off", "repetition_guard": 0}, info.name)

    def prefill(self, seconds: float) -> float:
        """Return the prompt tokens per second of prompts one after another; the first one is not counted."""
        length = max(1, min(MOST_PROMPT, self._info.max_context - 1))
        self._finish_all({self._add(length, 1)})
        began, tokens = time.perf_counter(), 0
        while tokens == 0 or time.perf_counter() - began < seconds:
            self._finish_all({self._add(length, 1)})
            tokens += length
        return tokens / (time.perf_counter() - began)

    def decode(self, streams: int, seconds: float) -> float:
        """Return the generated tokens per second of `streams` answers at once, until the first of them ends or
        `seconds` are over; each answer's first tokens are not counted."""
        prompt = max(1, min(DECODE_PROMPT, self._info.max_context // 4))
        missing = {self._add(prompt, self._info.max_context - prompt): _WARM_TOKENS for _ in range(streams)}
        names, counted, ended = list(missing), 0, False
        while any(left > 0 for left in missing.values()):
            for name, tokens, _ in self._step():
                missing[name] -= tokens
        began = time.perf_counter()
        while not ended and (counted == 0 or time.perf_counter() - began < seconds):
            for _, tokens, last in self._step():
                counted += tokens
                ended = ended or last
        taken = time.perf_counter() - began
        for name in names:
            self._core.abort(name)
        while self._core.has_work:
            self._core.step()
        return counted / taken

    def _finish_all(self, names: set[str]) -> None:
        while names:
            names -= {name for name, _, last in self._step() if last}

    def _add(self, prompt: int, most: int) -> str:
        name, self._added = f"speed-{self._info.name}-{self._added}", self._added + 1
        tokens = [self._random.randrange(self._info.vocab_size) for _ in range(prompt)]
        sampling = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
        self._core.add(AddRequest(request_id=name, model=self._info.name, prompt_token_ids=tokens, sampling=sampling))
        return name

    def _step(self) -> list[tuple[str, int, bool]]:
        """Make a step. Returns its answers by name, each with how many tokens it got and whether it ended."""
        outputs = self._core.step()
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(f"{self._info.name} could not compute a request: {output.error}")
        return [(output.request_id, len(output.token_ids), output.finish_reason is not None) for output in outputs]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
