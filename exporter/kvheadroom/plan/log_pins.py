"""What an earlier start of the same server printed, in place of estimates."""

from kvheadroom.engine.budget import Estimate, exactly
from kvheadroom.node.boot_record import BootRecord
from kvheadroom.plan.log_balance import balance
from kvheadroom.plan.plan import Pins


def pins_from_log(record: BootRecord) -> Pins:
    """Return the parts of the budget that *record* prints, each with source ``log``.

    They hold for the same model, flags, vLLM and GPU; a log tells no CUDA context.
    """
    weights = record.last("weights_bytes", "profiled_weights_bytes")
    other = record.last("non_torch_bytes")
    if other is None and weights is not None:
        consumed = record.last("consumed_bytes")
        other_bytes = None if consumed is None else max(0.0, consumed.value - weights.value)
    else:
        other_bytes = None if other is None else max(0.0, other.value)
    parts = balance(record)
    activation = record.last("activation_bytes")
    return Pins(
        weights=_logged(None if weights is None else weights.value),
        activation=_logged(None if activation is None else activation.value),
        non_torch=_logged(other_bytes),
        cuda_graphs=_logged(None if parts is None else parts.graph_bytes),
    )


def _logged(count: float | None) -> Estimate | None:
    return None if count is None else exactly(round(count), "log")
