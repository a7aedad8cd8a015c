"""Detokenise one choice: whole characters, stop strings, log-probabilities of texts instead of token ids."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import NamedTuple

from inference_core.protocol import SequenceOutput, TokenLogprob
from inference_core.protocol.commands import Evidence, TokenEvidence
from inference_core.tokenization.tokenizer import IncrementalDetokenizer, StopStrings, Tokenizer
from tiers.tier import Delta, FinishReason, TextLogprob


def text_logprob(tokenizer: Tokenizer, logprob: TokenLogprob, start: int) -> TextLogprob:
    """Return one token as text; its text starts `start` characters into that of its choice."""
    drawn = tokenizer.token_bytes(logprob.token_id)
    tops = [(tokenizer.token_bytes(token), value) for token, value in logprob.top]
    return TextLogprob(
        token=_text(drawn),
        token_bytes=drawn,
        logprob=logprob.logprob,
        top=[(_text(token), token, value) for token, value in tops],
        start=start,
    )


def prompt_text_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], scores: Sequence[TokenLogprob]
) -> list[TextLogprob]:
    """Return a prompt's tokens, with `scores` of all but the first, which has no predecessor."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    first = tokenizer.token_bytes(token_ids[0])
    logprobs = [TextLogprob(token=_text(first), token_bytes=first, logprob=None, top=[], start=0)]
    start = len(detokenizer.push_one(token_ids[0]))
    for token_id, score in zip(token_ids[1:], scores, strict=True):
        logprobs.append(text_logprob(tokenizer, score, start))
        start += len(detokenizer.push_one(token_id))
    return logprobs


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


class _Token(NamedTuple):
    """A drawn token and the offset, in characters of the choice's text, where its contribution starts."""

    token_id: int
    logprob: TokenLogprob | None
    start: int
    evidence: TokenEvidence | None = None


class ChoiceDetokenizer:
    """Turns a choice's `SequenceOutput`s into `Delta`s.

    A token is emitted with the first text that it contributes to. Text from a stop string on is dropped, and so are the
    tokens that contributed only to it; a token across the border is kept. With `include_stop` the text of the stop
    string, or of the stop token, is kept. The first `min_tokens` tokens cannot match a stop string. `visible` control
    tokens appear as the texts given for them. `stop_kind`: where stop strings count.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        include_stop: bool = False,
        min_tokens: int = 0,
        visible: Mapping[int, str] = MappingProxyType({}),
        stop_kind: type[StopStrings] = StopStrings,
    ) -> None:
        self.completion_tokens = 0
        self.index = index
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, visible)
        self._stop = stop_kind(stop, include=include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens if stop else 0
        self._tokens: list[_Token] = []
        self._seen = 0
        self._finished = False
        self._matched: str | None = None
        self._sent = 0

    @property
    def finished(self) -> bool:
        """Whether the choice has ended."""
        return self._finished

    def leave(self) -> None:
        """Discard all further output: the consumer left."""
        self._finished = True

    def push(self, output: SequenceOutput) -> list[Delta]:
        """Return the text that `output` makes certain, and the end; nothing for output after a stop string."""
        if self._finished:
            return []
        bare = output.logprobs is None and output.evidence is None
        if bare and output.finish_reason is None and len(output.token_ids) == 1:
            piece = self._detokenizer.push_one(output.token_ids[0])
            if self._stop.passes(piece) and self.completion_tokens >= self._min_tokens:
                return self._pass_on(output.token_ids, piece)
            text, stopped = self._take_token(output.token_ids[0], None, None, piece)
        else:
            text, stopped = self._take_tokens(output)
        if self._include_stop and not stopped and output.stop_token_id is not None:
            ending, stopped = self._take_text(self._detokenizer.push_one(output.stop_token_id))
            text += ending
        if not stopped and output.finish_reason is not None:
            tail, stopped = self._take_text(self._detokenizer.flush())
            text += tail if stopped else tail + self._stop.flush()
        self._finished = stopped or output.finish_reason is not None
        self._sent += len(text)
        deltas: list[Delta] = []
        tokens = self._release(everything=self._finished and not stopped)
        if text or tokens:
            logprobs = [text_logprob(self._tokenizer, t.logprob, t.start) for t in tokens if t.logprob is not None]
            ids = [t.token_id for t in tokens]
            told = [t.evidence for t in tokens if t.evidence is not None]
            evidence = Evidence(tokens=told) if told else None
            deltas.append(
                Delta(index=self.index, text=text, token_ids=ids, logprobs=logprobs or None, evidence=evidence)
            )
        if self._finished:
            reason: FinishReason = "length" if output.finish_reason == "length" and not stopped else "stop"
            deltas.append(Delta(index=self.index, finish_reason=reason, stop_sequence=self._matched))
        return deltas

    def _pass_on(self, token_ids: list[int], text: str) -> list[Delta]:
        """Fast path of `push` for the usual single token without a partial stop string in its text."""
        self.completion_tokens += 1
        if not text:
            self._tokens.append(_Token(token_ids[0], None, self._seen))
            return []
        if self._tokens:
            token_ids = [*(token.token_id for token in self._tokens), *token_ids]
            self._tokens.clear()
        self._seen += len(text)
        self._sent = self._seen
        return [Delta(index=self.index, text=text, token_ids=token_ids)]

    def _take_tokens(self, output: SequenceOutput) -> tuple[str, bool]:
        text, stopped = "", False
        told = output.evidence.tokens if output.evidence is not None else []
        for token_id, logprob, evidence in zip_longest(output.token_ids, output.logprobs or [], told):
            emitted, stopped = self._take_token(token_id, logprob, evidence, self._detokenizer.push_one(token_id))
            text += emitted
            if stopped:
                break
        return text, stopped

    def _take_token(
        self, token_id: int, logprob: TokenLogprob | None, evidence: TokenEvidence | None, piece: str
    ) -> tuple[str, bool]:
        self._tokens.append(_Token(token_id, logprob, self._seen, evidence))
        self.completion_tokens += 1
        return self._take_text(piece)

    def _take_text(self, piece: str) -> tuple[str, bool]:
        self._seen += len(piece)
        if not piece or self.completion_tokens <= self._min_tokens:
            self._stop.skip(piece)
            return piece, False
        emitted, self._matched = self._stop.push(piece)
        return emitted, self._matched is not None

    def _release(self, *, everything: bool) -> list[_Token]:
        count = len(self._tokens)
        if not everything:
            count = next((i for i, t in enumerate(self._tokens) if t.start >= self._sent), count)
        released, self._tokens = self._tokens[:count], self._tokens[count:]
        return released
