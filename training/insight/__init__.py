"""Analysis of runs: learning curves, mistakes, tuning to a machine, and studies of many runs."""
