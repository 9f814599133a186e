"""Times of smla next to its peers (scripts/peers). docs/performance.md describes method and results."""
