"""Computes a run's memory and time on a TPU slice, without having one.

    python -m realm_jax.precompile --topology=v5e:8x8 \\
      --gin_file=gin/experiments/paper_wikipedia/pretrain.gin

It compiles the training step of a recipe and the exact search, or the embedding
of an index builder's recipe. It prints whether they fit the chips' memory, and
a lower bound of their time for sequences of full length. No data is needed: the
packing of sequences is computed from assumed lengths, or from the lengths in
the corpus at --corpus_dir. docs/accelerators.md explains the costs.
"""

from collections.abc import Sequence

from absl import flags

from realm_jax import configuration
from realm_jax.configuration import command_line
from realm_jax.console import json_flag

# Number of blocks of REALM's corpus, English Wikipedia of 2018-12-20.
_PAPER_BLOCKS = 13_353_718

command_line.define_run_flags()
_TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "TPU slice: v4, v5e, v5p or v6e and its chips, as in v5e:8x8 or v4:4x4x4.",
  required=True,
)
_NUM_BLOCKS = flags.DEFINE_integer(
  "num_blocks",
  None,
  "Number of blocks in the corpus. The default is the number in --corpus_dir, "
  "or else in the published corpus.",
  lower_bound=1,
)
# Names of data, which a recipe leaves to the command line. A run keeps them.
_NO_DATA = "gin/runs/precompile.gin"
_write_json = json_flag("File to which the costs are written as JSON.")


def main(argv: Sequence[str]) -> None:
  """Compiles the recipe's programs and prints what they need."""
  del argv
  files, function = flags.FLAGS.gin_file, "training.config:TrainConfig"
  if files:
    names = configuration.parsed(None, files, checks=False).names
    if "STAGE" not in names:
      function = "snapshots.build:SnapshotConfig"
    flags.FLAGS.gin_file = [*files, _NO_DATA]
  recipe = command_line.configured(f"realm_jax.{function}")()
  import jax

  from realm_jax.precompilation.topology import open_topology

  # jax would keep programs that it cannot read without the slice's devices.
  jax.config.update("jax_enable_compilation_cache", False)
  # Before what is slow to import: a slice that is none is answered at once.
  topology = open_topology(_TOPOLOGY.value)
  from realm_jax.corpus.store import Corpus
  from realm_jax.precompilation.programs import compile_recipe

  corpus, num_blocks = None, _PAPER_BLOCKS
  if flags.FLAGS.corpus_dir is not None:
    corpus = Corpus.open(flags.FLAGS.corpus_dir)
    num_blocks = corpus.num_blocks
  report = compile_recipe(
    recipe, topology, num_blocks=_NUM_BLOCKS.value or num_blocks, corpus=corpus
  )
  _write_json(report.json())
  print(report.text())


if __name__ == "__main__":
  command_line.run(main)
