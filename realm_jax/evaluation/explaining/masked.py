"""Explains a sentence with [MASK]: what each candidate adds to its filling."""

import numpy as np
from jaxtyping import Float, Int, Int32
from scipy.special import log_softmax

from realm_jax.corpus.store import NULL_ROW
from realm_jax.evaluation.explaining import fillings as best
from realm_jax.evaluation.explaining import programs
from realm_jax.evaluation.explaining.errors import ExplanationError
from realm_jax.evaluation.explaining.marginal import Marginal, marginalize
from realm_jax.evaluation.explaining.masked_text import (
  MaskedQuery,
  MaskLimits,
  VerbatimSentence,
  masked_query,
)
from realm_jax.evaluation.explaining.results import (
  Block,
  Candidate,
  CandidateAnswer,
  Explanation,
  Filling,
)
from realm_jax.evaluation.explaining.unaided import UnaidedModel
from realm_jax.evaluation.ranking import BlockRanker
from realm_jax.evaluation.trained_model import TrainedModel, whole_batch
from realm_jax.generations.loading import Generation
from realm_jax.partitioning import sharding

# Fillings that are compared to say what a candidate alone would fill in.
_BEST = 1


class MaskedExplainer:
  """Explains masked sentences with one checkpoint and one generation.

  The candidates are those of pre-training: the null block and the blocks that
  the generation's own query tower finds, all embedded again with the
  checkpoint's parameters. A free sentence has no source to leave out.

  Args:
    model: Checkpoint of a run of pre-training.
    generation: Generation to search.
    num_candidates: Number of candidates, the null block included.
    limits: Lengths of sentences.
    num_fillings: Number of the best fillings to report.

  Raises:
    ExplanationError: There are fewer than two candidates.
  """

  def __init__(
    self,
    model: TrainedModel,
    generation: Generation,
    *,
    num_candidates: int,
    limits: MaskLimits,
    num_fillings: int,
  ):
    if num_candidates < 2:
      raise ExplanationError(
        f"num_candidates={num_candidates}; want 2 or more, the null block and "
        "a block: change NUM_CANDIDATES"
      )
    self._model, self._generation = model, generation
    self._num_fillings = num_fillings
    self._limits = limits
    self._words = generation.corpus.vocabulary
    self._ranker = BlockRanker(
      model,
      generation,
      num_searched=num_candidates - 1,
      current_queries=False,
    )
    models = model.models
    reader = models.require_reader()
    self._score = sharding.jit_on_mesh(
      programs.score_candidates,
      models.retriever,
      mesh=model.mesh,
      out_shardings=sharding.batch_sharding(model.mesh),
    )
    self._read = sharding.jit_on_mesh(
      programs.mask_logits_of_first,
      reader,
      mesh=model.mesh,
      out_shardings=sharding.replicated(model.mesh),
    )

  def explain(
    self, text: str, answer: str | None, unaided: UnaidedModel | None
  ) -> Explanation:
    """Explains a filling of the sentence, the most likely one if none is given.

    Raises:
      ExplanationError: The sentence or the answer does not fit.
    """
    masked = masked_query(text, answer, self._words, self._limits)
    rows, scores, log_probs = self._read_candidates(masked)
    order = np.argsort(-scores[1:], kind="stable") + 1
    order = np.concatenate([[0], order])
    rows, scores, log_probs = rows[order], scores[order], log_probs[order]
    log_prior = log_softmax(scores)
    found = best.best_fillings(log_prior, log_probs, self._num_fillings)
    targets = found.token_ids[0]
    if masked.target_ids is not None:
      targets = np.array(masked.target_ids)
    by_token = best.log_likelihoods(log_probs, targets[None])[0]
    marginal = marginalize(scores, by_token.sum(axis=-1))
    explained = masked.filling_text(self._words, targets.tolist())
    candidates = self._candidates(
      rows, scores, log_probs, by_token, marginal, masked
    )
    null = float(marginal.log_likelihoods[0])
    return Explanation(
      text=text,
      kind="masked sentence",
      read=self._words.decode(list(masked.read_ids)),
      answer=explained if answer is None else answer,
      answer_is_given=answer is not None,
      wordpieces=[self._words.pieces[i] for i in targets.tolist()],
      log_likelihood=marginal.log_likelihood,
      log_likelihood_null=null,
      utility=marginal.log_likelihood - null,
      candidates=candidates,
      fillings=[
        Filling(
          masked.filling_text(self._words, token_ids.tolist()),
          float(np.exp(total)),
          without_retrieval=float(np.exp(of_each[0])),
        )
        for token_ids, total, of_each in zip(*found, strict=True)
      ],
      unaided=(
        None
        if unaided is None
        else unaided.fill(text, answer, self._num_fillings)
      ),
      notes=self._notes(masked, targets, candidates),
      checkpoint=self._model.step,
      generation=self._generation.step,
    )

  def _read_candidates(
    self, masked: MaskedQuery
  ) -> tuple[
    Int[np.ndarray, " k"],
    Float[np.ndarray, " k"],
    Float[np.ndarray, "k m v"],
  ]:
    """Returns rows, f(x,z) and log p(·|z,x) at the masks, the null first."""
    query = masked.query(self._words, self._limits.query_length)
    queries: Int32[np.ndarray, "b q"] = np.tile(query, (whole_batch(1), 1))
    found = self._ranker.search(queries).rows[0]
    rows = np.concatenate([[NULL_ROW], found])
    length = self._model.source.block_length
    blocks = self._generation.corpus.gather(rows, length)
    positions = masked.mask_positions(self._limits.max_masks)
    batch = sharding.to_devices(
      {
        "query": queries,
        "candidates": np.tile(blocks, (len(queries), 1, 1)),
        "positions": np.tile(positions, (len(queries), 1)),
      },
      self._model.mesh,
    )
    params = self._model.params
    logits = self._read(params["reader"], **batch)
    del batch["positions"]
    scores = self._score(params["retriever"], **batch)
    log_probs = log_softmax(
      np.asarray(logits, np.float64)[:, : masked.num_masks], axis=-1
    )
    return rows, np.asarray(scores, np.float64)[0], log_probs

  def _candidates(
    self,
    rows: Int[np.ndarray, " k"],
    scores: Float[np.ndarray, " k"],
    log_probs: Float[np.ndarray, "k m v"],
    by_token: Float[np.ndarray, "k m"],
    marginal: Marginal,
    masked: MaskedQuery,
  ) -> list[Candidate]:
    corpus = self._generation.corpus
    verbatim = VerbatimSentence.of(
      masked, self._words.mask_id, self._limits.max_masks
    )
    made = []
    for k, row in enumerate(rows.tolist()):
      alone = best.most_likely(log_probs[k], _BEST)
      sure = best.log_likelihoods(log_probs[k : k + 1], alone).sum()
      log_likelihood = float(marginal.log_likelihoods[k])
      made.append(
        Candidate(
          source=Block.of(corpus, row),
          score=float(scores[k]),
          probability=float(np.exp(marginal.log_prior[k])),
          log_likelihood=log_likelihood,
          token_log_likelihoods=by_token[k].tolist(),
          share=marginal.share(k),
          utility=log_likelihood - float(marginal.log_likelihoods[0]),
          reward=marginal.reward(k),
          best=CandidateAnswer(
            masked.filling_text(self._words, alone[0].tolist()),
            float(np.exp(sure)),
          ),
          contains_sentence=row != NULL_ROW
          and verbatim.is_in(corpus.block(row).body_token_ids),
        )
      )
    return made

  def _notes(
    self,
    masked: MaskedQuery,
    targets: Int[np.ndarray, " m"],
    candidates: list[Candidate],
  ) -> list[str]:
    notes = []
    if masked.is_cut:
      notes.append(
        f"the sentence has {len(masked.token_ids)} wordpieces, of which the "
        f"model reads {masked.num_read}, around the masks"
      )
    if masked.target_ids and self._words.unk_id in targets:
      notes.append(
        "the answer has words that the vocabulary lacks; the model reads them "
        "as [UNK]"
      )
    return notes + verbatim_notes(candidates)


def verbatim_notes(candidates: list[Candidate]) -> list[str]:
  """Names the candidates whose retrieval is trivial."""
  names = [c.source.block for c in candidates if c.contains_sentence]
  if not names:
    return []
  return [
    f"the sentence occurs word for word in {', '.join(names)}: trivial "
    "retrieval, which training leaves out"
  ]
