"""Builds a memory of masked words: `python -m realm_jax.build_memory`.

    python -m realm_jax.build_memory --model_dir=runs/realm --output_dir=memory

gin/runs/build_memory.gin says what it is for, and how it is evaluated.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax.configuration import command_line

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", None, "Directory to make.", required=True
)
_EXTEND = flags.DEFINE_string(
  "extend", None, "Memory of the run whose keys are kept: blocks are added."
)


def main(argv: Sequence[str]) -> None:
  """Calls `word_memory.build_memory` as gin configures it."""
  del argv
  build = command_line.configured(
    "realm_jax.evaluation.word_memory:build_memory",
    recipe="gin/runs/build_memory.gin",
    output_dir=_OUTPUT_DIR.value,
    extend=_EXTEND.value,
  )
  from realm_jax.partitioning.agreement import Agreement

  Agreement("memory").on_process_0("memory", lambda: print(build()))


if __name__ == "__main__":
  command_line.run(main, on_devices=True)
