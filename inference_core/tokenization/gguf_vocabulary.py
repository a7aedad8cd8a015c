"""Builds a tokeniser from GGUF metadata: byte-level BPE (`gpt2`), or SentencePiece BPE with byte fallback (`llama`)."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from inference_core.errors import ModelFileError
from inference_core.loaders.gguf_format.gguf_header import (
    GGUFHeader,
    StringArray,
    TokenType,
    end_of_generation_ids,
    token_types,
)
from inference_core.tokenization.chat_template import ChatTemplate
from inference_core.tokenization.control_tokens import SPM_SPACE, ControlToken, byte_fallback_token, byte_level_token
from inference_core.tokenization.token_bound import TokenBound, byte_fallback_bound, byte_level_bound, producible
from inference_core.tokenization.tokenizer import Vocabulary
from inference_core.tokenization.tokenizer_limits import require_few_added
from inference_core.tokenization.tokenizer_trial import require_bounded_template

_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SMOLLM = ("smollm", "refact", "starcoder")  # Granite's is called refact.
# Words with their capitals first, of o200k: of letters without a case both parts may have some.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORTENED}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORTENED}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_DBRX = ("dbrx", "smaug-bpe")  # OLMo 2 and Phi-4: Llama 3's words, but words are built by merges alone.
_QWEN2 = ("qwen2",)
_GPT4O = ("gpt-4o",)
_GPT2 = ("gpt-2", "gpt2", "default")
_LONGEST_PIECE = 4096
PRE_TOKENIZERS = (*_SMOLLM, *_LLAMA3, *_DBRX, *_QWEN2, *_GPT4O, *_GPT2)


class _Metadata:
    """Typed access to the `tokenizer.ggml.…` keys."""

    def __init__(self, path: Path) -> None:
        self.header = GGUFHeader(path)
        self.path = path
        self.tokens = list(self.strings("tokens"))
        self.types = token_types(self.header)
        if self.types.size == 0:
            self.types = np.full(len(self.tokens), TokenType.NORMAL, np.int32)
        if self.types.size != len(self.tokens):
            raise ModelFileError(f"{path}: {len(self.tokens)} tokens, but {self.types.size} token types")

    @cached_property
    def merges(self) -> list[str]:
        """Pairs of tokens, each as two words."""
        return list(self.strings("merges"))

    def strings(self, key: str) -> StringArray:
        value = self.header.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, StringArray):
            raise ModelFileError(f"{self.path} lacks the list 'tokenizer.ggml.{key}'")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.header.metadata.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, str) else default

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.header.metadata.get(f"tokenizer.ggml.{key}", default))

    def token_id(self, name: str) -> int | None:
        value = self.header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def of_type(self, *types: TokenType) -> list[int]:
        return [int(i) for i in np.flatnonzero(np.isin(self.types, types))]


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Raises ModelFileError for tokenisers that cannot be reproduced exactly."""
    metadata = _Metadata(path)
    model = metadata.text("model", "")
    if model == "gpt2":
        backend, to_bytes = _byte_level(metadata), byte_level_token
        add_bos = metadata.flag("add_bos_token", metadata.text("pre", "default") in _LLAMA3)
    elif model == "llama":
        backend, to_bytes = _sentencepiece(metadata), byte_fallback_token
        add_bos = metadata.flag("add_bos_token", True)
    else:
        raise ModelFileError(f"{path}: tokeniser '{model}' is not supported; supported are gpt2 and llama")
    controls = metadata.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    literals = metadata.of_type(TokenType.USER_DEFINED)
    tokens = metadata.tokens
    require_few_added(path, (tokens[i] for i in (*controls, *literals)), (tokens[i] for i in controls))
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in controls])
    backend.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in literals])
    bos = metadata.token_id("bos")
    if add_bos and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return Vocabulary(
        backend=backend,
        continued=backend,
        controls=[ControlToken(tokens[i], i) for i in controls],
        literals=[ControlToken(tokens[i], i) for i in literals],
        to_bytes=to_bytes,
        chat_template=_chat_template(metadata),
        bos_token_id=bos,
        eos_token_ids=end_of_generation_ids(metadata.header),
        bound=_bound(metadata, controls, literals),
    )


def _bound(metadata: _Metadata, controls: list[int], literals: list[int]) -> TokenBound | None:
    texts = [metadata.tokens[index] for index in literals]
    apart = {metadata.tokens[index] for index in controls}
    if metadata.text("model", "") == "llama":
        return byte_fallback_bound(producible(metadata.tokens, apart, []), texts)
    kind = metadata.text("pre", "default")
    merged = metadata.tokens if kind in _LLAMA3 else (merge.replace(" ", "") for merge in metadata.merges)
    return byte_level_bound(producible(metadata.tokens, apart, merged), texts, composed=kind in _QWEN2)


def _byte_level(metadata: _Metadata) -> Tokenizer:
    kind = metadata.text("pre", "default")
    if kind not in PRE_TOKENIZERS:
        raise ModelFileError(
            f"{metadata.path}: pre-tokeniser '{kind}' is not supported; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    pairs = [merge.partition(" ") for merge in metadata.merges]
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = _backend(metadata, merges, ignore_merges=kind in _LLAMA3)
    if kind in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(kind)
    return tokenizer


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokeniser, as in the models' own tokenizer.json."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind in _GPT2:
        return words
    if kind in _SMOLLM:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    digits = 3 if kind in (*_LLAMA3, *_DBRX) else 1
    pattern = _GPT4O_SPLIT if kind in _GPT4O else _GPT4_SPLIT % digits
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentencepiece(metadata: _Metadata) -> Tokenizer:
    """SentencePiece merges the adjacent pieces whose union has the best score; BPE the pair of the best rank."""
    if metadata.flag("remove_extra_whitespaces", False):
        raise ModelFileError(f"{metadata.path}: tokenisers that drop extra white space are not supported")
    scores = metadata.header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.size != len(metadata.tokens):
        raise ModelFileError(f"{metadata.path}: 'tokenizer.ggml.scores' must hold {len(metadata.tokens)} numbers")
    bytes_known = {metadata.tokens[i].upper() for i in metadata.of_type(TokenType.BYTE)}
    if len(bytes_known) != 256:
        raise ModelFileError(f"{metadata.path}: byte fallback needs 256 byte tokens, the file has {len(bytes_known)}")
    unknown = metadata.of_type(TokenType.UNKNOWN)
    tokenizer = _backend(
        metadata,
        list(_merges_by_score(metadata, scores.tolist())),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=metadata.tokens[unknown[0]] if unknown else None,
    )
    prefix = [normalizers.Prepend(SPM_SPACE)] if metadata.flag("add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPM_SPACE)])
    return tokenizer


def _merges_by_score(metadata: _Metadata, scores: list[float]) -> Iterator[tuple[str, str]]:
    """Every merge of two pieces into a third, by descending score of the third, then by the longest left part, as in
    transformers. Only normal pieces result from merges.
    """
    normal = metadata.of_type(TokenType.NORMAL)
    longest = max((len(metadata.tokens[i]) for i in normal), default=0)
    if longest > _LONGEST_PIECE:  # All splits of a piece are tried.
        raise ModelFileError(
            f"{metadata.path}: a token of {longest} characters; at most {_LONGEST_PIECE} are supported"
        )
    pieces = {metadata.tokens[i] for i in normal}
    for index in sorted(normal, key=lambda i: (-scores[i], i)):
        piece = metadata.tokens[index]
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges = [pair for pair in splits if pieces.issuperset(pair)]
        yield from reversed(merges)


def _backend(metadata: _Metadata, merges: list[tuple[str, str]], **options: object) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(metadata.tokens)}
    if len(vocabulary) != len(metadata.tokens):
        raise ModelFileError(
            f"{metadata.path}: {len(metadata.tokens) - len(vocabulary)} tokens occur twice in the vocabulary"
        )
    try:
        return Tokenizer(BPE(vocabulary, merges, **options))
    except Exception as error:  # The library raises plain Exception.
        raise ModelFileError(f"{metadata.path}: the vocabulary and its merges do not fit together: {error}") from error


def _chat_template(metadata: _Metadata) -> ChatTemplate | None:
    source = metadata.header.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    token_ids = {name: metadata.token_id(key) for name, key in ids.items()}
    special = {f"{name}_token": metadata.tokens[i] for name, i in token_ids.items() if i is not None}
    require_bounded_template(source, special)
    return ChatTemplate(source, special)
