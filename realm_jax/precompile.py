"""What a run costs on a TPU slice, without one.

    python -m realm_jax.precompile --topology=v5e:8x8 \\
      --gin_file=gin/experiments/paper_wikipedia/pretrain.gin

It compiles the training step of a recipe in each of its shape buckets, the
builder's embedding of blocks and the exact search, and prints whether they fit
the chips' memory, how long they take by the compiler's estimates, and how many
chips rebuild the index how often. No data are needed: sequences are as long as
the recipe pads them, or as those of `--lengths_from=CORPUS`. The recipe may be
that of an index builder alone; without one, `--model_dir` gives a run's own.
docs/performance.md explains the estimates.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from realm_jax import configuration
from realm_jax.files import compilation_cache
from realm_jax.files.json_file import write_json

if TYPE_CHECKING:
  from realm_jax.precompilation.run import Recipe

# Blocks of English Wikipedia of 2018-12-20, of which REALM's corpus consists.
_PAPER_BLOCKS = 13_353_718

configuration.define_run_flags()
_TOPOLOGY = flags.DEFINE_string(
  "topology",
  None,
  "TPU slice: v4, v5e, v5p or v6e and its chips, as in v5e:8x8 or v4:4x4x4.",
  required=True,
)
_BUILDER_GIN_FILE = flags.DEFINE_multi_string(
  "builder_gin_file",
  [],
  "A gin file of the index builder; repeatable. Without one it has the "
  "defaults, and the trainer's retriever.",
)
_NUM_BLOCKS = flags.DEFINE_integer(
  "num_blocks",
  _PAPER_BLOCKS,
  "Blocks of the corpus; the default is the number in the published one.",
  lower_bound=1,
)
_LENGTHS_FROM = flags.DEFINE_string(
  "lengths_from", None, "A corpus whose sequences have the usual lengths."
)
_BUILDER_CHIPS = flags.DEFINE_integer(
  "builder_chips",
  None,
  "Chips of the index builder. The default is as many as build a generation "
  "between two checkpoints.",
  lower_bound=1,
)
_CACHE_DIR = flags.DEFINE_string(
  "cache_dir",
  None,
  "Directory of earlier compilations; the default is in ~/.cache, and '' "
  "compiles all.",
)
_JSON = flags.DEFINE_string(
  "json", None, "File to which the figures are written as JSON, too."
)
# Where `make env` installs libtpu: beside the packages, because jax would look
# for TPUs wherever it can import it.
_LIBRARY = Path(sys.prefix) / "libtpu" / "libtpu" / "libtpu.so"


def main(argv: Sequence[str]) -> None:
  """Compiles the recipe's programs and prints what they cost."""
  del argv
  configuration.require_run({})
  from realm_jax.precompilation import compiler, run
  from realm_jax.precompilation.topology import open_topology

  # jax would keep programs that it cannot read without the slice's devices.
  compilation_cache.disable()
  topology = open_topology(_TOPOLOGY.value, library=_LIBRARY)
  recipe = _recipe()
  cache = compiler.cache_directory()
  if _CACHE_DIR.value is not None:
    cache = Path(_CACHE_DIR.value) if _CACHE_DIR.value else None
  report = run.precompile(recipe, topology, cache=cache)
  if _JSON.value:
    write_json(_JSON.value, report.json())
  print(report.text())


def _recipe() -> "Recipe":
  """Reads the recipe; raises a ConfigurationError where it is none."""
  from realm_jax.corpus.store import Corpus, require_block_length
  from realm_jax.generations.building.generation_builder import (
    GenerationConfig,
  )
  from realm_jax.precompilation.run import Recipe
  from realm_jax.training.config import TrainConfig

  train, generation = None, None
  with configuration.parsed_from_flags(without_data=True):
    if configuration.is_configured(TrainConfig):
      train = configuration.configured(TrainConfig)()
    elif configuration.is_configured(GenerationConfig):
      generation = configuration.configured(GenerationConfig)()
    else:
      configuration.configured(TrainConfig)
  if _BUILDER_GIN_FILE.value:
    with configuration.parsed(_BUILDER_GIN_FILE.value, without_data=True):
      generation = configuration.configured(GenerationConfig)()
  corpus = Corpus.open(_LENGTHS_FROM.value) if _LENGTHS_FROM.value else None
  if corpus is not None and train is not None:
    require_block_length(train.data.block_length, corpus)
  return Recipe(
    train=train,
    generation=generation,
    num_blocks=_NUM_BLOCKS.value,
    corpus=corpus,
    builder_chips=_BUILDER_CHIPS.value,
  )


if __name__ == "__main__":
  configuration.run(main)
