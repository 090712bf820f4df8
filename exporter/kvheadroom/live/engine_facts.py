"""What is known of a server's engines without asking them."""

from dataclasses import dataclass, field

from kvheadroom.engine.options import EngineOptions
from kvheadroom.live.admission import AdmissionRules
from kvheadroom.live.process_tree import Start
from kvheadroom.model.layers import ModelLayers
from kvheadroom.readings import BootReading


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is configured, was found among the processes, or is read from files and logs.

    Attributes:
        name: What its engines are called; ``None`` names them by address.
        server: What its engines are called by instead of their address: a server that was found
            keeps the first one when it moves.
        process: Pid and start of the process that serves; ``None`` while it has not been found.
        layers: The model, where its config.json is known.
        draft: The draft model, where speculation uses one and its config.json is known.
        tensor_parallel: Ranks of one engine that share a stage.
        options: Every setting of the server; ``None`` while its command is not known.
        rules: By what its engines admit a request.
        stage_weights_bytes: Weights of one rank of each pipeline stage, shape ``(stages,)``;
            ``None`` while they are not known.
        boot: What its startup log says of the last start.
        earlier_boot: The same of the start before.
        problem: Why settings, model or weights are not known, one line; ``None`` where they are.
    """

    name: str | None = None
    server: str | None = None
    process: Start | None = None
    layers: ModelLayers | None = None
    draft: ModelLayers | None = None
    tensor_parallel: int = 1
    options: EngineOptions | None = None
    rules: AdmissionRules = field(default_factory=AdmissionRules)
    stage_weights_bytes: tuple[int, ...] | None = None
    boot: BootReading | None = None
    earlier_boot: BootReading | None = None
    problem: str | None = None
