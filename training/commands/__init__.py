"""The flags of the programs. They load no torch, so that --help and a wrong flag answer at once."""
