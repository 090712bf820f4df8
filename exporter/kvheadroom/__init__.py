"""Prometheus exporter and live capacity monitor for vLLM's KV cache."""

__version__ = "0.1.0"
