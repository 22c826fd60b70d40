"""What a run taught, and what would make the next one faster: curves, mistakes, tuning, studies."""
