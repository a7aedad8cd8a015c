"""A core that can be replaced by another while it serves; later commands go to the new one."""

from collections.abc import AsyncGenerator, Mapping

from inference_core.protocol import AdapterInfo, AddRequest, CoreStats, KnobsSet, KnobValue, ModelInfo, SequenceOutput
from inference_core.protocol.kv_blocks import BlockChain, BlockFrame
from inference_core.transport.client import CoreClient
from inference_core.transport.event_client import EventClient


class ReloadableCore(CoreClient):
    """Delegates to the active core, for those who ask for a core by its name: knobs, adapters, figures, embeddings.

    Tiers are built on `active` itself, since their tokeniser and their core are of one version.
    """

    def __init__(self, active: EventClient) -> None:
        self.active = active

    async def start(self) -> None:
        """See `CoreClient.start`."""
        await self.active.start()

    async def close(self) -> None:
        """See `CoreClient.close`."""
        await self.active.close()

    @property
    def gone(self) -> str | None:
        """See `CoreClient.gone`."""
        return self.active.gone

    @property
    def died(self) -> bool:
        """See `CoreClient.died`."""
        return self.active.died

    @property
    def stuck(self) -> str | None:
        """See `CoreClient.stuck`."""
        return self.active.stuck

    @property
    def models(self) -> dict[str, ModelInfo]:
        """See `CoreClient.models`."""
        return self.active.models

    def generate(self, request: AddRequest) -> AsyncGenerator[SequenceOutput, None]:
        """See `CoreClient.generate`."""
        return self.active.generate(request)

    async def export_blocks(self, chain: BlockChain, first: int, most_bytes: int) -> BlockFrame:
        """See `CoreClient.export_blocks`."""
        return await self.active.export_blocks(chain, first, most_bytes)

    async def import_blocks(self, chain: BlockChain, frame: BlockFrame | None = None) -> int:
        """See `CoreClient.import_blocks`."""
        return await self.active.import_blocks(chain, frame)

    def unread(self, request_id: str) -> list[SequenceOutput]:
        """See `CoreClient.unread`."""
        return self.active.unread(request_id)

    def abort_choice(self, request_id: str, index: int) -> None:
        """See `CoreClient.abort_choice`."""
        self.active.abort_choice(request_id, index)

    async def stats(self) -> CoreStats:
        """See `CoreClient.stats`."""
        return await self.active.stats()

    async def set_knobs(
        self, changes: Mapping[str, KnobValue], model: str | None = None, *, keep: bool = False
    ) -> KnobsSet:
        """See `CoreClient.set_knobs`."""
        return await self.active.set_knobs(changes, model, keep=keep)

    async def load_adapter(self, model: str, name: str, path: str) -> list[AdapterInfo]:
        """See `CoreClient.load_adapter`."""
        return await self.active.load_adapter(model, name, path)

    async def unload_adapter(self, model: str, name: str) -> list[AdapterInfo]:
        """See `CoreClient.unload_adapter`."""
        return await self.active.unload_adapter(model, name)
