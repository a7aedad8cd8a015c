"""The stateful property of cores that transfer KV blocks to each other under random load."""

from contextlib import suppress
from typing import ClassVar

import hypothesis.strategies as st
import msgspec
from core_driver import BLOCK, CoreDriver
from core_machine import MAX_CONTEXT, CoreMachine, prompts
from hypothesis.stateful import rule

from inference_core.errors import KVTransferError, QueueFullError
from inference_core.kv_cache.layout import KVDtype
from inference_core.protocol import Knobs
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame, TransferredBlock


def damaged(frame: BlockFrame, damage: str | None) -> BlockFrame:
    if damage == "content" and frame.blocks:
        last = frame.blocks[-1]
        content = bytes([last.content[0] ^ 1]) + last.content[1:] if last.content else b"more"
        flipped = TransferredBlock(last.digest, last.checksum, content)
        return msgspec.structs.replace(frame, blocks=[*frame.blocks[:-1], flipped])
    if damage == "tenant":
        return msgspec.structs.replace(frame, parent=b"another's")
    if damage == "kind":
        return msgspec.structs.replace(frame, kv=msgspec.structs.replace(frame.kv, weights="others"))
    return frame


class KVTransferMachine(CoreMachine):
    """Prompts are computed for other cores, and blocks of theirs arrive, whole or damaged."""

    models: ClassVar = {"a": 1, "b": 2}
    fewest_slabs = 2

    @rule(
        model=st.integers(0, 9),
        prompt=prompts,
        salt=st.sampled_from(["", "tenant"]),
        first=st.sampled_from([0, 0, 0, 1, 2]),
        most_bytes=st.sampled_from([0, 300, 1 << 20]),
        damage=st.sampled_from([None, None, None, "content", "tenant", "kind"]),
        kv_dtype=st.sampled_from(["float32", "bfloat16"]),
    )
    def receive_blocks(
        self,
        model: int,
        prompt: list[int],
        salt: str,
        first: int,
        most_bytes: int,
        damage: str | None,
        kv_dtype: KVDtype,
    ) -> None:
        """Another core hands over some blocks of a prompt: all of them are cached, or none and a reason is given."""
        name = sorted(self.models)[model % len(self.models)]
        chain = BlockChain(model=name, token_ids=prompt, salt=salt)
        alike = kv_dtype == self.driver.runners[name].layout.dtype
        source = CoreDriver(
            {name: self.models[name]},
            knobs=Knobs(kv_dtype=kv_dtype),
            max_context=MAX_CONTEXT,
            check=False,
            windows=self.windows,
        )
        if len(prompt) > BLOCK:
            source.add(prompt, name, salt=salt, prefill=True)
            source.drain()
        try:
            frame = source.core.export_blocks(chain, first, most_bytes)
        except KVTransferError:
            assert first > (len(prompt) - 1) // BLOCK
            return
        before = self.driver.core.import_blocks(chain, None)
        held, reason = before, ""
        try:
            held = self.driver.take(chain, damaged(frame, damage))
        except KVTransferError as error:
            reason = error.reason
        if reason:
            assert damage is not None or not alike or reason in ("missing", "full", "refused")
            assert self.driver.core.import_blocks(chain, None) <= before
        else:
            assert alike
            assert damage is None or (damage == "content" and not frame.blocks)
            # Part of a chain without the blocks that its end sees through a window cannot be continued.
            assert name in self.windows or held >= first + len(frame.blocks)

    @rule(model=st.integers(0, 9), prompt=prompts, salt=st.sampled_from(["", "tenant"]))
    def prefill(self, model: int, prompt: list[int], salt: str) -> None:
        """A prompt is computed for another core; nothing is drawn."""
        name = sorted(self.models)[model % len(self.models)]
        if self.driver.core.knobs[name].prefix_caching and len(prompt) > BLOCK:
            with suppress(QueueFullError):
                self.driver.add(prompt, name, salt=salt, prefill=True)
