"""Former name of `serving.access`; it stays so that `python -m serving.gate.keys` goes on working."""
