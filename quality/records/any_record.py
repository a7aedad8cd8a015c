"""`Recorded`: any request as the ledger keeps it, an answer by a tier or anything else, distinguished by `api`."""

import msgspec

from quality.records.embedding_record import EmbeddingRecord
from quality.records.record import Record

Recorded = Record | EmbeddingRecord


ANSWERS = ("chat", "completion")


class _Kind(msgspec.Struct):
    api: str


_kind = msgspec.msgpack.Decoder(_Kind)
_answer = msgspec.msgpack.Decoder(Record)
_embedding = msgspec.msgpack.Decoder(EmbeddingRecord)

encoded = msgspec.msgpack.Encoder().encode


def decoded(payload: bytes) -> Recorded:
    """Decode what `encoded` returned. Raises `msgspec.DecodeError`."""
    return (_answer if _kind.decode(payload).api in ANSWERS else _embedding).decode(payload)
