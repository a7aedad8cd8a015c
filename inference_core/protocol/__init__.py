"""Commands into a core and events out of it: plain msgspec structs, no tensors, no callbacks.

The same structs cross every transport (a thread, a Unix socket, TCP). Times are seconds of
`time.monotonic()`, which Linux shares between processes of one machine; between machines they are translated.
"""

from inference_core.protocol.commands import (
    LAST_CLASS,
    AbortRequest,
    AddRequest,
    Command,
    ExportBlocks,
    ImportBlocks,
    LoadAdapter,
    QueryStats,
    SetKnobs,
    UnloadAdapter,
)
from inference_core.protocol.knobs import (
    MOST_HOST_BLOCKS,
    Knobs,
    KnobValue,
)
from inference_core.protocol.model_info import (
    AdapterInfo,
    ModelInfo,
)
from inference_core.protocol.outputs import (
    AdaptersSet,
    BlocksExported,
    BlocksImported,
    CoreHealth,
    ErrorKind,
    Event,
    FinishReason,
    Goodbye,
    Hello,
    KnobsSet,
    SequenceOutput,
    TokenLogprob,
)
from inference_core.protocol.sampling_params import (
    Grammar,
    GrammarKind,
    SamplingParams,
)
from inference_core.protocol.stats import (
    CoreStats,
    JoinStats,
    KVTransferStats,
    ModelStats,
    PipelineStats,
    PrefixStats,
    SpeculationStats,
    SwapStats,
    Tuning,
)
from inference_core.protocol.step_times import (
    NO_TIMES,
    StepTimes,
)

__all__ = [
    "LAST_CLASS",
    "MOST_HOST_BLOCKS",
    "NO_TIMES",
    "AbortRequest",
    "AdapterInfo",
    "AdaptersSet",
    "AddRequest",
    "BlocksExported",
    "BlocksImported",
    "Command",
    "CoreHealth",
    "CoreStats",
    "ErrorKind",
    "Event",
    "ExportBlocks",
    "FinishReason",
    "Goodbye",
    "Grammar",
    "GrammarKind",
    "Hello",
    "ImportBlocks",
    "JoinStats",
    "KVTransferStats",
    "KnobValue",
    "Knobs",
    "KnobsSet",
    "LoadAdapter",
    "ModelInfo",
    "ModelStats",
    "PipelineStats",
    "PrefixStats",
    "QueryStats",
    "SamplingParams",
    "SequenceOutput",
    "SetKnobs",
    "SpeculationStats",
    "StepTimes",
    "SwapStats",
    "TokenLogprob",
    "Tuning",
    "UnloadAdapter",
]
