"""Detects that joint training destroys the retriever."""

from collections.abc import Mapping

# Below these values a metric has nowhere to fall: with one candidate beside
# the null block, the entropy is always near 0.
_MIN_BEST = {"recall": 0.02, "candidate_entropy": 0.1}
# Utility, in nats per token, above which candidates help.
_USEFUL = 0.05
# Share of its best value below which recall or entropy has fallen.
_FALLEN = 0.6
# Weight of a step in the exponential means.
_SMOOTHING = 0.05
# Number of steps before the first warning, and between two.
_PATIENCE_STEPS = 50


class CollapseMonitor:
  """Watches the smoothed utility, recall and entropy of p(z|x).

  A reader that cannot use its candidates sends noise to the retriever: the
  retrieval utility stays near zero while recall falls from its best, or
  p(z|x) concentrates on few candidates. More steps then make it worse. The
  first steps, which do not train the retriever, are ignored.
  """

  def __init__(self, freeze_retriever_steps: int = 0):
    self._ignored = freeze_retriever_steps
    self._means: dict[str, float] = {}
    self._best: dict[str, float] = {}
    self._quiet_until = _PATIENCE_STEPS
    self._seen = 0

  def update(self, step: int, metrics: Mapping[str, float]) -> str | None:
    """Takes the metrics after `step` steps; returns a warning if one is due."""
    names = ("retrieval_utility", "recall", "candidate_entropy")
    if step <= self._ignored or not metrics.keys() >= {*names}:
      return None
    self._seen += 1
    for name in names:
      mean = self._means.get(name, metrics[name])
      mean += _SMOOTHING * (metrics[name] - mean)
      self._means[name] = mean
      if self._seen >= _PATIENCE_STEPS // 2:
        self._best[name] = max(self._best.get(name, mean), mean)
    helps = self._means["retrieval_utility"] >= _USEFUL
    if helps or self._seen < self._quiet_until:
      return None
    for name in names[1:]:
      best = self._best[name]
      if best > _MIN_BEST[name] and self._means[name] < _FALLEN * best:
        self._quiet_until = self._seen + _PATIENCE_STEPS
        return (
          f"the retriever is collapsing: retrieval utility is "
          f"{self._means['retrieval_utility']:.3f} while {name} fell from "
          f"{best:.3f} to {self._means[name]:.3f}; freeze "
          "the retriever for more steps (FREEZE_RETRIEVER_STEPS), or lower "
          "its learning rate (RETRIEVER_RATE_SCALE), until the reader gains "
          "from its candidates"
        )
    return None
