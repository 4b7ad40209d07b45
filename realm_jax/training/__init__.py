"""A training run: its loop, its step, and the parts that they take.

`trainer` opens a run and trains it, `loop` has its steps. `config`, `setup`,
`candidates`, `generations` and `decisions` are the run on the host, and `step`,
`encoder_rows`, `optimizer` and `compilation` what the devices compute. `stages`
has a file for each stage.
"""
