"""How a compiled CPU kernel is called.

A kernel is `void kernel(ptr words)`; `words` is an array of 8-byte words:

    0  address of `pool_run(body, context, chunks)`, or 0 to run serially; it calls
       `body(context, chunk, chunks, slot)` once for each chunk, `slot` < the word 3;
       `void pool_run(ptr, ptr, i64)`, `void body(ptr, i64, i64, i64)`; a body never calls pool_run itself
    1  workspace: `workspace_bytes` bytes, 64-byte aligned
    2  error record: three words, `site + 1` (0: no error), the index found, the extent
    3  number of worker slots (>= 1)
    4  data pointers of the arguments, in order, then the i64 parameters in order

Workspace bytes = `shared_bytes + slots * private_bytes` (see `LlvmModule`).
"""

from __future__ import annotations

POOL_RUN = 0
WORKSPACE = 1
ERROR_RECORD = 2
SLOTS = 3
FIRST_ARGUMENT = 4
ERROR_RECORD_WORDS = 3
ALIGNMENT = 64
SLACK_BYTES = 256
"""Room behind a kernel's own buffers, where lanes past the end of a loop may read: four vectors of 512 bits."""
