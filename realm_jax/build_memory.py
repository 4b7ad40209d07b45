"""Builds a memory of masked words (kNN-LM).

    python -m realm_jax.build_memory --model_dir=… --gin.OUTPUT_DIR=memory

The recipe, gin/runs/build_memory.gin, describes the settings.
"""

from collections.abc import Sequence

from realm_jax.configuration import command_line

command_line.define_run_flags()


def main(argv: Sequence[str]) -> None:
  """Calls `word_memory.build_memory` as gin configures it."""
  del argv
  place = "realm_jax.evaluation.word_memory:build_memory"
  recipe = "gin/runs/build_memory.gin"
  print(command_line.configured(place, recipe=recipe)())


if __name__ == "__main__":
  command_line.run(main)
