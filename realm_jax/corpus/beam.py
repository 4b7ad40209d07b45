"""A build as Apache Beam pipelines: `pip install realm_jax[beam]`.

One pipeline reads ids, and one makes shards. What a task gives is a small file
of JSON, which this process reads when its pipeline has ended.

DirectRunner uses this machine. For Dataflow, Flink and Spark, give the options
that Beam's documentation names, such as
`--runner=DataflowRunner --pipeline_options=--project=…`, and an output
directory on an object store.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from realm_jax.corpus.build import PieceBuilder
from realm_jax.files.whole.whole_file import whole_file


@dataclasses.dataclass(frozen=True)
class BeamRunner:
  """Runs a build on a Beam runner, with options as on a command line."""

  runner: str
  options: Sequence[str] = ()
  uses_other_machines: bool = True

  @contextlib.contextmanager
  def start(self, builder: PieceBuilder) -> "Iterator[_Run]":
    """Returns what runs the pipelines."""
    options = PipelineOptions([f"--runner={self.runner}", *self.options])
    yield _Run(builder, options)


@dataclasses.dataclass(frozen=True)
class _Run:
  builder: PieceBuilder
  options: PipelineOptions

  def map(
    self,
    deal: Callable[[PieceBuilder, Any], Iterable[Any]],
    function: Callable[[PieceBuilder, Any], Any],
    groups: Sequence[Any],
  ) -> Iterator[Any]:
    """Runs a pipeline; yields what tasks gave, in the order of their names."""
    builder = self.builder
    results = epath.Path(builder.directory) / "results"
    results.rmtree(missing_ok=True)
    call = _Call(builder, function, str(results))
    with beam.Pipeline(options=self.options) as pipeline:
      _ = (
        pipeline
        | "Files" >> beam.Create(list(groups))
        | "Spread files" >> beam.Reshuffle()
        | "Deal" >> beam.FlatMap(lambda group: deal(builder, group))
        | "Spread tasks" >> beam.Reshuffle()
        | "Run tasks" >> beam.ParDo(call)
      )
    for path in sorted(results.glob("*.json")):
      yield json.loads(path.read_text())
    results.rmtree(missing_ok=True)


class _Call(beam.DoFn):
  """Calls a function, and writes what it gives to a file."""

  def __init__(
    self,
    builder: PieceBuilder,
    function: Callable[[PieceBuilder, Any], Any],
    results: str,
  ):
    self._builder = builder
    self._function = function
    self._results = results

  # Beam would compare more precise types with what it infers.
  def process(self, element: Any) -> None:
    text = json.dumps(self._function(self._builder, element))
    path = epath.Path(self._results) / f"{element.name}.json"
    # A task that is run twice, perhaps at the same time, gives the same.
    with whole_file(path, several_writers=True) as partial:
      partial.write_text(text)
