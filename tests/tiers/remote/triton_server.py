"""A small server that speaks Triton's documented protocol: readiness, metadata, generate, generate_stream and infer."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.upstream import Call

Fields = dict[str, Any]


INPUTS = (
    "text_input", "max_tokens", "bad_words", "stop_words", "stream", "exclude_input_in_output", "top_k", "top_p",
    "temperature", "seed", "sampling_parameters", "return_finish_reason", "return_num_input_tokens",
    "return_num_output_tokens",
)  # fmt: skip


def _tensor(name: str) -> Fields:
    return {"name": name, "datatype": "BYTES", "shape": [-1, 1]}


@dataclass
class Triton:
    """One model, which says `pieces` one event each. `cumulative`: each event repeats what came before.

    `inputs` and `outputs` are its tensors. `vllm`: the model is of the vLLM backend, which tells why it ended.
    `fails_after`: so many events, then an error.
    """

    pieces: list[str]
    vllm: bool = False
    cumulative: bool = False
    fails_after: int | None = None
    model: str = "upstream"
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = ("text_output", "num_input_tokens", "num_output_tokens", "finish_reason")
    asked: list[Fields] = field(default_factory=list)

    async def look(self, call: Call) -> None:
        """Readiness, and the metadata of the model."""
        if call.path == "/v2/health/ready":
            await call.reply(200, {})
        elif call.path == f"/v2/models/{self.model}":
            told = {"name": self.model, "versions": ["1"], "platform": "ensemble"}
            told |= {"inputs": [_tensor(name) for name in self.inputs]}
            await call.reply(200, told | {"outputs": [_tensor(name) for name in self.outputs]})
        else:
            await call.reply(400, {"error": f"Request for unknown model: '{call.path.split('/')[3]}' is not found"})

    async def answer(self, call: Call) -> None:
        path = call.path.removeprefix(f"/v2/models/{self.model}/")
        if path == "generate_stream":
            await self._stream(call)
        elif path == "generate":
            self.asked.append(call.body)
            await call.reply(200, self._said("".join(self.pieces), len(self.pieces), last=True))
        elif path == "infer":
            self.asked.append({tensor["name"]: tensor["data"] for tensor in call.body["inputs"]})
            await call.reply(200, self._inferred(call.body))
        else:
            # As the server does for a model that it does not have.
            await call.reply(400, {"error": f"Request for unknown model: '{call.path.split('/')[3]}' is not found"})

    async def _stream(self, call: Call) -> None:
        self.asked.append(call.body)
        await call.begin_chunked()
        for number, piece in enumerate(self.pieces):
            if number == self.fails_after:
                await call.chunked_event({"error": "CUDA out of memory"})
                break
            text = "".join(self.pieces[: number + 1]) if self.cumulative else piece
            await call.chunked_event(self._said(text, 1, last=number == len(self.pieces) - 1))
        await call.end_chunked()

    def _said(self, text: str, tokens: int, *, last: bool) -> Fields:
        said: Fields = {"model_name": self.model, "model_version": "1", "text_output": text}
        said |= {"num_input_tokens": 7, "num_output_tokens": tokens}
        if self.vllm:
            said["finish_reason"] = "stop" if last else "None"
        return said

    def _inferred(self, body: Fields) -> Fields:
        wanted = [output["name"] for output in body["outputs"]]
        said = self._said("".join(self.pieces), len(self.pieces), last=True)
        kinds = {"text_output": "BYTES", "num_input_tokens": "INT32", "num_output_tokens": "INT32"}
        outputs = [{"name": n, "datatype": kinds[n], "shape": [1, 1], "data": [said[n]]} for n in wanted]
        return {"model_name": self.model, "model_version": "1", "outputs": outputs}
