"""A network and a split -> figures."""
