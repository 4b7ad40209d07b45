"""Attention within sequences that share rows, in two implementations.

`plain` is compiled by XLA on every platform. `fused` calls the kernel for TPUs,
whose body is in `kernel`, on each device. `choice` decides which of them a
layer runs, and `inputs` has what both take.
"""
