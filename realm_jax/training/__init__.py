"""A training run: its loop, its step, and the parts that they take.

`trainer` opens a run and trains it, and `loop` goes through its steps.
`config`, `batch_pipeline`, `index_schedule` and `decisions` belong to the host,
`step`, `encoder_inputs` and `optimizer` to the step, which `compiled_steps`
compiles. `stages` has a file for each stage.
"""
