"""Compares systems on questions that need a note and a page.

    python -m experiments.two_hops --output_dir=out/two_hops --seeds=3

All start from the same retriever and reader, which have been pre-trained and
fine-tuned on questions of one hop. What stands is not made again.
experiments/gin/demo/quick.gin, as a --gin_file, tries the machinery.
"""

from experiments.two_hops.comparison import COMPARISON
from realm_jax.configuration import command_line

COMPARISON.define_flags()

if __name__ == "__main__":
  command_line.run(COMPARISON.main)
