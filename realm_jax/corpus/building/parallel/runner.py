"""What runs the steps of a build."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from realm_jax.corpus.building.parallel.parts import PartMaker
from realm_jax.corpus.building.parallel.plan import ShardPlan
from realm_jax.corpus.building.parallel.shards import ShardMaker
from realm_jax.corpus.building.sources.input_file import InputFile


@runtime_checkable
class Run(Protocol):
  """One build's processes."""

  def make_parts(self, files: Sequence[InputFile]) -> Iterator[str]:
    """Makes the parts of all files; yields their paths in order."""
    ...

  def make_shards(self, make: ShardMaker, plans: Sequence[ShardPlan]) -> None:
    """Makes all shards."""
    ...


@runtime_checkable
class Runner(Protocol):
  """Starts the processes of a build."""

  @property
  def stops_at_malformed(self) -> bool:
    """Whether a malformed row ends the build when it is met.

    If not, it does so when all parts before it have been read.
    """
    ...

  @property
  def uses_other_machines(self) -> bool:
    """Whether the processes may have no access to this machine's files."""
    ...

  def start(
    self, make_part: PartMaker
  ) -> contextlib.AbstractContextManager[Run]:
    """Returns a context of running processes."""
    ...
