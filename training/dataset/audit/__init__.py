"""Checks of the pictures: damage, near copies, licenses.

examine        decodes every picture once: damage, size, hashes; hours, a later run continues from its cache
near_copies    groups of similar pictures: re-encoded, scaled, slightly cropped
licenses       licenses and authors, and whether they allow commercial use
"""
