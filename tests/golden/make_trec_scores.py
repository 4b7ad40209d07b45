"""Makes `tests/golden/trec_scores.npz`: what trec_eval says of random runs.

    .venv-peers/bin/python -m tests.golden.make_trec_scores

It needs pytrec-eval-terrier, which `make peers` installs. Runs and judgements
are those of `judged_runs`. The reciprocal rank is that of runs cut to their
first ten documents.
"""

from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).resolve().parent / "trec_scores.npz"
_NUM_QUERIES = 200
_MOST_DOCUMENTS = 150
# Names of measures in trec_eval and here.
MEASURES = {
  "ndcg_cut_10": "ndcg_at_10",
  "recall_100": "recall_at_100",
  "recip_rank": "mrr_at_10",
}


def judged_runs() -> list[tuple[dict[str, float], dict[str, int]]]:
  """The scores and the grades of documents, by id, for each query.

  Many scores are equal, also at ranks 10 and 100, some in float32 alone. Some
  documents are judged and not retrieved, some queries have no relevant one, and
  ids sort otherwise as numbers, in capitals and outside of ASCII.
  """
  rng = np.random.default_rng(0)
  runs = []
  for query in range(_NUM_QUERIES):
    ids = [f"{'dD文é'[i % 4]}{i}" for i in range(_MOST_DOCUMENTS)]
    retrieved = rng.permutation(ids)[: rng.integers(1, _MOST_DOCUMENTS + 1)]
    scores = rng.integers(0, 40, len(retrieved)) / 7 - 2
    scores += rng.integers(0, 2, len(retrieved)) * 1e-12
    judged = rng.permutation(ids)[: rng.integers(1, 40)]
    grades = rng.integers(-1, 1 if query % 10 == 0 else 4, len(judged))
    runs.append(
      (
        dict(zip(retrieved.tolist(), scores.tolist(), strict=True)),
        dict(zip(judged.tolist(), grades.tolist(), strict=True)),
      )
    )
  return runs


def _first(scores: dict[str, float], number: int) -> dict[str, float]:
  by_rank = sorted(scores, key=lambda i: (np.float32(scores[i]), i))
  return {i: scores[i] for i in by_rank[::-1][:number]}


def main() -> None:
  """Replaces the file."""
  # Only the environment of `make peers` has it.
  import pytrec_eval

  runs = judged_runs()
  judged = {str(i): grades for i, (_, grades) in enumerate(runs)}
  whole = {str(i): scores for i, (scores, _) in enumerate(runs)}
  cut = {i: _first(scores, 10) for i, scores in whole.items()}
  measures = pytrec_eval.RelevanceEvaluator(
    judged, {"ndcg_cut.10", "recall.100"}
  ).evaluate(whole)
  ranks = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(cut)
  arrays = {
    name: np.array([(measures[i] | ranks[i])[measure] for i in judged])
    for measure, name in MEASURES.items()
  }
  np.savez_compressed(OUTPUT, **arrays)


if __name__ == "__main__":
  main()
