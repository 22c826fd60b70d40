"""Where the time of a training run goes, what limits it, and what to do about it."""
