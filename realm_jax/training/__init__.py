"""A training run: its loop, its step, and the parts that they take.

`trainer` opens a run and trains it, and `loop` goes through its steps.
`config`, `setup`, `candidates`, `snapshots` and `decisions` belong to the
host, `step`, `encoder_inputs` and `optimizer` to the compiled step. `stages` has
a file for each stage.
"""
