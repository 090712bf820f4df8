"""What vLLM does with a model: version rules, pages, blocks."""
