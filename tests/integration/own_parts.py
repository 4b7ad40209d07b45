"""A stage, a reader, an index and the like that are in no package."""

import dataclasses
from typing import TextIO

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from realm_jax.evaluation.ask import answer_from_blocks
from realm_jax.evaluation.result import Answer, Result
from realm_jax.indexes import protocol
from realm_jax.models import sequences
from realm_jax.models.packing import TokenSequences, padded_inputs
from realm_jax.objectives.distillation import distilled
from realm_jax.objectives.masked_lm import OBJECTIVES, Objective
from realm_jax.training.stages.pretraining import Pretraining


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Writes the losses of steps to a file in MODEL_DIR."""

  file: str = "tracked.txt"

  def open(self, model_dir):
    return TrackerFile((model_dir / self.file).open("a"))


@dataclasses.dataclass
class TrackerFile:
  """The open file of a `Tracker`."""

  file: TextIO

  def write_scalars(self, step, scalars):
    self.file.write(f"{step} {scalars['loss']}\n")

  def flush(self):
    self.file.flush()

  def close(self):
    self.file.close()


class Writer(nn.Module):
  """An encoder of means and a decoder that sums: it writes word by word."""

  vocab_size: int | None = None
  size: int = 8
  num_heads = 1
  dropout_rate = 0.0

  def setup(self):
    self.words = nn.Embed(self.vocab_size, self.size)
    self.hidden = nn.Dense(self.size)

  def join(self, query, candidates, token_ids=None):
    joint = sequences.join(query, candidates, joint_length=56, separator_id=3)
    return TokenSequences(joint.token_ids.reshape(-1, 56))

  def token_logits(self, inputs, positions, token_ids):
    read = sequences.mean(inputs, self.words(inputs.token_ids))
    before = jnp.pad(token_ids, ((0, 0), (1, 0)))[:, :-1]
    written = jnp.cumsum(self.words(before), axis=1)[:, None]
    read = read.reshape(len(token_ids), -1, 1, self.size)
    return self.words.attend(jnp.tanh(self.hidden(read + written)))

  def init_parameters(self, key, *, query_length, block_length):
    query = jnp.ones((1, query_length), jnp.int32)
    inputs = padded_inputs(self.join(query, query[:, None]))
    given = inputs, query[:, :1], query[:, :1]
    return self.init(key, *given, method="token_logits")["params"]

  def for_vocabulary(self, *, vocab_size, separator_id):
    return self.clone(vocab_size=vocab_size)


@answer_from_blocks.register
def written_answers(
  reader: Writer, run, questions, token_ids, hits, answer=None
):
  def first_words(reader, params, query, blocks):
    inputs = padded_inputs(reader.join(query, blocks))
    none = jnp.zeros((len(query), 1), jnp.int32)
    logits = reader.apply(
      {"params": params}, inputs, none, none, method="token_logits"
    )
    return jax.nn.softmax(logits[:, :, 0])

  rows = np.array([[hit.block.row for hit in own] for own in hits])
  p = run.compute(
    first_words,
    reader,
    run.params["reader"],
    query=token_ids,
    blocks=run.gather(rows),
  )
  results = []
  for i, question in enumerate(questions):
    prior = np.array([hit.probability for hit in hits[i]])
    prior /= prior.sum()
    total = prior @ p[i]
    word = int(total.argmax())
    shares = prior * p[i][:, word] / total[word]
    answer = Answer(
      run.vocabulary.decode([word]),
      float(total[word]),
      shares=shares.tolist(),
    )
    results.append(
      Result(
        text=question,
        kind="question",
        answer=answer.text,
        probability=answer.probability,
        answers=[answer],
        hits=hits[i],
        source=run.source,
      )
    )
  return results


def best_block(evidence, *, form="per_token"):
  best = jnp.argmax(evidence.target_likelihood, axis=-1)[:, None]
  log_prior = jnp.take_along_axis(evidence.log_prior, best, axis=-1)[:, 0]
  return distilled(evidence, -log_prior, form=form)


OBJECTIVES["best_block"] = Objective(best_block)


@dataclasses.dataclass(frozen=True)
class OwnIndexConfig(protocol.IndexConfig):
  kind = "own"

  def build(self, blocks, directory=None):
    vectors = np.asarray(blocks.embedded()[:], np.float32)
    if directory is not None:
      directory.mkdir()
      np.save(directory / "vectors.npy", vectors)
    return OwnIndex(vectors)

  def load(self, directory, blocks):
    return OwnIndex(np.load(directory / "vectors.npy"))


class OwnIndex(protocol.Index):
  kind, needs_vectors = "own", True

  def __init__(self, vectors):
    self.num_blocks, self.vectors = len(vectors), vectors

  def search(self, queries, k):
    scores = queries.vectors @ self.vectors.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
    return protocol.in_order(rows, np.take_along_axis(scores, rows, axis=1))


protocol.CONFIGS["own"] = ("own_parts", "OwnIndexConfig")


@dataclasses.dataclass(frozen=True)
class OwnStage(Pretraining):
  """Searches again for the query with the best block that was found."""

  num_searches = 2
  asked = "question"

  def next_queries(self, batch, found, context):
    query, best = batch.array("query"), context.gather(found.rows[:, :1])
    joint = sequences.join(query, best, joint_length=56, separator_id=3)
    return np.asarray(joint.token_ids)[:, 0]


@dataclasses.dataclass(frozen=True)
class BrokenStage(OwnStage):
  def loss(self, encoders, batch, inputs):
    raise ValueError("a bug")


@dataclasses.dataclass(frozen=True)
class BrokenIndexConfig(OwnIndexConfig):
  def build(self, blocks, directory=None):
    raise ValueError("a bug")
