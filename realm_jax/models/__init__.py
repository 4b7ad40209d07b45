"""Flax modules: BERT, the retriever's towers and the reader.

Four functions have a backward pass of their own, for memory on CPUs:
`activate_and_project`, `attend_by_heads`, `drop` and `normalize`. Automatic
differentiation would keep several arrays of the widest layer's size for each.
`jax.checkpoint` does not help there: XLA's CPU compiler drops its barriers,
merges what is the same in both passes and keeps the value after all. So these
functions keep little and compute the rest again, in another form. A
pre-training step needs 1.8 GB of temporaries instead of 2.2, in the same time
(`benchmarks/README.md`); on TPUs a kernel takes the place of `attend_by_heads`
(`realm_jax/models/attention/`), and GPUs were not measured.

Nothing depends on them: without `custom_vjp` (its attribute `fun`) the model
compiles and has the same gradients, as `tests/models/test_backward.py` checks.
"""
