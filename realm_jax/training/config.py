"""The configuration of a run: frozen dataclasses, whose fields gin binds."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from absl import logging
from etils import epath

from realm_jax.errors import RealmError
from realm_jax.inputs.config import DataConfig
from realm_jax.models.components import (
  Component,
  Components,
  Reader,
  Retriever,
)
from realm_jax.partitioning.sharding import AxisRules, with_defaults
from realm_jax.settings import (
  NonNegativeInt,
  OfRun,
  PositiveFloat,
  PositiveInt,
  Range,
  require_valid,
)
from realm_jax.training.metric_writers import Tracker
from realm_jax.training.optimizer import OptimizerConfig
from realm_jax.training.stages.stage import Stage


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """When a run saves checkpoints, and where its first parameters come from.

  Attributes:
    save_every_steps: Distance of checkpoints, and so of snapshots, in steps.
    keep_checkpoints: Number of the latest checkpoints that are kept; step 0
      always is.
    initial_checkpoint: MODEL_DIR of the stage before, or one of its
      checkpoints.
    initial_reader: Another one to take the reader from.
  """

  save_every_steps: PositiveInt = 500
  keep_checkpoints: PositiveInt = 3
  initial_checkpoint: epath.PathLike | None = None
  initial_reader: epath.PathLike | None = None

  def __post_init__(self) -> None:
    require_valid(self)

  def source_of(self, component: str) -> epath.PathLike | None:
    """Returns the checkpoint that a component starts from, if any."""
    own = self.initial_reader if component == "reader" else None
    return own or self.initial_checkpoint


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
  """How a run follows the index builder, or keeps a rolling index.

  Attributes:
    swap_snapshots: Whether later snapshots are swapped in at all; open QA
      stays with its first.
    wait_for_snapshots: Whether the snapshot of checkpoint c is used from
      exactly step c + lag_steps, for which the trainer waits, so that a run is
      deterministic. Otherwise the newest loaded snapshot is used.
    lag_steps: Steps between a checkpoint and the use of its snapshot; with
      `wait_for_snapshots` only.
    refresh_every_steps: Distance of the snapshots that are used, in steps:
      those of other checkpoints are not. None uses the snapshots of all
      checkpoints.
    max_staleness_steps: Age of the oldest vector that may be searched, in
      steps. None is ten times the distance of the snapshots that are used,
      and 0 sets no limit.
    on_stale: What to do beyond that limit, `warn` or `fail`.
    timeout_seconds: Seconds to wait for a snapshot before giving up.
    blocks_per_step: Number of blocks that each step embeds again, on all
      devices together, in an index that the run keeps itself. With 0 the run
      follows an index builder.
    rolling_refresh_dtype: Type of that index's vectors, `float32` or
      `bfloat16`.
  """

  swap_snapshots: bool = True
  wait_for_snapshots: bool = False
  lag_steps: PositiveInt = 100
  refresh_every_steps: Annotated[PositiveInt | None, OfRun()] = None
  max_staleness_steps: NonNegativeInt | None = None
  on_stale: Literal["warn", "fail"] = "warn"
  timeout_seconds: PositiveFloat = 24 * 3600.0
  blocks_per_step: NonNegativeInt = 0
  rolling_refresh_dtype: Literal["float32", "bfloat16"] = "float32"

  def __post_init__(self) -> None:
    require_valid(self)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """How the devices share the parameters, the optimizer's state and the work.

  The devices that `fsdp` and `model_parallelism` leave divide the batch alone,
  each with a copy of the parameters.

  Attributes:
    fsdp: Number of devices that divide parameters and optimizer state among
      them, and the batch as well (fully sharded data parallelism). A step
      gathers each layer's parameters when it needs them.
    model_parallelism: Number of devices that divide the vocabulary, the
      attention heads and the feed-forward layers, and compute on the same
      examples.
    axis_rules: Pairs of a logical axis and the mesh axis or axes that divide
      it, or None. They come before `sharding.LOGICAL_AXIS_RULES`.
  """

  fsdp: PositiveInt = 1
  model_parallelism: PositiveInt = 1
  axis_rules: Sequence[tuple[str, str | Sequence[str] | None]] = ()

  def __post_init__(self) -> None:
    require_valid(self)
    # Raises an error where a rule is wrong.
    _ = self.all_axis_rules

  @property
  def all_axis_rules(self) -> AxisRules:
    """All rules from logical axes to the mesh, those of the run first."""
    return with_defaults(self.axis_rules)


@dataclasses.dataclass(frozen=True)
class AuxiliaryStage:
  """A stage that takes some steps of a run from its main one.

  Whose turn a step is follows from the seed and the step alone, and each stage
  has its own stream of examples, whose position checkpoints keep: so a resumed
  run repeats both. A step is one stage's, rather than a sum of all losses,
  because each keeps the batch, the in-batch negatives and the program that it
  has by itself. All share one state and one optimizer. What a step's stage does
  not train keeps its values and moments, so no step decays another's. Only the
  main stage may search, so that all that an index needs stays as it was.

  Attributes:
    name: Name before its metrics, as in `judged/loss`.
    stage: What its steps train. It retrieves nothing.
    share: Share of the steps that it takes, on average.
    task, split, question_files, other_lengths: Its data, as `DataConfig` has
      them; seed, batch size and the other lengths are the run's.
  """

  name: str
  stage: Stage
  share: Annotated[float, Range(above=0, below=1)]
  task: str
  split: str = "train"
  question_files: Mapping[str, epath.PathLike] = dataclasses.field(
    default_factory=dict
  )
  other_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    require_valid(self)
    if self.stage.retrieval is not None or self.stage.needs_answers:
      raise RealmError(
        f"the auxiliary stage {self.name!r} retrieves blocks, which only STAGE "
        "may; make it STAGE, or have it retrieve none (NUM_HARD_NEGATIVES = 0)"
      )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One training run of one stage.

  Attributes:
    model_dir: Directory of the run's checkpoints, snapshots and metrics.
    data: Task, corpus, batch and lengths. Examples come from the corpus
      version that the run began with.
    stage: What is trained, and by which loss.
    retriever: Towers; they take the vocabulary of the corpus.
    num_steps: Steps of the whole run; the learning rate falls until there.
    reader: Reader, for the stages that have one.
    components: Further components, by the names that a stage gives them.
    mesh: How the devices share the parameters and the work.
    num_microbatches: Number of parts of a batch whose gradients a step computes
      one after the other and adds. The result is that of the whole batch, in
      less memory. Inverse cloze embeds each part twice for it.
    pack: Whether short sequences share bins. Otherwise all are padded to the
      greatest length, and the step computes on the padding, too.
    max_shape_buckets: Number of shapes, at most, of the bins of packed
      sequences, all of which one compiled step has. With more of them, a step
      computes on less padding, and takes longer to compile.
    retrieve_on_device: Whether the step itself searches an exact index and
      gathers the candidates, in one compiled program.
    metric_writers: What shows the metrics, beside metrics.jsonl: "tensorboard",
      "wandb", or a `Tracker` of your own (`metric_writers.py`).
    steps_ahead: Number of steps whose batches are in preparation while a step
      computes. More of them hide a search that takes several steps, and
      `current_queries` are then as many steps old.
    auxiliary: Stages that take some of the steps.
  """

  model_dir: epath.PathLike
  data: DataConfig
  stage: Stage
  retriever: Annotated[Retriever, OfRun()]
  optimizer: OptimizerConfig
  # Devices count them in 32 bits.
  num_steps: Annotated[int, Range(least=0, most=2**31 - 1)]
  reader: Annotated[Reader | None, OfRun()] = None
  components: Annotated[Mapping[str, Component], OfRun()] = dataclasses.field(
    default_factory=dict
  )
  checkpoints: CheckpointConfig = CheckpointConfig()
  refresh: RefreshConfig = RefreshConfig()
  mesh: MeshConfig = MeshConfig()
  num_microbatches: PositiveInt = 1
  pack: bool = True
  max_shape_buckets: PositiveInt = 3
  retrieve_on_device: Annotated[bool, OfRun()] = False
  metric_writers: Sequence[Literal["tensorboard", "wandb"] | Tracker] = (
    "tensorboard",
  )
  steps_ahead: PositiveInt = 1
  auxiliary: Sequence[AuxiliaryStage] = ()

  def __post_init__(self) -> None:
    require_valid(self)
    retrieval = self.stage.retrieval
    frozen = {*self.optimizer.frozen}
    if self.optimizer.freeze_retriever_steps:
      frozen |= {"retriever"}
    for stage in self.stages:
      if stage.trained <= frozen:
        raise RealmError(
          f"a {type(stage).__name__} trains {', '.join(sorted(stage.trained))} "
          "alone, which FROZEN or FREEZE_RETRIEVER_STEPS keeps as it is; set "
          "FREEZE_RETRIEVER_STEPS = 0, or leave it out of FROZEN"
        )
    if self.retrieve_on_device and not (retrieval and retrieval.in_step):
      raise RealmError(
        f"retrieve_on_device=True: this {type(self.stage).__name__} does not "
        "retrieve inside its step; set RETRIEVE_ON_DEVICE = False"
      )
    if self.keeps_rolling_index and not self.retrieve_on_device:
      raise RealmError(
        f"BLOCKS_PER_STEP={self.refresh.blocks_per_step} has each step "
        "embed blocks where it searches them; set RETRIEVE_ON_DEVICE = True, "
        "too"
      )
    if self.keeps_rolling_index and self.refresh.wait_for_snapshots:
      raise RealmError(
        "a run with BLOCKS_PER_STEP keeps a rolling index and has no "
        "snapshots to wait for; set WAIT_FOR_SNAPSHOTS = False"
      )
    if self.data.corpus_version is not None:
      raise RealmError(
        f"corpus_version={self.data.corpus_version}; a run reads the version "
        "that it began with: leave DataConfig.corpus_version out"
      )
    shares = [one.share for one in self.auxiliary]
    if sum(shares) >= 1 or (shares and self.steps_ahead > 1):
      raise RealmError(
        f"auxiliary stages take {shares} of the steps, with STEPS_AHEAD="
        f"{self.steps_ahead}; leave some to STAGE, and set STEPS_AHEAD = 1"
      )
    names = [one.name for one in self.auxiliary]
    if len({*names, ""}) <= len(names):
      raise RealmError(
        f"the auxiliary stages are called {names}; give each a name of its own"
      )
    lag, kept = self.refresh.lag_steps, self.checkpoints
    if self.refresh_every_steps % kept.save_every_steps:
      raise RealmError(
        f"REFRESH_EVERY_STEPS={self.refresh_every_steps} is no multiple of "
        f"SAVE_EVERY_STEPS={kept.save_every_steps}: snapshots are built from "
        "checkpoints; change one of them"
      )
    if self.waits and lag > kept.keep_checkpoints * kept.save_every_steps:
      raise RealmError(
        f"lag_steps={lag} exceeds the {kept.keep_checkpoints} checkpoints, "
        f"{kept.save_every_steps} steps apart, that are kept: a checkpoint "
        "would be removed before its snapshot is due; lower LAG_STEPS or "
        "raise SAVE_EVERY_STEPS"
      )
    if self.waits and lag < self.steps_ahead:
      raise RealmError(
        f"with STEPS_AHEAD={self.steps_ahead} a snapshot would be waited for "
        f"before its checkpoint is saved; raise LAG_STEPS={lag}"
      )
    if self.waits and lag >= self.num_steps:
      logging.warning(
        "only the first snapshot will be used: the others are due "
        "lag_steps=%d after their checkpoints, in a run of %d steps",
        lag,
        self.num_steps,
      )

  def prefix_of(self, number: int) -> str:
    """Returns what stands before the names of a stage's metrics."""
    return f"{self.auxiliary[number - 1].name}/" if number else ""

  @property
  def stages(self) -> tuple[Stage, ...]:
    """The main stage, then those that are auxiliary."""
    return (self.stage, *(one.stage for one in self.auxiliary))

  def stage_of(self, step: int) -> int:
    """Returns the number among `stages` of the one that takes a step."""
    drawn = np.random.default_rng((self.data.seed, step)).random()
    limits = np.cumsum([one.share for one in self.auxiliary])
    place = int(np.searchsorted(limits, drawn, side="right"))
    return (place + 1) % len(self.stages)

  def data_of(self, number: int) -> DataConfig:
    """Returns the data of one of `stages`."""
    if not number:
      return self.data
    own = self.auxiliary[number - 1]
    names = "task", "split", "question_files", "other_lengths"
    changes = {name: getattr(own, name) for name in names}
    return dataclasses.replace(self.data, **changes)

  @property
  def all_components(self) -> Components:
    """All components of the run, by name."""
    named = {"retriever": self.retriever, "reader": self.reader}
    return Components({**named, **self.components})

  @property
  def refresh_every_steps(self) -> int:
    """Distance of the snapshots that are used, in steps."""
    return self.refresh.refresh_every_steps or self.checkpoints.save_every_steps

  @property
  def keeps_rolling_index(self) -> bool:
    """Whether the run itself embeds the blocks that it searches."""
    return self.refresh.blocks_per_step > 0

  @property
  def waits(self) -> bool:
    """Whether each step's snapshot follows from the step alone."""
    refresh = self.refresh
    return (
      self.stage.retrieval is not None
      and refresh.swap_snapshots
      and refresh.wait_for_snapshots
    )
