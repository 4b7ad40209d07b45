"""Edits facts in a finished demo's world, and asks for them without training.

    python -m experiments.word_memory --demo_dir=out/demo

Pass the same gin files as for the demo. The command trains a closed-book model
to compare with the demo's REALM. Everything is stored in DEMO_DIR/word_memory;
finished steps are reused.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from realm_jax.configuration import command_line

_DEMO_DIR = flags.DEFINE_string(
  "demo_dir", "out/demo", "The demo's --output_dir."
)


def main(argv: Sequence[str]) -> None:
  """Runs the experiment, and prints the report."""
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
