"""What the programs do once their flags are read."""
