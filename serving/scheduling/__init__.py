"""Many prepared pictures, few runs: which run next, on which threads, with how many pictures."""
