"""Compares readers in the demo's world: those that point, and those that write.

    python -m experiments.readers --output_dir=out/readers --seeds=3

Each reader starts from random weights, and its retriever from the same inverse
cloze. It learns to read, pre-trains with a retriever whose index is rebuilt,
and is fine-tuned on questions; the recipes' steps take about as many seconds of
the processor. What stands is not made again. experiments/gin/demo/quick.gin, as
a --gin_file, tries the machinery.
"""

from experiments.readers.comparison import COMPARISON
from realm_jax.configuration import command_line

COMPARISON.define_flags()

if __name__ == "__main__":
  command_line.run(COMPARISON.main)
