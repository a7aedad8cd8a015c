"""A core of a few lines with the interface of the real one, whose steps and faults a test controls."""

import threading
import time

import msgspec

from inference_core.errors import InvalidRequestError, QueueFullError
from inference_core.protocol import CoreStats, Knobs, ModelInfo, ModelStats, SequenceOutput

INFO = ModelInfo(name="m", model_path="", max_context=1000, vocab_size=1000, weight_bytes=0, compute="scripted")


def expected_tokens(prompt, index, count, start=0):
    return [(sum(prompt) * 31 + index * 7 + position * 13) % 1000 for position in range(start, count)]


class ScriptedCore:
    """One token per choice and step. A request's `salt` says how it shall fail, if it shall.

    "invalid" and "full": refused. "explode": the step it takes part in raises. "choice": choice 0 fails at its
    second token. `hold()` makes every further step wait inside until `release()`.
    """

    def __init__(self, *, tokens_per_step=1):
        self.model_infos = [INFO]
        self.live = {}
        self.closed = False
        self.knobs = {"m": Knobs()}
        self.changes = None
        self.steps = 0
        self.work_queries = 0
        self.tokens_per_step = tokens_per_step
        self.interruptions = 0
        self._open = threading.Event()
        self._open.set()
        self.in_step = threading.Event()

    def hold(self):
        self._open.clear()

    def release(self):
        self._open.set()

    @property
    def pause_seconds(self):
        """A step is worth taking at once."""
        return 0.0

    @property
    def has_work(self):
        self.work_queries += 1
        return bool(self.live)

    def close(self):
        self.closed = True

    def add(self, request):
        if request.salt == "invalid":
            raise InvalidRequestError("top_p is 7; allowed are 0 to 1", "top_p")
        if request.salt == "full":
            raise QueueFullError("1000 requests wait already")
        assert request.request_id not in self.live
        self.live[request.request_id] = (request, dict.fromkeys(range(request.n), 0))

    def abort(self, request_id, index=None):
        if index is None:
            self.live.pop(request_id, None)
            return []
        _, done = self.live.get(request_id, (None, {}))
        if done.pop(index, None) is None:
            return []
        if not done:
            del self.live[request_id]
        return [SequenceOutput(request_id=request_id, index=index, token_ids=[], finish_reason="abort")]

    def interrupt(self):
        self.interruptions += 1

    def set_routes(self, routes):
        """Its tokens leave with the outputs of its steps."""

    def step(self):
        # No real step is faster: clients on the same processor are not flooded.
        time.sleep(0.0002)
        self.in_step.set()
        assert self._open.wait(60)
        self.steps += 1
        outputs = []
        for request_id, (request, done) in list(self.live.items()):
            if request.salt == "explode":
                raise RuntimeError("boom")
            outputs += [self._advance(request, index, done) for index in list(done)]
            if not done:
                del self.live[request_id]
        return outputs

    def _advance(self, request, index, done):
        start = done[index]
        end = min(start + self.tokens_per_step, request.sampling.max_tokens)
        done[index] = end
        output = SequenceOutput(
            request_id=request.request_id,
            index=index,
            token_ids=expected_tokens(request.prompt_token_ids, index, end, start),
        )
        if request.salt == "choice" and index == 0 and end == 2:
            output.finish_reason, output.error, output.error_kind = "error", "row 0 holds NaN", "internal"
        elif end == request.sampling.max_tokens:
            output.finish_reason = "length"
        if output.finish_reason:
            del done[index]
        return output

    def stats(self, query_id):
        model = ModelStats(
            name="m",
            running=len(self.live),
            waiting=0,
            blocks_in_use=len(self.live),
            blocks_cached=0,
            blocks_total=100,
            prompt_tokens=0,
            generated_tokens=0,
            prefix_hit_tokens=0,
            prefix_query_tokens=0,
            preemptions=0,
            step_seconds_mean=0.0,
            predicted_wait_seconds=0.0,
            knobs=self.knobs["m"],
        )
        return CoreStats(
            query_id=query_id,
            steps=self.steps,
            arena_bytes=0,
            slab_bytes=0,
            slabs_free=0,
            models=[model],
        )

    def set_knobs(self, changes, model, keep):
        self.changes = (changes, model, keep)
        if changes.get("max_num_seqs", 1) < 1:
            raise InvalidRequestError("max_num_seqs is 0; allowed is 1 and more", "max_num_seqs")
        known = {name: value for name, value in changes.items() if name in Knobs.__struct_fields__}
        self.knobs = {"m": msgspec.structs.replace(self.knobs["m"], **known)}
