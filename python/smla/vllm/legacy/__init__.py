"""Implementation and metadata for vLLM 0.25 to 0.29, where a backend implements the whole step."""
