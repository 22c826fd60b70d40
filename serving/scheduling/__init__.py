"""Schedules runs of the network: which pictures run next, in which batch size and on how many threads."""
