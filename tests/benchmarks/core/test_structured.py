"""What a grammar costs, measured on a core whose model is a hash."""

from benchmarks.core.structured import StructuredOptions, structured_cost
from inference_core.core import Core
from inference_core.transport.core_thread import ThreadCoreClient
from tests.inference_core.grammar.byte_vocabulary import EOS, SIZE, ByteVocabulary
from tests.inference_core.hash_model import HashModelRunner


class ByteTokenizer(ByteVocabulary):
    eos_token_ids = (EOS,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def byte_core() -> Core:
    memory = bytearray(64 * 8192)
    runner = HashModelRunner("m", memory, 8192, vocab_size=SIZE)
    return Core(
        {"m": runner}, arena_bytes=len(memory), slab_bytes=8192, vocabulary_of=lambda _: ByteVocabulary(), seed=0
    )


async def test_both_sides_of_every_round_are_measured_and_forced_tokens_save_steps() -> None:
    client = ThreadCoreClient(byte_core)
    await client.start()
    done: list[int] = []
    options = StructuredOptions(streams=2, tokens=40, prompt_words=4, rounds=2)
    cost = await structured_cost(client, ByteTokenizer(), "m", options, lambda now, total: done.append(now))  # type: ignore[arg-type]
    await client.close()
    assert done == [0, 1, 2]
    assert cost.ratio is not None
    assert cost.structured_steps < cost.free_steps
    assert cost.mask_microseconds > 0
