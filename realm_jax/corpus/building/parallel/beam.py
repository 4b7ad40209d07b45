"""A build as Apache Beam pipelines: `pip install realm_jax[beam]`.

Two pipelines run, with the plan of shards between them in this process: one
that reads every file and makes parts, and one that makes shards of them. They
hand on paths; parts and shards are files that all workers can access.

DirectRunner uses this machine. For Dataflow, Flink and Spark, give the options
that Beam's documentation names, such as
`--runner=DataflowRunner --pipeline_options=--project=…`, and an output
directory on an object store.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from realm_jax.corpus.building.parallel.parts import PartMaker, part_paths
from realm_jax.corpus.building.parallel.plan import ShardPlan
from realm_jax.corpus.building.parallel.shards import ShardMaker
from realm_jax.corpus.building.sources.input_file import (
  InputFile,
  read_chunks,
)


@dataclasses.dataclass(frozen=True)
class BeamRunner:
  """Runs a build on a Beam runner, with options as on a command line."""

  runner: str
  options: Sequence[str] = ()
  # A pipeline may take hours, so it stops at the first malformed row.
  stops_at_malformed: bool = True
  uses_other_machines: bool = True

  @contextlib.contextmanager
  def start(self, make_part: PartMaker) -> "Iterator[_Run]":
    """Returns what runs the pipelines."""
    options = PipelineOptions([f"--runner={self.runner}", *self.options])
    yield _Run(make_part, options)


@dataclasses.dataclass(frozen=True)
class _Run:
  make_part: PartMaker
  options: PipelineOptions

  def make_parts(self, files: Sequence[InputFile]) -> Iterator[str]:
    """Makes the parts of all files; yields their paths in order."""
    with beam.Pipeline(options=self.options) as pipeline:
      _ = (
        pipeline
        | "Files" >> beam.Create(list(enumerate(files)))
        | "Spread files" >> beam.Reshuffle()
        | "Read" >> beam.FlatMap(lambda numbered: read_chunks(*numbered))
        | "Spread chunks" >> beam.Reshuffle()
        | "Make parts" >> beam.ParDo(_Call(self.make_part))
      )
    yield from part_paths(epath.Path(self.make_part.directory))

  def make_shards(self, make: ShardMaker, plans: Sequence[ShardPlan]) -> None:
    """Makes all shards."""
    with beam.Pipeline(options=self.options) as pipeline:
      _ = (
        pipeline
        | "Plans" >> beam.Create(plans)
        | "Spread plans" >> beam.Reshuffle()
        | "Make shards" >> beam.ParDo(_Call(make))
      )


class _Call(beam.DoFn):
  """Calls a function whose results are files."""

  def __init__(self, function: PartMaker | ShardMaker):
    self._function = function

  # Beam would compare more precise types with what it infers.
  def process(self, element: Any) -> None:
    self._function(element)
