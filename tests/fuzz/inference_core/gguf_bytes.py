"""GGUF files written field by field, so that any field can be made wrong; no library checks them."""

import struct
from dataclasses import dataclass, field, replace
from random import Random

from gguf.constants import GGUFValueType

from inference_core.loaders.block_formats import BLOCK_DTYPES

_FORMATS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<B",
}
_KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}


@dataclass(frozen=True)
class Row:
    """One tensor of the directory: GGUF dimensions (fastest first), GGML kind, offset in the data."""

    name: str
    dimensions: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class GGUFBytes:
    """All fields of a file; `values` are keys with (value type, encoded payload)."""

    values: dict[str, tuple[int, bytes]]
    rows: tuple[Row, ...]
    data: bytes
    version: int = 3
    tensor_count: int | None = None
    value_count: int | None = None
    extra: bytes = field(default=b"")

    def encoded(self) -> bytes:
        header = b"GGUF" + struct.pack(
            "<IQQ",
            self.version,
            len(self.rows) if self.tensor_count is None else self.tensor_count,
            len(self.values) if self.value_count is None else self.value_count,
        )
        for key, (kind, payload) in self.values.items():
            header += string(key) + struct.pack("<I", kind) + payload
        for row in self.rows:
            header += string(row.name) + struct.pack("<I", len(row.dimensions))
            header += struct.pack(f"<{len(row.dimensions)}Q", *row.dimensions)
            header += struct.pack("<IQ", row.kind, row.offset)
        return header + bytes(-len(header) % 32) + self.data + self.extra


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: GGUFValueType, value: float) -> tuple[int, bytes]:
    return int(kind), struct.pack(_FORMATS[kind], value)


def strings(texts: list[bytes]) -> tuple[int, bytes]:
    head = struct.pack("<IQ", int(GGUFValueType.STRING), len(texts))
    return int(GGUFValueType.ARRAY), head + b"".join(string(text) for text in texts)


def numbers(kind: GGUFValueType, values: list[float]) -> tuple[int, bytes]:
    body = b"".join(struct.pack(_FORMATS[kind], value) for value in values)
    return int(GGUFValueType.ARRAY), struct.pack("<IQ", int(kind), len(values)) + body


def intact(matrix_kind: str = "Q4_1") -> GGUFBytes:
    """A tiny Llama with its tokeniser: hidden 64, one layer, four heads over two KV heads of 16, 40 tokens."""
    values: dict[str, tuple[int, bytes]] = {
        "general.architecture": (int(GGUFValueType.STRING), string("llama")),
        "llama.attention.layer_norm_rms_epsilon": scalar(GGUFValueType.FLOAT32, 1e-5),
        "llama.rope.freq_base": scalar(GGUFValueType.FLOAT32, 1e4),
        "tokenizer.ggml.model": (int(GGUFValueType.STRING), string("gpt2")),
        "tokenizer.ggml.tokens": strings([bytes([letter]) for letter in range(65, 65 + 38)] + [b"AB", b"<|im_end|>"]),
        "tokenizer.ggml.token_type": numbers(GGUFValueType.INT32, [1] * 39 + [3]),
        "tokenizer.ggml.merges": strings([b"A B"]),
        "tokenizer.ggml.eos_token_id": scalar(GGUFValueType.UINT32, 39),
        "tokenizer.chat_template": (
            int(GGUFValueType.STRING),
            string("{% for m in messages %}{{ m['content'] }}{% endfor %}"),
        ),
    }
    counts = {"block_count": 1, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96}
    counts |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    values |= {f"llama.{key}": scalar(GGUFValueType.UINT32, value) for key, value in counts.items()}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (64, 40), "output_norm": (64,)}
    parts = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (64, 32), "attn_v": (64, 32), "attn_output": (64, 64)}
    parts |= {"ffn_norm": (64,), "ffn_gate": (64, 96), "ffn_up": (64, 96), "ffn_down": (96, 64)}
    shapes |= {f"blk.0.{part}": shape for part, shape in parts.items()}
    rows, data = [], b""
    for name, shape in shapes.items():
        kind = matrix_kind if len(shape) == 2 else "F32"
        rows.append(Row(f"{name}.weight", shape, _KINDS[kind], len(data)))
        data += tensor_bytes(kind, shape)
    return GGUFBytes(values, tuple(rows), data)


def tensor_bytes(kind: str, shape: tuple[int, ...]) -> bytes:
    """Plausible content, padded to 32 bytes: small scales, every code."""
    elements = 1
    for dimension in shape:
        elements *= dimension
    if kind == "F32":
        content = struct.pack("<f", 1.0) * elements
    else:
        size = BLOCK_DTYPES[kind].itemsize
        block = struct.pack("<e", 0.01) + (struct.pack("<e", -0.08) if kind == "Q4_1" else b"")
        block += bytes((37 * i) % 256 for i in range(size - len(block)))
        content = block * (elements // 32)
    return content + bytes(-len(content) % 32)


EXTRA_KEYS = [
    "general.alignment",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.rope.dimension_count",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.attention.sliding_window",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.add_bos_token",
]
_COUNTS = (0, 1, 2, 3, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 32, 2**64 - 1)
_FLOATS = (0.0, -1.0, 1e-300, 1e30, float("inf"), float("nan"))


def damaged(_: bytes, random: Random) -> bytes:
    """Return an intact file, whatever the input is, with one to three fields replaced by anything."""
    file = intact(random.choice(("Q4_0", "Q4_1", "Q8_0", "F32")))
    for _ in range(random.randint(1, 3)):
        kind = random.choice(("value", "value", "row", "row", "count", "drop", "data"))
        key, at = random.choice(list(file.values)), random.randrange(len(file.rows))
        if kind == "value":
            file = replace(file, values=file.values | {random.choice((key, random.choice(EXTRA_KEYS))): _value(random)})
        elif kind == "row":
            file = replace(file, rows=(*file.rows[:at], _row(file.rows[at], random), *file.rows[at + 1 :]))
        elif kind == "count":
            name = random.choice(("tensor_count", "value_count", "version"))
            file = replace(file, **{name: _count(random) % 2 ** (32 if name == "version" else 64)})
        elif kind == "drop":
            file = replace(file, values={name: value for name, value in file.values.items() if name != key})
        else:
            file = replace(file, data=_any_bytes(random) + file.data[random.randrange(4096) :])
    return file.encoded()


def _count(random: Random) -> int:
    return random.choice((random.choice(_COUNTS), random.choice(_COUNTS), random.randrange(2**64)))


def _any_bytes(random: Random) -> bytes:
    return random.randbytes(random.randrange(40))


def _value(random: Random) -> tuple[int, bytes]:
    """A metadata value of any type, well formed or with a lying length."""
    kind, item = (random.choice((*GGUFValueType, random.randrange(300))) for _ in range(2))
    if kind == GGUFValueType.STRING:
        text = _any_bytes(random)
        return int(kind), random.choice((string(text), struct.pack("<Q", _count(random)) + text))
    if kind == GGUFValueType.ARRAY:
        texts = b"".join(string(_any_bytes(random)) for _ in range(random.randrange(5)))
        length = random.choice((_count(random), random.randrange(9)))
        return int(kind), struct.pack("<IQ", int(item), length) + random.choice((texts, _any_bytes(random)))
    form = _FORMATS.get(kind, "<Q")  # type: ignore[call-overload]
    if form in ("<f", "<d"):
        return int(kind), struct.pack(form, random.choice(_FLOATS))
    size = struct.calcsize(form)
    return int(kind), (random.choice((_count(random), -1, 7, 64)) % 2 ** (8 * size)).to_bytes(size, "little")


def _row(row: Row, random: Random) -> Row:
    return random.choice(
        (
            replace(row, name=random.choice(("", "a", "output.weight", "rope_freqs.weight"))),
            replace(row, dimensions=tuple(_count(random) for _ in range(random.randrange(7)))),
            replace(row, kind=random.choice((random.randrange(65), random.randrange(2**32)))),
            replace(row, offset=random.choice((_count(random), random.randrange(20_000)))),
        )
    )
