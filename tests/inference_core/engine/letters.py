"""A vocabulary of fifty tokens for hash models, and grammars over it that are compiled once."""

from concurrent.futures import Future

from inference_core.engine.core import Core
from inference_core.grammar.compiler import GrammarCompiler, trie_of
from inference_core.grammar.vocabulary import marked_tokens
from inference_core.protocol import Grammar, ModelInfo
from inference_core.step_plan import Matcher, MatcherFactory

SIZE = 50
EOS = SIZE - 1
_TOKENS = [*(bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz0123456789"), b"an", b"ana", b"ap", b"ple", b"12", b"ab"]
# One with long stretches that leave no choice, one with many choices and an end that may come at once or late.
GRAMMARS = (
    Grammar(kind="choice", text='["banana", "band", "apple12", "apple34567890"]'),
    Grammar(kind="regex", text="[a-d]{2,5}(x[0-9]+)?"),
)


class Letters:
    """A vocabulary of letters, digits and some longer pieces; the rest are control tokens, the last one is EOS."""

    vocab_size = SIZE

    def token_bytes(self, token_id: int) -> bytes:
        return _TOKENS[token_id] if token_id < len(_TOKENS) else f"<|{token_id}|>".encode()

    def is_control(self, token_id: int) -> bool:
        return token_id >= len(_TOKENS)

    def encode_continued(self, text: str) -> list[int]:
        """The longest token first, always."""
        rest, ids = text.encode(), []
        while rest:
            longest = max((t for t in _TOKENS if rest.startswith(t)), key=len)
            ids.append(_TOKENS.index(longest))
            rest = rest[len(longest) :]
        return ids


_COMPILER = GrammarCompiler(trie_of(marked_tokens(Letters(), SIZE), [EOS], Letters().encode_continued))
_MATCHERS = {grammar: _COMPILER.compile(grammar) for grammar in GRAMMARS}


class _KnownGrammars:
    """Stands for the processes of a core's grammars: all are compiled, here."""

    has_processes = True

    def compile(self, info: ModelInfo, grammar: Grammar, tenant: str) -> "Future[MatcherFactory]":
        future: Future[MatcherFactory] = Future()
        future.set_result(_MATCHERS[grammar])
        return future

    def bound_memory(self) -> None:
        pass


def know_grammars(core: Core) -> None:
    """Let the models of `core` find the grammars compiled, so that nothing depends on how long that takes."""
    core._grammars._workers = _KnownGrammars()  # type: ignore[assignment]


def matcher_of(grammar: Grammar | None) -> Matcher | None:
    """A matcher before the first token."""
    return None if grammar is None else _MATCHERS[grammar]()
