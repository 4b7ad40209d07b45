"""Why a run fills in or answers what it does, and which blocks it leans on.

`explainer` explains one sentence or question; `block_use` counts which blocks a
sample of the training sentences retrieves.
"""
