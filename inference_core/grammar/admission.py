"""Holds requests whose grammar is being compiled, so that no step waits for it."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from inference_core.errors import InvalidRequestError
from inference_core.grammar.vocabulary import Vocabulary
from inference_core.grammar.workers import GrammarWorkers
from inference_core.loaders.model_path import resolve_model_path
from inference_core.protocol import AddRequest, Grammar, ModelInfo
from inference_core.step_plan import MatcherFactory


@dataclass(slots=True)
class Compiled:
    """A request that can be admitted: the result of `matchers` makes a matcher per choice, or raises `CoreError`.

    `aborted`: choices that were aborted meanwhile.
    """

    request: AddRequest
    matchers: Future[MatcherFactory]
    aborted: list[int] = field(default_factory=list)


class GrammarAdmission:
    """Holds a core's requests until their grammars are compiled; the requests' salts identify tenants.

    `vocabulary_of` returns a model's tokens; it is called on a separate thread, once per model. `eos_token_ids` by
    model.
    """

    def __init__(
        self, vocabulary_of: Callable[[ModelInfo], Vocabulary], eos_token_ids: dict[str, tuple[int, ...]]
    ) -> None:
        self._workers = GrammarWorkers(vocabulary_of, eos_token_ids)
        self._waiting: dict[str, Compiled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: AddRequest, info: ModelInfo, grammar: Grammar) -> None:
        """Hold a request until its grammar is compiled; with a known grammar it is ready at once.

        Raises the errors of `GrammarWorkers.compile`.
        """
        ready = self._workers.compile(info, grammar, request.salt)
        self._waiting[request.request_id] = Compiled(request, ready)

    def take(self, patience: float = 0.0) -> list[Compiled]:
        """Remove and return requests whose grammar has compiled or failed, in order of arrival; wait up to `patience`
        seconds for one."""
        self._workers.bound_memory()
        if not self._waiting:
            return []
        if patience > 0:
            wait([c.matchers for c in self._waiting.values()], patience, FIRST_COMPLETED)
        ready = [c for c in self._waiting.values() if c.matchers.done()]
        for compiled in ready:
            del self._waiting[compiled.request.request_id]
        return ready

    def abort(self, request_id: str, index: int | None) -> None:
        """Drop a request that is not admitted yet, or record that a choice of it is aborted."""
        if index is not None:
            self._waiting[request_id].aborted.append(index)
        else:
            self._workers.cancel(self._waiting.pop(request_id).matchers)

    def close(self) -> None:
        """Stop compiling and end all grammar processes, without waiting."""
        self._waiting.clear()
        self._workers.close()


def vocabulary_of_file(info: ModelInfo) -> Vocabulary:
    """Load a model's tokeniser. Raises `ModelFileError`, and `InvalidRequestError` if the model has none."""
    if not info.model_path:
        raise InvalidRequestError(f"{info.name} has no tokeniser, so it follows no grammars", "response_format")
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    return load_tokenizer(resolve_model_path(info.model_path))
