"""Models of real shapes with random weights, to measure speed and memory without a download.

Their output is noise. Catalogues cannot name them, so they are never served.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inference_core.errors import ModelFileError
from inference_core.loaders.checkpoint import Checkpoint
from inference_core.loaders.decoder_tensors import SHAPES as SHAPES
from inference_core.loaders.decoder_tensors import Shape, decoder_tensors
from inference_core.loaders.packed_tensor import BLOCK_DTYPES, PackedTensor, row_bytes
from inference_core.model_config import ModelConfig

RandomKind = Literal["Q4_0", "Q8_0", "BF16"]


class RandomCheckpoint(Checkpoint):
    """`config` with every matrix of `kind`; the same `seed` gives the same numbers, made on access.

    Weights have a standard deviation of about 1 / sqrt(inputs), so that activations keep their size from layer to
    layer; norms are ones, biases zeros.
    """

    def __init__(self, config: ModelConfig, kind: RandomKind, seed: int = 0) -> None:
        super().__init__(Path(f"random-{kind}-{seed}"), None)
        self._config = config
        self._kind = kind
        self._seed = seed

    @property
    def config(self) -> ModelConfig:
        return self._config

    @cached_property
    def tensors(self) -> Mapping[str, PackedTensor]:
        return {name: self._tensor(name, shape) for name, shape in decoder_tensors(self._config).items()}

    @cached_property
    def fingerprint(self) -> str:
        identity = msgspec.json.encode((self._config, self._kind, self._seed))
        return blake2b(identity, digest_size=16, person=b"aio-random").hexdigest()

    def _tensor(self, name: str, shape: Shape) -> PackedTensor:
        if len(shape) == 1:
            fill = 0.0 if name.endswith("bias") else 1.0
            return PackedTensor("F32", shape, np.full(shape, fill, np.float32))
        return PackedTensor(self._kind, shape, self._maker(name, shape))

    def _maker(self, name: str, shape: Shape) -> Callable[[], NDArray[Any]]:
        rows, columns = shape
        if row_bytes(self._kind, columns) is None:
            raise ModelFileError(f"{name}: rows of {columns} weights are no whole number of {self._kind} blocks")
        seed = [self._seed, zlib.crc32(name.encode())]
        make = _bfloat16 if self._kind == "BF16" else _blocks
        return lambda: make(np.random.default_rng(seed), self._kind, rows, columns)


def _blocks(rng: np.random.Generator, kind: RandomKind, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random uniform codes, with one scale for all blocks."""
    layout = BLOCK_DTYPES[kind]
    blocks = np.frombuffer(bytearray(rng.bytes(rows * columns // 32 * layout.itemsize)), layout)
    spread = 16.0 if kind == "Q4_0" else 256.0
    blocks["d"] = np.sqrt(12.0 / columns) / spread
    return blocks.view(np.uint8).reshape(rows, -1)


def _bfloat16(rng: np.random.Generator, _: RandomKind, rows: int, columns: int) -> NDArray[np.uint16]:
    """Random signs and mantissas with one exponent: magnitudes uniform over [m, 2 m), m about 0.65 / sqrt(K)."""
    bits = np.frombuffer(bytearray(rng.bytes(2 * rows * columns)), np.uint16)
    exponent = 127 + int(np.floor(np.log2(0.65 / np.sqrt(columns)) + 0.5))
    bits &= np.uint16(0x807F)
    bits |= np.uint16(exponent << 7)
    return bits.reshape(rows, columns)
