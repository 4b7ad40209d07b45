"""The type of a model's parameters."""

from typing import Any

# A flax parameter tree: arrays, or trees of the same kind, by name.
Params = dict[str, Any]
