"""What all tables share: their `metadata`, and the types of columns that databases do not agree about.

And JSON as it is stored where rows are many and alike: compressed against a dictionary of what nearly all of them say.
A packed value is a byte that names the dictionary and the code, and the compressed bytes. A dictionary never changes,
because values that were packed with it are stored; a better one is a new one. JSON that is not packed is read too: it
begins with a brace or a bracket.
"""

import threading
from typing import Any

import msgspec
import zstandard
from sqlalchemy import JSON, BigInteger, Computed, Integer, LargeBinary, MetaData, Text, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles

_ZSTD = b"\x02"
# A decision and the attempts of an ordinary request, the usual ones last, where the shortest references reach.
_DICTIONARY = (
    b'[{"tier":2,"model":"","status":"ok","cost_usd":0.000564,"max_tokens":256,"error":null,"stage":null,"p_ok'
    b'":null,"reason":null,"replicas":[],"claimed":null,"compared_as":null,"cached_tokens":0,"cache_write_toke'
    b'ns":0,"cache_write_1h_tokens":0,"added":[],"guarded":null,"target":null,"prompt_tokens":150,"completion_'
    b'tokens":38,"price":{"input_usd_per_million":3.0,"output_usd_per_million":3.0},"charged_usd":null}]{"tier'
    b'":3,"reason":"tier 2 is the only one left, with P(no worse) 0.833 (prior: this catalogue has no measured'
    b' outcomes) SIMPLE (0.94):  COMPLEX (0.44): ","scores":[0.2300,0.4412,0.7322,0.6430],"inputs":{"predictio'
    b'n":{"p_ok":[0.317135,0.617949,0.914881,1.0],"kind":"prior","novelty":1.0,"classifier_version":"v1-","con'
    b'tributions":[],"p_correct":[],"predicted_tokens":[],"classes":[0.0075,0.4294,0.4558,0.1073],"labels":[],'
    b'"good_labels":[]},"costs":[0.002352,0.004704,0.007056,0.009408],"quality_target":0.7,"tau":0.7,"objectiv'
    b'e":"utility","reference_usd":0.0245,"app":"","pinned_tier":null,"min_tier":null,"key_min_tier":null,"max'
    b'_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"most_wait_seconds":null,"previous_t'
    b'ier":2,"reuse_usd":[-0.0,0.0,-0.0,-0.0],"in_tool_loop":true,"canary":false,"experiment_id":null,"arm":nu'
    b'll,"arm_tier":null,"unit":null,"observe_tier":null,"edge":null,"constant":null,"cheapest":null,"client":'
    b'"","purpose":"main","session":{"session":"","client":"","step":5,"loop_step":1,"at":"turn","gap_seconds"'
    b':0.54,"errors":0,"repeats":0,"bad_calls":0,"last_exit":null,"end":null,"end_sign":null,"end_weight":0.0,'
    b'"end_words":"","previous":2,"raised_from":null,"floor":null,"prompt_tokens":2152,"warm":[0,0,0,0],"stron'
    b'gest_warm":0,"rest_usd":[0.14,0.28],"rest_steps":11.25,"rule":"rest","because":"the least expected cost '
    b'of the rest of the session","trouble":null,"p_bad":null},"private":null,"rules":null,"agreement":null,"f'
    b'ell_over":null},"would_be":null}{"tier":3,"reason":"MEDIUM (0.44): tier 3 is worth most, good enough wit'
    b"h P 0.91 for $0.001107, where a strongest answer (usually $0.001240) is worth 30 points of 'as good' (pr"
    b'ior: this catalogue has no measured outcomes)","scores":[0.2300,0.4412,0.7322,0.6430],"inputs":{"predict'
    b'ion":{"p_ok":[0.317135,0.617949,0.914881,1.0],"kind":"prior","novelty":1.0,"classifier_version":"v1-","c'
    b'ontributions":[],"p_correct":[],"predicted_tokens":[],"classes":[0.0075,0.4294,0.4558,0.1073],"labels":['
    b'],"good_labels":[]},"costs":[0.002352,0.004704,0.007056,0.009408],"quality_target":0.7,"tau":0.7,"object'
    b'ive":"utility","reference_usd":0.0245,"app":"","pinned_tier":null,"min_tier":null,"key_min_tier":null,"m'
    b'ax_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"most_wait_seconds":null,"previous'
    b'_tier":null,"reuse_usd":[],"in_tool_loop":false,"canary":false,"experiment_id":null,"arm":null,"arm_tier'
    b'":null,"unit":null,"observe_tier":null,"edge":null,"constant":null,"cheapest":null,"client":null,"purpos'
    b'e":null,"session":null,"private":null,"rules":null,"agreement":null,"fell_over":null},"would_be":null}'
)
# What attempts have had at their end since the dictionary was made.
_ADDED = b',"price":null,"charged_usd":null,"continued_at":null,"resumed":false}]'
# And since then: what is put before the rest leaves the references of what is stored as they are.
_LATER = b'"charged_usd":null,"extras":[],"extras_usd":0.0,"estimated":false,"continued_at":null,"resumed":false}]'
# And decisions, with the order that their fields have now: by who reads them.
_DECISIONS = (
    b'{"tier":3,"reason":"tier 2 is the only one left, with P(no worse) 0.833 (prior: this catalogue has no me'
    b'asured outcomes) SIMPLE (0.94):  COMPLEX (0.44): ","scores":[0.23,0.4412,0.7322,0.643],"inputs":{"costs"'
    b':[0.002352,0.004704,0.007056,0.009408],"pinned_tier":null,"min_tier":null,"key_min_tier":null,"max_cost_'
    b'usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"most_wait_seconds":null,"previous_tier":2'
    b',"reuse_usd":[-0.0,0.0,-0.0,-0.0],"in_tool_loop":true,"session":{"previous":2,"floor":null,"rule":"rest"'
    b',"because":"the least expected cost of the rest of the session","rest_usd":[0.14,0.28],"rest_steps":11.2'
    b'5,"client":"","loop_step":1,"at":"turn","errors":0,"repeats":0,"bad_calls":0,"last_exit":null,"end":null'
    b',"end_sign":null,"end_weight":0.0,"end_words":"","session":"","step":5,"gap_seconds":0.54,"raised_from":'
    b'null,"prompt_tokens":2152,"warm":[0,0,0,0],"strongest_warm":0,"trouble":null,"p_bad":null},"prediction":'
    b'{"p_ok":[0.317135,0.617949,0.914881,1.0],"kind":"prior","novelty":1.0,"classifier_version":"v1-","contri'
    b'butions":[],"predicted_tokens":[],"classes":[0.0075,0.4294,0.4558,0.1073],"labels":[],"good_labels":[],"'
    b'from_others":false,"material":[],"follow_up":null},"quality_target":0.7,"tau":0.7,"objective":"utility",'
    b'"reference_usd":0.0245,"experiment_id":null,"arm":null,"arm_tier":null,"edge":null,"constant":null,"chea'
    b'pest":null,"rules":null,"observe_tier":null,"app":"","canary":false,"unit":null,"client":"","purpose":"m'
    b'ain","private":null,"agreement":null,"fell_over":null},"would_be":null}{"tier":3,"reason":"MEDIUM (0.44)'
    b": tier 3 is worth most, good enough with P 0.91 for $0.001107, where a strongest answer (usually $0.0012"
    b'40) is worth 30 points of \'as good\' (prior: this catalogue has no measured outcomes)","scores":[0.23,0.4'
    b'412,0.7322,0.643],"inputs":{"costs":[0.002352,0.004704,0.007056,0.009408],"pinned_tier":null,"min_tier":'
    b'null,"key_min_tier":null,"max_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"most_w'
    b'ait_seconds":null,"previous_tier":null,"reuse_usd":[],"in_tool_loop":false,"session":null,"prediction":{'
    b'"p_ok":[0.317135,0.617949,0.914881,1.0],"kind":"prior","novelty":1.0,"classifier_version":"v1-","contrib'
    b'utions":[],"predicted_tokens":[],"classes":[0.0075,0.4294,0.4558,0.1073],"labels":[],"good_labels":[],"f'
    b'rom_others":false,"material":[],"follow_up":null},"quality_target":0.7,"tau":0.7,"objective":"utility","'
    b'reference_usd":0.0245,"experiment_id":null,"arm":null,"arm_tier":null,"edge":null,"constant":null,"cheap'
    b'est":null,"rules":null,"observe_tier":null,"app":"","canary":false,"unit":null,"client":null,"purpose":n'
    b'ull,"private":null,"agreement":null,"fell_over":null},"would_be":null}'
)
_PREFIX = zstandard.ZstdCompressionDict(
    _DECISIONS + _LATER + _DICTIONARY + _ADDED, dict_type=zstandard.DICT_TYPE_RAWCONTENT
)
_LEVEL = 3
_PREFIX.precompute_compress(level=_LEVEL)


class _Coder(threading.local):
    """Neither half may be used by two threads at once."""

    def __init__(self) -> None:
        self.pack = zstandard.ZstdCompressor(
            level=_LEVEL, dict_data=_PREFIX, write_checksum=False, write_dict_id=False
        ).compress
        self.unpack = zstandard.ZstdDecompressor(dict_data=_PREFIX).decompress


_coder = _Coder()


def pack(json: bytes) -> bytes:
    """Return the packed form of a JSON text."""
    return _ZSTD + _coder.pack(json)


def unpack(stored: bytes | str) -> bytes:
    """Return the JSON of a stored value, packed or not. Raises `ValueError` for a dictionary of another release."""
    if isinstance(stored, str):
        return stored.encode()
    if stored[:1] == _ZSTD:
        return _coder.unpack(stored[1:])
    if stored[:1] in (b"{", b"["):
        return bytes(stored)
    raise ValueError(f"a packed value begins with {stored[:1]!r}: another release wrote it, which has to read it")


def _without_nul(text: str | None) -> str | None:
    return text if text is None else text.replace("\x00", "\ufffd")


def _packed(value: Any) -> bytes | None:
    return None if value is None else pack(msgspec.json.encode(value))


class FreeText(TypeDecorator[str]):
    """Text written by people or models; U+0000, which PostgreSQL refuses, is stored as U+FFFD on every database."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """See SQLAlchemy, whose own calls three functions for each value."""
        return _without_nul


class PackedText(TypeDecorator[Any]):
    """A value stored as compressed JSON, which is read as the bytes of that JSON, for a decoder of what is needed."""

    impl = LargeBinary
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        return _packed

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else unpack(value)


class PackedJson(PackedText):
    """A value stored as compressed JSON and read as a value again."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else msgspec.json.decode(unpack(value))


class IndexedComputed(Computed):
    """A computed column that an index may hold: stored on PostgreSQL, computed by each read on SQLite."""


@compiles(IndexedComputed, "postgresql")
def _stored(computed: IndexedComputed, compiler: Any, **_: Any) -> str:
    return f"GENERATED ALWAYS AS ({compiler.sql_compiler.process(computed.sqltext, literal_binds=True)}) STORED"


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns row numbers only to a key of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")

# Python None is SQL NULL, never the JSON word null. PostgreSQL's json (not jsonb) keeps \u0000 of user texts.
Json = JSON(none_as_null=True)
