"""Tasks over numbers, whose order and drops can be worked out by hand."""

import itertools

import numpy as np
import seqio
import tensorflow as tf

from realm_jax.inputs.batches import stream_batches
from realm_jax.inputs.features import plain_feature
from realm_jax.inputs.sources import RandomAccessSource


class Numbers(RandomAccessSource):
  """`size` numbers from `first` on, which are their own records."""

  def __init__(self, size, first=0):
    super().__init__(splits=("train",))
    self.spec = {"number": tf.TensorSpec((), tf.int64)}
    self.size, self.first = size, first

  def open(self, split):
    return self

  def __len__(self):
    return self.size

  def lookup(self, indices):
    return {"number": indices + self.first}


def lines(path, size):
  """The same numbers as lines of a file, without random access."""
  path.write_text("".join(f"{number}\n" for number in range(size)))
  return seqio.TextLineDataSource({"train": str(path)})


def not_a_third(number):
  return number % 3 != 0


def add_task(source, *, name="numbers", keep=not_a_third, then=None):
  """Adds a task that keeps some numbers and draws one more for each."""

  @seqio.map_over_dataset
  def draw(record):
    number = (
      tf.strings.to_number(record["text"], tf.int64)
      if "text" in record
      else record["number"]
    )
    return {
      "number": number,
      "texts": tf.fill([number % 3], b"text"),
      "draw": tf.random.stateless_uniform((), record["seed"]),
      "position": record["position"],
    }

  seqio.TaskRegistry.add(
    name,
    source=source,
    preprocessors=[
      draw,
      lambda examples: examples.filter(lambda e: keep(e["number"])),
      *([then] if then else []),
    ],
    output_features={"number": plain_feature(tf.int64, rank=0)},
  )


def some(config, num, **arguments):
  """The first batches of a stream, which is closed."""
  stream = stream_batches(config, **arguments)
  batches = list(itertools.islice(stream, num))
  stream.close()
  return batches


def joined(batches):
  """The position, number and draw of all examples, a row for each batch."""
  return {
    "position": np.stack([batch.positions for batch in batches]),
    "number": np.stack([batch.arrays["number"] for batch in batches]),
    "draw": np.stack([batch.arrays["draw"] for batch in batches]),
    "num_texts": np.stack(
      [(batch.host["texts"] == b"text").sum(1) for batch in batches]
    ),
  }
