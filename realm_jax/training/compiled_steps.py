"""Derives the parts of a run from its configuration, corpora and devices.

Most importantly, compiles its steps ahead of time.
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from realm_jax.checkpoints.store import READER_VOCABULARY
from realm_jax.corpus.store import Corpus, require_block_length
from realm_jax.errors import RealmError
from realm_jax.indexes.exact import capacity_for
from realm_jax.models.components import Components, TextReader
from realm_jax.models.parameters import Params
from realm_jax.partitioning import cpu_tuning, sharding
from realm_jax.partitioning.mesh import make_mesh
from realm_jax.training.bin_counts import choose_bin_counts
from realm_jax.training.block_arrays import BlockArrays, load_blocks
from realm_jax.training.checkpointing import RunIdentity, examples_of_run
from realm_jax.training.config import TrainConfig
from realm_jax.training.encoder_inputs import PackingLayout
from realm_jax.training.optimizer import make_optimizer
from realm_jax.training.search_in_step import SearchInStep
from realm_jax.training.stages.stage import ExampleArrays, Stage, StepBatch
from realm_jax.training.state import Metrics, TrainState
from realm_jax.training.step import TrainStep


@dataclasses.dataclass(frozen=True)
class StepSetup:
  """The inputs that determine a step's programs; none of them is a file.

  Attributes:
    components: Modules for the vocabulary of the corpus.
    num_blocks: Number of blocks of the corpus that is searched.
    number: Index of the stage in `config.stages`.

  Raises:
    ValueError: The configuration does not fit the devices, or the corpus has
      too few blocks.
  """

  config: TrainConfig
  mesh: Mesh
  components: Components
  num_blocks: int
  number: int = dataclasses.field(default=0, kw_only=True)

  def __post_init__(self) -> None:
    # Heads may not be divisible even if their columns are. If an axis has
    # several rules, the first counts.
    rule = dict(reversed(self.config.mesh.all_axis_rules))["activation_heads"]
    for name, component in self.components.items():
      sharding.require_divisible(
        f"num_heads of the {name}",
        (component.num_heads,),
        ("activation_heads",),
        NamedSharding(self.mesh, PartitionSpec(rule)),
      )
    # Evaluated now, to raise errors before anything is opened.
    _ = self.num_searched, self.local_rows

  @property
  def stage(self) -> Stage:
    """Stage of the steps."""
    return self.config.stages[self.number]

  @property
  def searches_in_step(self) -> bool:
    """Whether the step does its own retrieval."""
    return self.config.retrieve_on_device and not self.number

  @functools.cached_property
  def num_searched(self) -> int:
    """Number of blocks that a search returns for each query."""
    return self._num_searched(self.num_blocks)

  def _num_searched(self, num_blocks: int) -> int:
    retrieval = self.stage.retrieval
    return 0 if retrieval is None else retrieval.num_searched(num_blocks)

  @property
  def text_reader(self) -> TextReader | None:
    """The reader, if the stage's reader reads passages."""
    if self.stage.reads_passages:
      return self.components.text_reader
    return None

  @property
  def local_rows(self) -> Int[np.ndarray, " b"]:
    """Indices of this process's rows in every global batch."""
    config = self.config
    return sharding.row_groups(self.mesh).local_rows(
      config.data.batch_size, parts=config.num_microbatches
    )

  @property
  def init(self) -> Callable[[jax.Array], Params]:
    """Function that initializes all stages' parameters, in Flax's boxes."""
    data = self.config.data
    lengths = data.query_length, data.block_length
    return sharding.shared_partial(
      _initial, self.config.stages, self.components, *lengths
    )

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """Optimizer of the parameters that any stage of the run trains."""
    config = self.config
    of_stages = [stage.components for stage in config.stages]
    components = tuple(dict.fromkeys(itertools.chain(*of_stages)))
    trained = {name for stage in config.stages for name in stage.trained}
    return make_optimizer(
      config.optimizer,
      num_steps=config.num_steps,
      components=components,
      frozen=tuple(name for name in components if name not in trained),
    )

  def blocks_of_device(self, at_once: int) -> int:
    """Returns the number of blocks for each device if all embed `at_once`."""
    devices = self.mesh.size
    share = capacity_for(self.num_blocks, devices=devices) // devices
    return max(1, min(-(-at_once // devices), share))

  def empty_arrays(self) -> ExampleArrays:
    """Returns padding, from which a stage makes a global batch."""
    data, stage = self.config.data, self.stage
    shape = (data.batch_size, stage.num_candidates, data.block_length)
    return ExampleArrays(
      components=self.components,
      query=np.zeros((data.batch_size, data.query_length), np.int32),
      candidates=np.zeros(shape, np.int32),
      num_searched=self.num_searched,
      max_masks=data.max_masks,
    )

  def abstract_batch(self) -> StepBatch:
    """Returns the abstract arrays of a global batch, on the devices.

    If the step searches, the batch has no candidates.
    """
    placed = sharding.batch_sharding(self.mesh)
    batch = self.stage.dummy_batch(self.empty_arrays())
    if self.searches_in_step:
      words = np.zeros((self.config.data.batch_size, 2), np.uint32)
      batch = batch._replace(candidates=None, source_hash=words)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, jax.dtypes.canonicalize_dtype(x.dtype), sharding=placed
      ),
      batch,
    )

  def layout(self, corpus: Corpus | None) -> PackingLayout:
    """Returns the step's layout of sequences, for the lengths in a corpus.

    Without a corpus, lengths are assumed. Without packing, each sequence has
    its own bin.
    """
    config, layout = self.config, PackingLayout(self.mesh)
    if not config.pack:
      return layout
    counts = choose_bin_counts(
      self.stage,
      self.components,
      self.empty_arrays(),
      corpus,
      groups=layout.num_devices * config.num_microbatches,
      at_most=config.max_shape_buckets,
    )
    return dataclasses.replace(layout, bin_counts=counts)


@dataclasses.dataclass(frozen=True)
class RunSetup(StepSetup):
  """The parts of a run that exist before anything is opened for writing.

  Attributes:
    examples: Corpus from which examples come.
    corpus: Corpus that is searched; the same one, unless there are two.
    searched_blocks: Number of blocks in `corpus` when the run began. It
      determines the number of blocks to search for, even if the corpus grows.

  Raises:
    ValueError: The corpus now has fewer blocks than a query searches for.
  """

  examples: Corpus
  corpus: Corpus
  searched_blocks: int

  @functools.cached_property
  def num_searched(self) -> int:
    number = self._num_searched(self.searched_blocks)
    if number > self.num_blocks:
      raise RealmError(
        f"every query of this run searches for {number} blocks, and the corpus "
        f"has {self.num_blocks} by now: add blocks, or give another MODEL_DIR"
      )
    return number

  @property
  def identity(self) -> RunIdentity:
    """Values that a run must share with the checkpoint it continues from."""
    config = self.config
    of_stages: RunIdentity = {}
    if config.auxiliary:
      shares = [(one.name, one.share, one.task) for one in config.auxiliary]
      of_stages["auxiliary_stages"] = zlib.crc32(repr(shares).encode())
    views: RunIdentity = {}
    if view := self.components.reader_view:
      views[READER_VOCABULARY] = self.corpus.view(view).digest
    return RunIdentity(
      **of_stages,
      **views,
      seed=config.data.seed,
      batch_size=config.data.batch_size,
      num_searched=self.num_searched,
      save_every_steps=config.refresh_every_steps if config.waits else 0,
      lag_steps=config.refresh.lag_steps if config.waits else 0,
      steps_ahead=config.steps_ahead,
      held_out_blocks=config.data.held_out_blocks,
      vocabulary=self.corpus.vocab_sha256,
      corpus_version=self.examples.version,
      corpus_fingerprint=self.examples.fingerprint,
      searched_blocks=self.searched_blocks,
    )

  def load_blocks(self, corpus: Corpus) -> BlockArrays:
    """Loads the arrays of all blocks of a corpus version, onto the devices."""
    return load_blocks(
      corpus,
      block_length=self.config.data.block_length,
      mesh=self.mesh,
      reader=self.text_reader,
    )


def set_up(config: TrainConfig) -> RunSetup:
  """Opens the corpora, and checks the configuration against them.

  Raises:
    CorpusError: There is no corpus, or its blocks are longer than
      `block_length`.
    CheckpointError: The run's last checkpoint has another vocabulary.
    ValueError: The configuration does not fit the corpus or the devices.
  """
  data = config.data
  examples, searched_blocks = examples_of_run(
    config.model_dir, data.pretraining_corpus_dir or data.corpus_dir
  )
  corpus = examples
  if data.pretraining_corpus_dir is not None:
    corpus = Corpus.open(data.corpus_dir)
    examples.require_vocabulary_of(corpus)
  require_block_length(data.block_length, corpus, examples)
  mesh = make_mesh(
    fsdp=config.mesh.fsdp, model_parallelism=config.mesh.model_parallelism
  )
  components = config.all_components.for_vocabulary(
    vocab_size=corpus.vocab_size,
    separator_id=corpus.vocabulary.sep_id,
    views=corpus.view_sizes,
  )
  return RunSetup(
    config,
    mesh,
    components,
    corpus.num_blocks,
    examples,
    corpus,
    searched_blocks or corpus.num_blocks,
  )


class CompiledSteps:
  """The steps of a run, compiled in each mode that the run needs.

  The program of a step that searches depends on the number and type of all
  vectors. It is compiled when these are known, and again only if a later
  snapshot has other shapes, because the corpus has outgrown its capacity.

  Attributes:
    programs: Compiled steps, by whether the retriever is frozen and by the
      shapes of the searched arrays.
  """

  def __init__(self, setup: StepSetup, layout: PackingLayout):
    self._setup = setup
    self._layout = layout
    config = setup.config
    self._search: SearchInStep | None = None
    if setup.searches_in_step:
      assert setup.stage.retrieval is not None
      self._search = SearchInStep(
        setup.components.retriever,
        setup.stage.retrieval,
        setup.mesh,
        setup.blocks_of_device(config.refresh.blocks_per_step),
        0 if setup.text_reader is None else setup.text_reader.input_length,
      )
    self.programs: dict[tuple[bool, Any], jax.stages.Compiled] = {}

  def compile(
    self, state: TrainState, batch: StepBatch, searched: Any = None
  ) -> None:
    """Compiles the step. All arrays may be abstract."""
    options = cpu_tuning.compiler_options(self._setup.mesh)
    first_step = int(state.step)
    for frozen, traced in self.trace(state, batch, searched, first_step):
      compiled = traced.lower().compile(options)
      self.programs[frozen, _shapes(searched)] = compiled
    cpu_tuning.return_freed_memory()

  def trace(
    self, state: TrainState, batch: StepBatch, searched: Any, first_step: int
  ) -> Iterator[tuple[bool, jax.stages.Traced]]:
    """Yields the steps that are needed from a first step on.

    These are the step with a frozen retriever, and the one without. All arrays
    may be abstract; the buffers of the state are donated.
    """
    setup, config = self._setup, self._setup.config
    shardings = jax.tree.map(lambda array: array.sharding, state)
    freeze_steps = config.optimizer.freeze_retriever_steps
    modes = {step < freeze_steps for step in (first_step, config.num_steps - 1)}
    untouched: tuple[str, ...] = ()
    if config.auxiliary:
      trained = setup.stage.trained
      untouched = tuple(name for name in state.params if name not in trained)
    for frozen in sorted(modes):
      train_step = TrainStep(
        setup.stage,
        setup.components,
        self._layout,
        setup.optimizer,
        config.data.seed,
        search=self._search,
        num_microbatches=config.num_microbatches,
        frozen=(*config.optimizer.frozen, *(["retriever"] if frozen else [])),
        untouched=untouched,
        prefix=config.prefix_of(setup.number),
      )
      step = jax.jit(
        sharding.under(config.mesh.all_axis_rules, train_step),
        donate_argnums=0,
        out_shardings=(shardings, sharding.replicated(setup.mesh)),
      )
      with jax.set_mesh(setup.mesh):
        traced = step.trace(state, batch, searched)
      yield frozen, traced

  def __call__(
    self, state: TrainState, batch: StepBatch, searched: Any, step: int
  ) -> tuple[TrainState, Metrics]:
    """Runs a step, whose state is donated."""
    frozen = step < self._setup.config.optimizer.freeze_retriever_steps
    key = frozen, _shapes(searched)
    if key not in self.programs:
      if self.programs:
        logging.info("the corpus has outgrown its capacity: compiling the step")
      self.compile(state, batch, searched)
    # Implicit copies from the host are errors.
    with jax.transfer_guard("disallow"):
      return self.programs[key](state, batch, searched)


def _initial(
  stages: Sequence[Stage],
  components: Components,
  query_length: int,
  block_length: int,
  key: jax.Array,
) -> Params:
  """Initializes all stages' components, each by the first stage that has it."""
  params: Params = {}
  for stage in stages:
    params = stage.init(components, query_length, block_length, key) | params
  return params


def _shapes(searched: Any) -> Any:
  """Returns the key of a program: static values, shapes and types."""
  leaves, structure = jax.tree.flatten(searched)
  return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
