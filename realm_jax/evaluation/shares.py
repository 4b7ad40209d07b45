"""The share of an evaluation that each of several processes does.

A process evaluates its own rows of each batch, with the whole model and the
whole index on its own devices, and waits for no other until its rows are done.
An index that lives on devices must therefore fit on those of one host: the
vectors of 13 million blocks, 128 bfloat16 numbers each, take 3.4 GB. Process 0
gathers what all have found, and writes it.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax

from realm_jax.evaluation.trained_model import TrainedModel, whole_batch
from realm_jax.generations.loading import Generation
from realm_jax.inputs.batch import Batch
from realm_jax.inputs.batches import BatchStream
from realm_jax.inputs.config import DataConfig
from realm_jax.partitioning import processes
from realm_jax.partitioning.agreement import Agreement
from realm_jax.partitioning.sharding import RowGroups

T = TypeVar("T")
# The key-value store of the processes refuses values of several megabytes.
_CHARACTERS_PER_PIECE = 1 << 19


class Share:
  """This process's share of an evaluation; all of it, if it is alone.

  All processes must call the same methods in the same order.

  Args:
    configs: Arguments of the evaluation, which all processes must have alike.

  Raises:
    ProcessesError: An argument differs, or a process has failed.
  """

  def __init__(self, **configs: Any):
    self.agreement = Agreement("evaluation")
    devices = {"the number of devices of a process": jax.local_device_count()}
    self.agreement.require_same(configs | devices)

  @property
  def writes(self) -> bool:
    """Whether this is process 0, which writes what all have found."""
    return self.agreement.is_leader

  @contextlib.contextmanager
  def batches(
    self, data: DataConfig, *, shuffle: bool = True, repeat: bool = True
  ) -> Iterator[Iterator[Batch]]:
    """Opens this process's rows of all batches, a `BatchStream`.

    The size of global batches is rounded up to a multiple of all devices.
    Without `repeat`, some processes have a batch more than others. The batches
    raise `ProcessesError` once another process has failed.
    """
    count, index = self.agreement.count, self.agreement.index
    size = count * whole_batch(-(-data.batch_size // count))
    rows = RowGroups(count, (index,)).own_rows(size)
    data = dataclasses.replace(data, batch_size=size)
    stream = BatchStream(data, rows=rows, shuffle=shuffle, repeat=repeat)
    with contextlib.closing(stream):
      yield self._watched(stream)

  def _watched(self, stream: BatchStream) -> Iterator[Batch]:
    for batch in stream:
      processes.require_no_failure()
      yield batch

  def require_same(self, model: TrainedModel, generation: Generation) -> None:
    """Checks that all processes have loaded the same.

    Raises:
      ProcessesError: They have not, or one has failed.
    """
    self.agreement.require_same(
      {
        "the checkpoint": model.step,
        "the generation": generation.step,
        "the corpus": generation.corpus.fingerprint,
      }
    )

  def gathered(self, what: str, found: T) -> list[T]:
    """Returns what all processes have found to process 0; to others, nothing.

    A value, which JSON can hold, may be large: it is exchanged in pieces.

    Raises:
      ProcessesError: A process has failed.
    """
    if self.agreement.count == 1:
      return [found]
    text = json.dumps(found)
    starts = range(0, len(text), _CHARACTERS_PER_PIECE)
    pieces = [text[start : start + _CHARACTERS_PER_PIECE] for start in starts]
    most = self.agreement.exchange(f"pieces of {what}", len(pieces), max)
    # Process 0 alone applies the rule, to what all give.
    by_piece: list[Sequence[str]] = []
    for number in range(most):
      piece = pieces[number] if number < len(pieces) else ""
      self.agreement.exchange(f"{what}, {number}", piece, by_piece.append)
    return [json.loads("".join(own)) for own in zip(*by_piece, strict=True)]
