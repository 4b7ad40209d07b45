"""t5x as another engine: the parts that `t5x.train.train` takes.

t5x counts the steps, and writes summaries of them. Each step is the next one of
a run of ours (`training.loop.iterate`), which reads, searches, computes and
saves as in `realm_jax.train`. So sidecar, evaluation and our own loop read what
a run of t5x has written.

t5x is in no package registry; `make t5x` adds it to the environment. Nothing
outside this folder imports it.
"""
