"""What people say about answers: kept with `--corrections DIR`, read with `python -m serving.corrections`."""
