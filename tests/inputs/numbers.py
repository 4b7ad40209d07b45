"""Tasks over numbers, whose order and drops can be worked out by hand."""

import seqio
import tensorflow as tf

from realm_jax.inputs.features import plain_feature
from realm_jax.inputs.sources import RandomAccessSource


class Numbers:
  """`size` numbers from `first` on; it remembers which were looked up."""

  def __init__(self, size, first=0):
    self.first = first
    self.spec = {"number": tf.TensorSpec((), tf.int64)}
    self.size, self.read = size, []

  def __len__(self):
    return self.size

  def lookup(self, indices):
    self.read.extend(indices.tolist())
    return {"number": indices + self.first}


class NumbersSource(RandomAccessSource):
  """Gives each stream records of its own, `opened` last."""

  def __init__(self, size, first=0):
    super().__init__(splits=("train",))
    self.size, self.first, self.opened = size, first, None

  def open(self, split):
    self.opened = Numbers(self.size, self.first)
    return self.opened


def add_task(source, keep, *, name="numbers", preprocessors=(), buffer=None):
  @seqio.map_over_dataset
  def draw(record):
    return {
      "number": record["number"],
      "texts": tf.fill([record["number"] % 3], b"text"),
      "draw": tf.random.stateless_uniform((), record["seed"]),
      "position": record["position"],
    }

  seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[
      *preprocessors,
      draw,
      lambda examples: examples.filter(lambda e: keep(e["number"])),
    ],
    output_features={"number": plain_feature(tf.int64, rank=0)},
    shuffle_buffer_size=buffer,
  )
