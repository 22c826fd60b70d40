"""The last import of the fork server: keeps all that it has imported away from the garbage collector.

A worker shares this memory with the server. A collection writes into each object that it visits, and a page that a
worker writes to becomes a copy of its own (tests/training/loading/test_loader_memory.py has the limit).
"""

import atexit
import gc

gc.freeze()
atexit.register(gc.unfreeze)  # otherwise libraries report their own objects as leaked when the server ends
