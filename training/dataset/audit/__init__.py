"""Checks of the pictures: damage, copies, near copies, licenses.

examine        decodes every picture once: damage, size, hashes; hours, a later run continues
results_cache  the results of `examine`, kept on disk
copies         byte-for-byte copies over all sources
near_copies    groups of similar pictures: re-encoded, scaled, slightly cropped
licenses       licenses and authors, and whether they allow commercial use
"""
