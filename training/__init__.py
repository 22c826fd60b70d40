"""Programs and parts that turn photographs into a bundle."""
