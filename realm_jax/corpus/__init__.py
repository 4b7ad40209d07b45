"""Documents split into blocks, and the memory-mapped store of them."""
