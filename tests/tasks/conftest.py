"""The tiny corpus of tests of inputs, and a registry that stays clean."""

from tests.inputs.conftest import new_tasks, tiny

__all__ = ["new_tasks", "tiny"]
