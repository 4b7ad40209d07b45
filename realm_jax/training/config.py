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
  """When a run saves checkpoints, and where its initial parameters come from.

  Attributes:
    save_every_steps: Steps between checkpoints, and thus between snapshots.
    keep_checkpoints: Number of latest checkpoints to keep; step 0 is always
      kept.
    initial_checkpoint: MODEL_DIR of the previous stage, or one of its
      checkpoints.
    initial_reader: MODEL_DIR or checkpoint from which to take the reader
      instead.
  """

  save_every_steps: PositiveInt = 500
  keep_checkpoints: PositiveInt = 3
  initial_checkpoint: epath.PathLike | None = None
  initial_reader: epath.PathLike | None = None

  def __post_init__(self) -> None:
    require_valid(self)

  def source_of(self, component: str) -> epath.PathLike | None:
    """Returns the checkpoint that a component starts from, if any."""
    reader = self.initial_reader if component == "reader" else None
    return reader or self.initial_checkpoint


@dataclasses.dataclass(frozen=True)
class RefreshConfig:
  """How a run follows the index builder, or keeps a rolling index.

  Attributes:
    swap_snapshots: Whether later snapshots are swapped in at all; open QA keeps
      its first one.
    wait_for_snapshots: Whether the snapshot of checkpoint c is used from
      exactly step c + lag_steps on. The trainer then waits for it, and the run
      is deterministic. Otherwise the newest loaded snapshot is used.
    lag_steps: Steps between a checkpoint and the use of its snapshot; only with
      `wait_for_snapshots`.
    refresh_every_steps: Steps between the snapshots that are used; others are
      ignored. None uses the snapshots of all checkpoints.
    max_staleness_steps: Maximum age of the oldest vector, in steps. None is ten
      times the distance between snapshots, and 0 sets no limit.
    on_stale: Action beyond this limit, `warn` or `fail`.
    timeout_seconds: Seconds to wait for a snapshot before giving up.
    blocks_per_step: Number of blocks that each step embeds again, over all
      devices, in a rolling index that the run keeps itself. With 0 the run
      follows an index builder.
    rolling_refresh_dtype: Type of the rolling index's vectors, `float32` or
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
  """How parameters, optimizer state and work are sharded over the devices.

  The remaining factor of the number of devices is data parallelism, with
  replicated parameters.

  Attributes:
    fsdp: Number of devices that share parameters and optimizer state, and also
      the batch (fully sharded data parallelism). A step gathers each layer's
      parameters when it needs them.
    model_parallelism: Number of devices that share the vocabulary, the
      attention heads and the feed-forward layers, and compute on the same
      examples.
    axis_rules: Pairs of a logical axis and the mesh axis or axes over which it
      is sharded, or None. They precede `sharding.LOGICAL_AXIS_RULES`.
  """

  fsdp: PositiveInt = 1
  model_parallelism: PositiveInt = 1
  axis_rules: Sequence[tuple[str, str | Sequence[str] | None]] = ()

  def __post_init__(self) -> None:
    require_valid(self)
    # Raises an error if a rule is wrong.
    _ = self.all_axis_rules

  @property
  def all_axis_rules(self) -> AxisRules:
    """All rules from logical axes to the mesh, the run's own first."""
    return with_defaults(self.axis_rules)


@dataclasses.dataclass(frozen=True)
class AuxiliaryStage:
  """An additional stage, to which some steps of a run belong.

  The stage of a step is a function of seed and step, and each stage has its own
  stream of examples, whose position checkpoints record: so a resumed run
  repeats both. Each step belongs to one stage, instead of summing all losses,
  so that a stage keeps its batch, its in-batch negatives and its program. All
  stages share one state and one optimizer. A step leaves parameters that its
  stage does not train, and their moments, unchanged. Only the main stage may
  search, which keeps everything about indexes as in a run of one stage.

  Attributes:
    name: Prefix of the stage's metrics, as in `judged/loss`.
    stage: Stage, which must not retrieve.
    share: Average share of the steps that belong to the stage.
    task, split, question_files, other_lengths: Data of the stage, as in
      `DataConfig`; seed, batch size and the other lengths are the run's.
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
    stage: Stage, which determines the components and the loss.
    retriever: Towers; they take the vocabulary of the corpus.
    num_steps: Steps of the whole run; the learning rate decays until then.
    reader: Reader, for stages that have one.
    components: Further components, by their names in the stage.
    mesh: Sharding of the parameters and the work.
    num_microbatches: Number of parts into which a step splits the batch. Their
      gradients are computed one after the other and added: the result is the
      same as for the whole batch, in less memory. Stages with in-batch
      negatives embed each part twice.
    pack: Whether short sequences share bins. Otherwise all are padded to the
      greatest length, and the step also computes on the padding.
    max_shape_buckets: Maximum number of bin counts for which a step is
      compiled. More of them mean less padding and a longer compilation.
    retrieve_on_device: Whether the step itself searches an exact index and
      gathers the candidates, in one compiled program.
    metric_writers: Writers of metrics, in addition to metrics.jsonl:
      "tensorboard", "wandb", or your own `Tracker` (`metric_writers.py`).
    steps_ahead: Number of steps whose batches are prepared while a step
      computes. More of them hide a search that takes several steps;
      `current_queries` are then `steps_ahead` steps old.
    auxiliary: Additional stages, to which some of the steps belong.
  """

  model_dir: epath.PathLike
  data: DataConfig
  stage: Stage
  retriever: Annotated[Retriever, OfRun()]
  optimizer: OptimizerConfig
  # Devices count steps in 32 bits.
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
    """Returns the prefix of the names of a stage's metrics."""
    return f"{self.auxiliary[number - 1].name}/" if number else ""

  @property
  def stages(self) -> tuple[Stage, ...]:
    """The main stage, followed by the auxiliary ones."""
    return (self.stage, *(one.stage for one in self.auxiliary))

  def stage_of(self, step: int) -> int:
    """Returns the index in `stages` of the stage to which a step belongs."""
    drawn = np.random.default_rng((self.data.seed, step)).random()
    limits = np.cumsum([one.share for one in self.auxiliary])
    place = int(np.searchsorted(limits, drawn, side="right"))
    return (place + 1) % len(self.stages)

  def data_of(self, number: int) -> DataConfig:
    """Returns the data of one of `stages`."""
    if not number:
      return self.data
    auxiliary = self.auxiliary[number - 1]
    names = "task", "split", "question_files", "other_lengths"
    changes = {name: getattr(auxiliary, name) for name in names}
    return dataclasses.replace(self.data, **changes)

  @property
  def all_components(self) -> Components:
    """All components of the run, by name."""
    named = {"retriever": self.retriever, "reader": self.reader}
    return Components({**named, **self.components})

  @property
  def refresh_every_steps(self) -> int:
    """Number of steps between the snapshots that are used."""
    return self.refresh.refresh_every_steps or self.checkpoints.save_every_steps

  @property
  def keeps_rolling_index(self) -> bool:
    """Whether the run keeps a rolling index, instead of using a builder."""
    return self.refresh.blocks_per_step > 0

  @property
  def waits(self) -> bool:
    """Whether the snapshot of each step is a function of the step."""
    refresh = self.refresh
    return (
      self.stage.retrieval is not None
      and refresh.swap_snapshots
      and refresh.wait_for_snapshots
    )
