"""Compares times of smla and its peers (scripts/peers). docs/performance.md describes method and results."""
