"""Why a run fills in or answers what it does, and which blocks it leans on.

`explainer` explains one sentence or question; `along_training` follows fixed
sentences through the generations of a run; `block_use` counts which blocks a
sample of the training sentences retrieves.
"""
