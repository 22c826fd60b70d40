"""Former name of `serving.access`; kept so that `python -m serving.gate.keys` still works."""
