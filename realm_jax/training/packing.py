"""From padded batches to packed ones: the same step without the padding.

A packed batch has, in place of padded queries and blocks, what towers and
reader read (`queries`, `blocks`, `joint`), each as `Sequences`.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, UInt32

from realm_jax.models.packing import lay_out
from realm_jax.training.rooms import Room, holds, plan_parts, room_for
from realm_jax.training.step_texts import StepTexts


class BatchPacker:
  """Packs the padded batches of one stage.

  Args:
    step_texts: of the stage.
    rooms: from the smallest to one in which any batch fits.
  """

  def __init__(self, step_texts: StepTexts, rooms: Sequence[Room]):
    self._step_texts = step_texts
    self.rooms = tuple(rooms)

  def __call__(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The packed batch, in the smallest room that holds it."""
    texts, rest = self._step_texts(arrays)
    plans = plan_parts(texts, self._step_texts.groups)
    needed = room_for(plans)
    fits = [room for room in self.rooms if holds(room, needed)]
    # Only the last room of several processes is the same for all of them.
    room = fits[0] if jax.process_count() == 1 else self.rooms[-1]
    laid_out = {
      name: lay_out(
        plan,
        texts[name],
        num_rows=room[name],
        numbers=self._numbers(name, texts[name]),
      )
      for name, plan in plans.items()
    }
    return rest | laid_out

  def _numbers(
    self, name: str, text: Int[np.ndarray, "n l"]
  ) -> UInt32[np.ndarray, " n"]:
    """What is the same for a sequence on however many devices.

    A block that is on several of them for several queries has one number.
    """
    if name == "blocks" and "joint" in self._step_texts.parts:
      return np.array([zlib.crc32(row.tobytes()) for row in text], np.uint32)
    first = jax.process_index() * len(text)
    return np.arange(first, first + len(text), dtype=np.uint32)
