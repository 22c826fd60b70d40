"""Identifies every photograph of a folder, a list or a bucket, and writes tables that can be continued."""
