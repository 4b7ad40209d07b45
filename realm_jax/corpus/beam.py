"""A build as an Apache Beam pipeline: `pip install realm_jax[beam]`.

The record of each shard is a small file of JSON, which this process reads when
the pipeline has ended.

DirectRunner uses this machine. For Dataflow, Flink and Spark, give the options
that Beam's documentation names, such as
`--runner=DataflowRunner --pipeline_options=--project=…`, and an output
directory on an object store.
"""

import dataclasses
import json
from collections.abc import Generator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from realm_jax.corpus.build import Built, Piece, PieceBuilder
from realm_jax.storage.atomic import atomic_file


@dataclasses.dataclass(frozen=True)
class BeamRunner:
  """Runs a build on a Beam runner, with options as on a command line."""

  runner: str
  options: Sequence[str] = ()
  uses_other_machines: bool = True

  def build(
    self, builder: PieceBuilder, groups: Sequence[Sequence[Piece]]
  ) -> Generator[Built, None, None]:
    """Runs the pipeline; yields what it built, in order."""
    records = epath.Path(builder.directory) / "records"
    records.rmtree(missing_ok=True)
    options = PipelineOptions([f"--runner={self.runner}", *self.options])
    with beam.Pipeline(options=options) as pipeline:
      _ = (
        pipeline
        | "Groups" >> beam.Create(list(groups))
        | "Spread groups" >> beam.Reshuffle()
        | "Deal" >> beam.FlatMap(builder.deal)
        | "Spread pieces" >> beam.Reshuffle()
        | "Build" >> beam.ParDo(_Build(builder, str(records)))
      )
    for path in sorted(records.glob("*.json")):
      yield json.loads(path.read_text())
    records.rmtree(missing_ok=True)


class _Build(beam.DoFn):
  """Builds a piece, and writes its record to a file."""

  def __init__(self, builder: PieceBuilder, records: str):
    self._builder = builder
    self._records = records

  # Beam would compare more precise types with what it infers.
  def process(self, element: Any) -> None:
    text = json.dumps(self._builder.build(element))
    path = epath.Path(self._records) / f"{element.number:08d}.json"
    # A piece that is built twice, perhaps at the same time, gives the same.
    with atomic_file(path, several_writers=True) as partial:
      partial.write_text(text)
