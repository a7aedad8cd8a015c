"""Places a model on devices: tensor parallel within a machine, stages across machines, replicas on the rest.

Every choice is a rule that states its reason (SPEC TI-09, PX-04, PX-06). Memory is counted per rank from the shares
that ranks load (`parallel.topology.splits`), so the plan matches the real division.
"""

from inference_core.errors import MeshError
from inference_core.kv_cache.memory_plan import GB, format_bytes
from inference_core.model_config import ModelConfig
from inference_core.parallel.mesh import Mesh, RankShare, divide
from inference_core.placement.hardware import Machines, Workload, cold_start_line
from inference_core.placement.rank_memory import (
    Decision,
    Placement,
    PlacementError,
    RankMemory,
    Rule,
    explain_ranks,
    rank_memory,
)
from inference_core.placement.weight_formats import (
    PlacedDraft,
    WeightFormat,
    model_weights,
    preferred_format,
    split_units_of,
)

LARGE_PARAMETERS = 30_000_000_000
LARGE_DEVICE_BYTES = 80 * GB
# On a link slower than 16 lanes of PCIe Gen4, two all-reduces per layer take longer than the computation.
MIN_TENSOR_LINK = 25e9
# Tokens of a step (SPEC TI-03), for the link's arithmetic.
STEP_TOKENS = 8192


def place(
    config: ModelConfig,
    machines: Machines,
    workload: Workload,
    form: WeightFormat | None = None,
    mesh: Mesh | None = None,
    draft: PlacedDraft | None = None,
) -> Placement:
    """Find the smallest mesh that holds weights and `workload`, with as many replicas as fit.

    `form` None: the device's preferred format. If given, only `mesh` is tried. `draft` is placed
    with the model.

    Raises PlacementError, whose `rule` says why there is no placement, and MeshError if the model or the machines
    cannot be divided into `mesh`.
    """
    return _Planner(config, machines, workload, form, mesh, draft).place()


class _Planner:
    def __init__(
        self,
        config: ModelConfig,
        machines: Machines,
        workload: Workload,
        form: WeightFormat | None,
        mesh: Mesh | None,
        draft: PlacedDraft | None,
    ) -> None:
        self.config = config
        self.draft = draft
        self.machines = machines
        self.device = machines.device
        self.workload = workload
        self.weights = model_weights(config)
        self.decisions: list[Decision] = []
        self.form = form or preferred_format(self.device)
        self.format_is_given = form is not None
        self.asked = mesh

    def place(self) -> Placement:
        self._check_device()
        self._say_format()
        tensor_limit = self._tensor_limit()
        tried: list[tuple[Mesh, list[RankMemory]]] = []
        for mesh in self._meshes(tensor_limit):
            ranks = self._rank_memories(mesh)
            tried.append((mesh, ranks))
            if min(rank.kv_tokens for rank in ranks) >= self.workload.tokens:
                return self._placement(mesh, ranks)
        raise self._refusal(tried)

    def _decide(self, rule: Rule, text: str) -> None:
        self.decisions.append(Decision(rule, text))

    # -- the device ----------------------------------------------------------------------------

    def _check_device(self) -> None:
        device, limit = self.device, self.workload.max_watts
        if limit is not None:
            if device.watts is None or device.watts > limit:
                taken = "an unknown power" if device.watts is None else f"{device.watts:g} W"
                self._decide("power-limit", f"{device.name} takes {taken}; {limit:g} W are allowed here")
                raise PlacementError(self.decisions)
            self._decide("power-limit", f"{device.watts:g} W of {device.name} are within the {limit:g} W allowed")
        if not device.tensor_cores:
            self._decide(
                "tensor-cores",
                f"{device.name} has no tensor cores: products of 16 bits and less, which all weights here are "
                "multiplied in, would run at a fraction of its bandwidth; take a device that has them",
            )
            raise PlacementError(self.decisions)
        if device.executable:
            self._decide("executable", f"models run on {device.name} ({device.kind})")
        else:
            self._decide(
                "unsupported", f"{device.name} ({device.kind}) can be planned for, but models do not run on it"
            )

    def _say_format(self) -> None:
        if self.format_is_given:
            self._decide("weight-format", f"{self.form.name} was asked for")
        else:
            self._decide(
                "weight-format", f"{self.form.name} is what {self.device.name} multiplies best (Q4_K on CPUs, FP8 "
                "from Hopper on, AWQ on other GPUs)",
            )  # fmt: skip
        count, size = self.weights.total, self.device.memory_bytes
        if count <= LARGE_PARAMETERS:
            return
        billions = f"{count / 1e9:.1f} billion weights are over 30 billion"
        if size >= LARGE_DEVICE_BYTES:
            self._decide(
                "over-30b", f"{billions}: devices of 80 GB or more, as these of {size / GB:g} GB, are for that"
            )
        elif self.machines.devices > 1:
            self._decide("over-30b", f"{billions} and a device has {size / GB:g} GB: several share the model")
        else:
            self._decide("over-30b", f"{billions} and there is one device of {size / GB:g} GB: few bits, or offload")

    # -- the mesh ------------------------------------------------------------------------------

    def _tensor_limit(self) -> int:
        """The most devices that may share a layer."""
        return 1 if self.device.link_bandwidth < MIN_TENSOR_LINK else self.machines.island_size

    def _traffic(self, tensor: int) -> str:
        """The link traffic of tensor parallelism, computed: a ring all-reduce moves 2 (n - 1) / n of its data."""
        layers, width = self.config.num_layers, self.config.hidden_size
        moved = 2 * layers * STEP_TOKENS * width * 2 * 2 * (tensor - 1) / tensor
        seconds = f" = {moved / self.device.link_bandwidth:.2g} s" if self.device.link_bandwidth else ""
        return (
            f"a step of {STEP_TOKENS:,} tokens sums 2 x {layers} times {width:,} numbers of 2 bytes, "
            f"{moved / 1e9:.1f} GB on each device's link{seconds}"
        )

    def _meshes(self, tensor_limit: int) -> list[Mesh]:
        """Candidate meshes, smallest first: within one island, then stages of the widest group while devices remain."""
        if self.asked is not None:
            return [self._asked_for(self.asked)]
        within = [n for n in range(1, tensor_limit + 1) if self._divides(Mesh(tensor=n))]
        meshes = [Mesh(tensor=n) for n in within]
        widest = max(within, default=1)
        stages = self.machines.islands * (self.machines.island_size // widest)
        meshes += [Mesh(tensor=widest, pipeline=p) for p in range(2, stages + 1)]
        return [mesh for mesh in meshes if self._divides(mesh)]

    def _asked_for(self, mesh: Mesh) -> Mesh:
        machines = self.machines
        if mesh.tensor > machines.island_size or mesh.size > machines.devices:
            raise MeshError(
                f"{mesh.tensor} tensor x {mesh.pipeline} pipeline ranks do not fit on {machines.devices} devices in "
                f"islands of {machines.island_size}; a tensor-parallel group stays within an island"
            )
        self._require_division(mesh)
        self._decide("asked-for", f"{mesh.tensor} tensor x {mesh.pipeline} pipeline ranks were asked for")
        return mesh

    def _divides(self, mesh: Mesh) -> bool:
        try:
            self._require_division(mesh)
        except MeshError:
            return False
        return True

    def _shares(self, mesh: Mesh) -> list[RankShare]:
        return divide(self.config, mesh, split_units_of(self.config, self.form), uneven=self.workload.uneven_splits)

    def _draft_shares(self, mesh: Mesh) -> list[RankShare]:
        return [] if self.draft is None else self.draft.shares(mesh, uneven=self.workload.uneven_splits)

    def _require_division(self, mesh: Mesh) -> None:
        """Raises MeshError if the ranks cannot divide the model and its draft."""
        self._shares(mesh)
        self._draft_shares(mesh)

    # -- memory --------------------------------------------------------------------------------

    def _rank_memories(self, mesh: Mesh) -> list[RankMemory]:
        drafts = [(self.draft, share) for share in self._draft_shares(mesh) if self.draft is not None]
        return [
            rank_memory(
                number, share, self.config, self.form, self.device, self.workload, drafts[number] if drafts else None
            )
            for number, share in enumerate(self._shares(mesh))
        ]

    # -- the outcome ---------------------------------------------------------------------------

    def _placement(self, mesh: Mesh, ranks: list[RankMemory]) -> Placement:
        self._say_mesh(mesh)
        replicas = self._replicas(mesh)
        tokens = min(rank.kv_tokens for rank in ranks)
        sequences = tokens // self.workload.length
        lines = [
            f"model: {self.weights.linear:,} weights in linear layers, {self.weights.vocabulary:,} in embedding and "
            f"head, {self.weights.vectors:,} in norms and biases = {self.weights.total / 1e9:.2f} billion",
            f"format: {self.form.name}, {self.form.bits:g} bits per linear weight ({self.form.why}): "
            f"{format_bytes(self.weights.num_bytes(self.form))} in all",
            *(f"{decision.rule}: {decision.text}" for decision in self.decisions),
            *explain_ranks(ranks),
            f"sequences: {tokens:,} tokens / {self.workload.length:,} = {sequences:,} at the same time in a replica, "
            f"{sequences * replicas:,} in all",
            *self._ceiling(mesh, ranks),
            cold_start_line(max(rank.weight_bytes + rank.draft_bytes for rank in ranks), self.device),
        ]
        return Placement(
            device=self.device.name,
            executable=self.device.executable,
            format=self.form.name,
            mesh=mesh,
            replicas=replicas,
            decisions=tuple(self.decisions),
            ranks=tuple(ranks),
            kv_tokens=tokens,
            max_sequences=sequences,
            lines=tuple(lines),
        )

    def _ceiling(self, mesh: Mesh, ranks: list[RankMemory]) -> list[str]:
        """An upper bound of the decode rate, not measured: a step reads all weights of a rank, stage after stage."""
        if self.device.bandwidth is None:
            return []
        slowest = [max(r.weight_bytes for r in ranks if r.stage == stage) for stage in range(mesh.pipeline)]
        rate = self.device.bandwidth / sum(slowest)
        return [
            f"one sequence, by bandwidth alone: {self.device.bandwidth / 1e9:,.0f} GB/s / "
            f"{format_bytes(sum(slowest))} of weights read one after another = at most {rate:,.0f} tokens/s"
        ]

    def _say_mesh(self, mesh: Mesh) -> None:
        if mesh.size == 1:
            self._decide("one-device", "weights and keys and values fit on one device: no device waits for another")
        if mesh.tensor > 1:
            self._decide(
                "tensor-parallel-within-a-node",
                f"{mesh.tensor} devices joined by {self.device.link} share every layer: {self._traffic(mesh.tensor)}",
            )
            local = [len(share.heads.kv_heads) for share in self._shares(mesh)]
            kv_heads = self.config.num_kv_heads
            if sum(local[: mesh.tensor]) == kv_heads:
                self._decide("kv-heads", f"{kv_heads} KV heads are split, {local[0]} on each rank")
            else:
                self._decide(
                    "kv-heads", f"{kv_heads} KV heads on {mesh.tensor} ranks: {max(local)} on a rank, some replicated"
                )
        if mesh.pipeline > 1 and self.machines.island_size > 1 and self._tensor_limit() == 1:
            self._decide(
                "link-too-slow-for-tensor-parallel",
                f"{self.device.link} moves {self.device.link_bandwidth / 1e9:g} GB/s one way, less than PCIe Gen4: "
                f"with 2 devices per layer {self._traffic(2)}",
            )
        if mesh.pipeline > 1:
            self._decide(
                "pipeline-across-islands",
                f"{mesh.pipeline} stages of {self.config.num_layers // mesh.pipeline} or more layers, one per "
                f"{'device' if mesh.tensor == 1 else f'group of {mesh.tensor} devices'}: between them "
                f"goes one activation of {self.config.hidden_size:,} numbers per token",
            )

    def _replicas(self, mesh: Mesh) -> int:
        machines = self.machines
        count = machines.islands * (machines.island_size // mesh.tensor) // mesh.pipeline
        left = machines.devices - count * mesh.size
        if count > 1 or left:
            idle = f"; {left} devices are left idle" if left else ""
            self._decide("replicas", f"{machines.devices} devices hold {count} whole copies of {mesh.size}{idle}")
        return count

    def _refusal(self, tried: list[tuple[Mesh, list[RankMemory]]]) -> PlacementError:
        needed = self.weights.num_bytes(self.form)
        mesh, ranks = tried[-1]
        lines = explain_ranks(ranks)
        largest = f"{mesh.tensor} tensor x {mesh.pipeline} pipeline ranks, the most these devices make"
        if self.workload.host_bytes >= needed:
            self._decide(
                "offload",
                f"{format_bytes(needed)} of weights do not fit with {largest}; the host has "
                f"{format_bytes(self.workload.host_bytes)} for them, but every step would read them over "
                "the link to the host, and AIO does not do that",
            )
            return PlacementError(self.decisions, lines)
        self._decide(
            "does-not-fit",
            f"{self.workload.tokens:,} tokens are to fit with {largest}, but "
            f"{min(rank.kv_tokens for rank in ranks):,} do; use fewer or shorter "
            "sequences, fewer bits, or more or larger devices",
        )
        return PlacementError(self.decisions, lines)
