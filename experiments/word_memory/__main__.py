"""Edits facts of a finished demo's world, and asks for them without training.

    python -m experiments.word_memory --demo_dir=out/demo

Gin files that the demo was given are given again. A closed book is trained
beside its REALM. All is kept in DEMO_DIR/word_memory, and not made again.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line

_DEMO_DIR = flags.DEFINE_string("demo_dir", "out/demo", "Demo's --output_dir.")


def main(argv: Sequence[str]) -> None:
  """Edits, builds and evaluates, and prints the report."""
  del argv
  from experiments.demo.stages import Demo
  from experiments.word_memory import edited_facts
  from realm_jax.storage.sole_process import sole_process

  demo = Demo(Path(_DEMO_DIR.value), flags.FLAGS.gin_file)
  realm, closed = edited_facts.runs(demo)
  folder = demo.folder / edited_facts.FOLDER
  with sole_process(folder, "word_memory", advice="stop it"):
    print(edited_facts.report(demo, realm, closed))


if __name__ == "__main__":
  command_line.run(main)
