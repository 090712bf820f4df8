"""Every option of `vllm serve` and what kind of value it takes, as of vLLM 0.32."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Kind = Literal[
    "flag",  # present or not
    "switch",  # has a --no- twin
    "text",
    "texts",  # one or more words
    "optional_text",  # a word or none
    "int",
    "tokens",  # 32k = 32000, 32K = 32768
    "tokens_or_auto",  # the same, or -1 or auto
    "number",
    "json",
]


def _names(block: str) -> tuple[str, ...]:
    return tuple(block.split())


_FLAGS: Final = _names(
    """
    aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc
    headless
    """
)
_SWITCHES: Final = _names(
    """
    allow-credentials allow-deprecated-quantization async-scheduling
    cohere-is-reasoning-model cudagraph-metrics data-parallel-external-lb
    data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
    disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
    enable-auto-tool-choice enable-batch-sharded-sampling enable-chunked-prefill
    enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb
    enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction
    enable-flashinfer-autotune enable-force-include-usage enable-hc-sp
    enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
    enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format
    enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs
    enable-per-request-metrics enable-prefix-caching enable-prompt-embeds
    enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts
    enable-scale-out enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode
    enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora
    enable-trace-replay enforce-eager exclude-tools-when-tool-choice-none
    fail-on-environ-validation fully-sharded-loras interleave-mm-strings jit-monitor-verbose
    kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack
    long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only numa-bind
    ray-workers-use-nsight return-sampling-mask return-tokens-as-token-ids
    scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
    sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only
    trust-remote-code trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel
    use-replayssm use-tqdm-on-load
    """
)
_TEXT: Final = _names(
    """
    all2all-backend allowed-local-media-path anthropic-disabled-thinking-effort
    attention-backend chat-template chat-template-content-format code-revision cohere-format
    config config-format convert data-parallel-address data-parallel-backend
    dcp-comm-backend device-ids disable-access-log-for-endpoints
    distributed-executor-backend download-dir dtype expert-placement-strategy
    fingerprint-mode fingerprint-value gdn-prefill-backend generation-config hf-config-path
    host io-processor-plugin jit-monitor-mode kda-decode-backend kda-prefill-backend
    kv-cache-dtype kv-offloading-backend linear-backend load-format log-config-file
    log-level logprobs-mode lora-dtype mamba-backend mamba-cache-dtype mamba-cache-mode
    mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr max-lora-cls-labels middleware
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
    mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm
    mm-processor-cache-type mm-processor-device mm-tensor-ipc model model-impl moe-backend
    offload-backend optimization-level otlp-traces-endpoint per-request-spec-decode-metrics
    performance-mode prefix-cache-retention-interval prefix-caching-hash-algo quantization
    reasoning-parser reasoning-parser-plugin response-role revision root-path runner
    safetensors-load-strategy scheduler-cls scheduling-policy
    show-hidden-metrics-for-version sparse-indexer-topk-backend spec-method spec-model
    ssl-ca-certs ssl-certfile ssl-ciphers ssl-keyfile tokenizer tokenizer-mode
    tokenizer-revision tool-call-parser tool-parser-plugin tool-server tool-strict-level uds
    uvicorn-log-level video-pruning-method worker-cls worker-extension-cls
    """
)
_INTEGERS: Final = _names(
    """
    api-server-count block-size cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
    data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
    data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
    dbo-prefill-token-threshold dcp-kv-cache-interleave-size decode-context-parallel-size
    distributed-timeout-seconds dp-supervisor-probe-failure-threshold dp-sync-interval
    elastic-ep-max-dp-size grpc-port h11-max-header-count h11-max-incomplete-event-size
    long-prefill-token-threshold mamba-block-size mamba-cache-philox-rounds master-port
    max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-lora-rank
    max-loras max-num-active-seqs max-num-queued-reqs max-num-seqs
    max-parallel-loading-workers mm-shm-cache-max-object-size-mb nnodes node-rank
    num-gpu-blocks-override offload-group-size offload-num-in-group offload-prefetch-step
    pipeline-parallel-size port prefill-context-parallel-size prefill-schedule-interval
    prefix-match-unit renderer-num-workers replayssm-buffer-len
    safetensors-prefetch-num-threads seed shutdown-timeout spec-tokens
    sse-keep-alive-interval ssl-cert-reqs stream-interval tensor-parallel-size ubatch-size
    """
)
_TOKENS: Final = _names(
    """
    kv-cache-memory-bytes max-num-batched-tokens max-num-queued-tokens
    max-num-scheduled-tokens safetensors-prefetch-block-size
    """
)
_TOKENS_OR_AUTO: Final = _names(
    """
    max-model-len
    """
)
_NUMBERS: Final = _names(
    """
    cpu-offload-gb dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
    gpu-memory-utilization kv-cache-metrics-sample kv-offloading-size
    mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb mm-processor-cache-gb
    video-pruning-rate watermark
    """
)
_JSON: Final = _names(
    """
    additional-config allowed-headers allowed-methods allowed-origins attention-config
    aux-output-config compilation-config custom-histogram-buckets
    default-chat-template-kwargs default-mm-loras diffusion-config ec-manager-config
    ec-transfer-config engram-config eplb-config fault-tolerance-config hf-overrides
    ir-op-priority kernel-config kv-events-config kv-transfer-config limit-mm-per-prompt
    logging-config media-io-kwargs mm-processor-kwargs model-class-overrides
    model-loader-extra-config override-generation-config pooler-config profiler-config
    pt-load-map-location quantization-config reasoning-config speculative-config
    structured-outputs-config watermark-config weight-transfer-config
    """
)
_TEXTS: Final = _names(
    """
    allowed-media-domains api-key collect-detailed-traces cpu-offload-params
    cudagraph-capture-sizes ignore-patterns kv-cache-dtype-skip-layers logits-processors
    lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes offload-params
    served-model-name sleep-preserve-parameter-names
    """
)
_OPTIONAL_TEXT: Final = _names(
    """
    hf-token
    """
)
# Options of earlier versions, which people still type: read, but never completed from a prefix.
_RETIRED: Final[Mapping[str, Kind]] = {
    "calculate-kv-scales": "switch",
    "cuda-graph-sizes": "texts",
    "device": "text",
    "disable-async-output-proc": "flag",
    "disable-frontend-multiprocessing": "flag",
    "disable-log-requests": "flag",
    "disable-mm-preprocessor-cache": "flag",
    "enable-lora-bias": "flag",
    "enable-multimodal-encoder-data-parallel": "flag",
    "enable-reasoning": "flag",
    "full-cuda-graph": "switch",
    "guided-decoding-backend": "text",
    "lora-extra-vocab-size": "int",
    "max-long-partial-prefills": "int",
    "max-num-partial-prefills": "int",
    "max-seq-len-to-capture": "int",
    "multi-step-stream-outputs": "text",
    "num-lookahead-slots": "int",
    "num-scheduler-steps": "int",
    "num-speculative-tokens": "int",
    "override-attention-dtype": "text",
    "override-neuron-config": "json",
    "override-pooler-config": "json",
    "preemption-mode": "text",
    "rope-scaling": "json",
    "rope-theta": "number",
    "speculative-model": "text",
    "swap-space": "number",
    "task": "text",
    "tokenizer-pool-size": "int",
    "use-v2-block-manager": "flag",
    "worker-use-ray": "flag",
}

_KINDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "flag": _FLAGS,
    "switch": _SWITCHES,
    "text": _TEXT,
    "int": _INTEGERS,
    "tokens": _TOKENS,
    "tokens_or_auto": _TOKENS_OR_AUTO,
    "number": _NUMBERS,
    "json": _JSON,
    "texts": _TEXTS,
    "optional_text": _OPTIONAL_TEXT,
}
CURRENT_OPTIONS: Final[Mapping[str, Kind]] = MappingProxyType(
    {name: kind for kind, names in _KINDS.items() for name in names}
)
OPTIONS: Final[Mapping[str, Kind]] = MappingProxyType({**_RETIRED, **CURRENT_OPTIONS})
ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"device-memory-utilization": "gpu-memory-utilization"}
)
SHORT_FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "-ac": "attention-config",
        "-asc": "api-server-count",
        "-cc": "compilation-config",
        "-dc": "diffusion-config",
        "-dcp": "decode-context-parallel-size",
        "-dp": "data-parallel-size",
        "-dpa": "data-parallel-address",
        "-dpb": "data-parallel-backend",
        "-dpe": "data-parallel-external-lb",
        "-dph": "data-parallel-hybrid-lb",
        "-dpl": "data-parallel-size-local",
        "-dpm": "data-parallel-multi-port-external-lb",
        "-dpn": "data-parallel-rank",
        "-dpp": "data-parallel-rpc-port",
        "-dpr": "data-parallel-start-rank",
        "-ep": "enable-expert-parallel",
        "-n": "nnodes",
        "-pcp": "prefill-context-parallel-size",
        "-pp": "pipeline-parallel-size",
        "-q": "quantization",
        "-r": "node-rank",
        "-sc": "speculative-config",
        "-tp": "tensor-parallel-size",
    }
)
