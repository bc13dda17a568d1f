"""Programs as StableHLO text, for other compilers."""
