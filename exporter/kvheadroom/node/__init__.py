"""The outside world: NVML, vLLM pages, model files."""
