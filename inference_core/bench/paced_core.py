"""A core that computes nothing: one token per choice and step at a steady pace, for measuring what stands around it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference_core.errors import InvalidRequestError, KVTransferError
from inference_core.protocol import (
    AdapterInfo,
    AddRequest,
    CoreStats,
    Knobs,
    KnobValue,
    ModelInfo,
    ModelStats,
    SequenceOutput,
    TokenLogprob,
)
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame


@dataclass(slots=True)
class _Choice:
    """A choice that still wants `left` tokens; the next is number `place` of the core's text."""

    request: AddRequest
    index: int
    left: int
    place: int = 0


class PacedCore:
    """Serves models by name; every answer repeats `token_ids` until it has as many tokens as were asked for.

    A step ends `step_seconds` after the one before, asleep as a core is busy in its kernels. `loop_seconds` is the CPU
    time that the core's thread has spent outside its steps, `steps` how many there were.
    """

    def __init__(self, models: Sequence[ModelInfo], token_ids: Sequence[int], step_seconds: float) -> None:
        self.model_infos = list(models)
        self.steps = 0
        self.loop_seconds = 0.0
        self._token_ids = list(token_ids)
        self._step_seconds = step_seconds
        self._choices: dict[str, dict[int, _Choice]] = {}
        self._due = time.monotonic()
        self._left_step = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._choices)

    @property
    def pause_seconds(self) -> float:
        return 0.0

    @property
    def knobs(self) -> dict[str, Knobs]:
        return {info.name: Knobs() for info in self.model_infos}

    def set_knobs(self, changes: Mapping[str, KnobValue], model: str | None, keep: bool) -> None:
        """There is nothing to change."""

    def load_adapter(self, model: str, name: str, path: str) -> None:
        raise InvalidRequestError(f"{model} computes nothing and takes no adapters", "adapter")

    def unload_adapter(self, model: str, name: str) -> None:
        raise InvalidRequestError(f"{model} has no adapter {name!r}", "adapter")

    def adapters(self, model: str) -> list[AdapterInfo]:
        return []

    def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        raise KVTransferError(f"{chain.model} computes nothing that could be handed over", "incompatible")

    def import_blocks(self, chain: BlockChain, frame: BlockFrame | None) -> int:
        return 0

    def close(self) -> None:
        """There is nothing to let go of."""

    def add(self, request: AddRequest) -> None:
        wanted = request.sampling.max_tokens
        self._choices[request.request_id] = {i: _Choice(request, i, wanted) for i in range(request.n)}

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceOutput]:
        choices = self._choices.get(request_id, {})
        ended = [i for i in choices if index is None or i == index]
        for i in ended:
            del choices[i]
        if not choices:
            self._choices.pop(request_id, None)
        return [SequenceOutput(request_id=request_id, index=i, token_ids=[], finish_reason="abort") for i in ended]

    def step(self) -> list[SequenceOutput]:
        entered = time.thread_time()
        if self.steps:
            self.loop_seconds += entered - self._left_step
        self.steps += 1
        outputs = [self._advance(c) for choices in self._choices.values() for c in choices.values()]
        for output in outputs:
            if output.finish_reason is not None:
                self.abort(output.request_id, output.index)
        self._due = max(self._due + self._step_seconds, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._left_step = time.thread_time()
        return outputs

    def stats(self, query_id: str) -> CoreStats:
        models = [
            ModelStats(
                name=info.name,
                running=len(self._choices),
                waiting=0,
                blocks_in_use=0,
                blocks_cached=0,
                blocks_total=0,
                prompt_tokens=0,
                generated_tokens=0,
                prefix_hit_tokens=0,
                prefix_query_tokens=0,
                preemptions=0,
                step_seconds_mean=self._step_seconds,
                predicted_wait_seconds=0.0,
                knobs=Knobs(),
            )
            for info in self.model_infos
        ]
        return CoreStats(query_id=query_id, steps=self.steps, arena_bytes=0, slab_bytes=0, slabs_free=0, models=models)

    def _advance(self, choice: _Choice) -> SequenceOutput:
        sampling = choice.request.sampling
        token = self._token_ids[choice.place % len(self._token_ids)]
        choice.place += 1
        choice.left -= 1
        output = SequenceOutput(request_id=choice.request.request_id, index=choice.index, token_ids=[token])
        if sampling.logprobs is not None:
            output.logprobs = [TokenLogprob(token, -0.5, [(token, -0.5)] * sampling.logprobs)]
        if not choice.left:
            output.finish_reason = "length"
            output.prompt_tokens = len(choice.request.prompt_token_ids)
            output.completion_tokens = choice.place
        return output
