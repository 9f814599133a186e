"""Implementation and metadata for vLLM 0.25 to 0.29, whose base classes leave the whole step to a backend."""
