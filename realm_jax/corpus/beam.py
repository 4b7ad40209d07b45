"""A build as an Apache Beam pipeline: `pip install realm_jax[beam]`.

One worker reads the input and deals its pieces to the others. The record of
each shard is a small file of JSON, which this process reads when the pipeline
has ended.

DirectRunner uses this machine, and holds the input in memory. For Dataflow,
Flink and Spark, give the options that Beam's documentation names, such as
`--runner=DataflowRunner --pipeline_options=--project=…`, and an output
directory on an object store.
"""

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from etils import epath

from realm_jax.corpus.block_builder import Built
from realm_jax.corpus.sources import DocumentSource, Piece
from realm_jax.storage.atomic import atomic_file


def map_pieces(
  build: Callable[[Piece], Built],
  source: DocumentSource,
  piece_bytes: int,
  directory: epath.Path,
  options: Sequence[str],
) -> Generator[Built, None, None]:
  """Runs the pipeline; yields what it built, in order."""
  records = directory / "records"
  records.rmtree(missing_ok=True)
  with beam.Pipeline(options=PipelineOptions([*options])) as pipeline:
    _ = (
      pipeline
      | "Source" >> beam.Create([source])
      | "Deal" >> beam.FlatMap(DocumentSource.pieces, piece_bytes)
      | "Spread" >> beam.Reshuffle()
      | "Build" >> beam.Map(_build, build, str(records))
    )
  for path in sorted(records.glob("*.json")):
    yield json.loads(path.read_text())
  records.rmtree(missing_ok=True)


# Beam would compare more precise types with what it infers.
def _build(piece: Any, build: Any, records: str) -> None:
  """Builds a piece, and writes its record to a file."""
  text = json.dumps(build(piece))
  # A piece that is built twice, perhaps at the same time, gives the same.
  path = epath.Path(records) / f"{piece.number:08d}.json"
  with atomic_file(path, several_writers=True) as partial:
    partial.write_text(text)
