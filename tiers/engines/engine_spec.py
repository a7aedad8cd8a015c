"""An engine that AIO starts as a child process, as the catalogue gives it."""

from typing import Annotated, Literal

import msgspec

EngineKind = Literal["llama-server", "vllm", "sglang", "ollama"]
Argument = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tiers with equal specs share one process.

    `model`: a file or folder, a Hugging Face id (`org/name`, with `:QUANT` for one GGUF file of several), or a name in
    Ollama's library. `args` are added to the program's command line as they are, `env` to its environment. `revision`:
    branch, tag or commit of the Hugging Face id; the first download pins the commit. A start that takes longer than
    `start_timeout_seconds` has failed.
    """

    kind: EngineKind
    model: str
    args: tuple[Argument, ...] = ()
    env: dict[str, Argument] = {}
    revision: str = ""
    start_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 1200.0

    @property
    def answering(self) -> list[object]:
        """What decides its answers, for fingerprints: neither where it listens nor how long it may take to start."""
        return [self.kind, self.model, self.revision, self.args]
