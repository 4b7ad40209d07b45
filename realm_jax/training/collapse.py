"""Tells when joint training destroys the retriever instead of teaching it."""

import dataclasses

# Below these there is nothing to fall from: with one candidate beside the null
# block the entropy is near 0 all the time.
_LEAST = {"recall": 0.02, "candidate_entropy": 0.1}


@dataclasses.dataclass
class CollapseMonitor:
  """Watches smoothed utility, recall and entropy of p(z|x) in pre-training.

  A reader that cannot use its candidates sends noise to the retriever: the
  retrieval utility stays near zero while recall falls from its best, or
  p(z|x) concentrates on few candidates. Then more steps make it worse.

  Attributes:
    useful: a utility (nats for a token) above which candidates help.
    fallen: the share of its best value below which recall or entropy counts
      as fallen.
    smoothing: of the exponential means, for a step.
    patience_steps: no word before so many steps, nor twice within them.
  """

  useful: float = 0.05
  fallen: float = 0.6
  smoothing: float = 0.05
  patience_steps: int = 50

  def __post_init__(self):
    self._means: dict[str, float] = {}
    self._best: dict[str, float] = {}
    self._quiet_until = self.patience_steps
    self._seen = 0

  def update(self, metrics: dict[str, float]) -> str | None:
    """Takes a step's metrics; returns a warning when it is time for one."""
    names = ("retrieval_utility", "recall", "candidate_entropy")
    if any(name not in metrics for name in names):
      return None
    self._seen += 1
    for name in names:
      mean = self._means.get(name, metrics[name])
      mean += self.smoothing * (metrics[name] - mean)
      self._means[name] = mean
      if self._seen >= self.patience_steps // 2:
        self._best[name] = max(self._best.get(name, mean), mean)
    if self._seen < self._quiet_until:
      return None
    if self._means["retrieval_utility"] >= self.useful:
      return None
    for name in ("recall", "candidate_entropy"):
      best = self._best[name]
      if best > _LEAST[name] and self._means[name] < self.fallen * best:
        self._quiet_until = self._seen + self.patience_steps
        return (
          f"the retriever is collapsing: retrieval utility is "
          f"{self._means['retrieval_utility']:.3f} while {name} fell from "
          f"{self._best[name]:.3f} to {self._means[name]:.3f}; hold the "
          "retriever still for longer (HOLD_RETRIEVER_STEPS), or lower its "
          "rate (RETRIEVER_RATE_SCALE), until the reader gains from its "
          "candidates"
        )
    return None
