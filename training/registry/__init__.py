"""The registry: a folder of released bundles and a pointer to the one that answers."""
