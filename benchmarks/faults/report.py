"""The result of runs with faults, as a text."""

import collections
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.faults.injection import NOTHING
from realm_jax.console.table import figures_table


def by_kind(done: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
  """Counts the faults of each kind, and what was observed after them."""
  kinds: dict[str, collections.Counter[str]] = {}
  for met in done:
    counts = kinds.setdefault(
      met["fault"]["kind"], collections.Counter({"faults": 0, "mid-write": 0})
    )
    counts["faults"] += 1
    counts["mid-write"] += bool(met["half_written"])
    if met["what"] == NOTHING:
      counts["nothing to hit"] += 1
    counts.update(met["observed"])
  return {kind: dict(counts) for kind, counts in kinds.items()}


def table(kinds: dict[str, dict[str, int]]) -> str:
  """Formats a table with a line for each kind of fault."""
  lines = ["kind                faults  mid-write  observed"]
  for kind, counts in sorted(kinds.items()):
    seen = [
      f"{name} {count}"
      for name, count in sorted(counts.items())
      if name not in ("faults", "mid-write")
    ]
    lines.append(
      f"{kind:<18}  {counts['faults']:6}  {counts['mid-write']:9}  "
      f"{', '.join(seen) or '–'}"
    )
  return "\n".join(lines)


def _first_lines(texts: Sequence[str]) -> str:
  return "; ".join(text.partition("\n")[0] for text in texts[:5]) or "none"


def report(result: dict[str, Any], *, passed: bool) -> str:
  """Formats the result as text."""
  text = [f"unbroken: {result['unbroken']['seconds']} s"]
  if result["unbroken"]["problems"]:
    text.append(_first_lines(result["unbroken"]["problems"]))
  for run in result["runs"]:
    text += [f"\n{run['index']}", table(by_kind(run["faults"]))]
    lines = collections.Counter(
      re.sub(r"\S*/\S*|\d+", "…", line) for line in run["stopped_with"]
    )
    text += [f"{count:4} × {line}" for line, count in lines.most_common()]
    differences = run.get("differences")
    summary = {
      "faults": f"{len(run['faults'])} of {run['planned']}",
      "swaps": run.get("swaps", "–"),
      "damaged generations refused": len(run["refused_generations"]),
      "problems": _first_lines(run["problems"]),
      "differences": "not compared"
      if differences is None
      else _first_lines(differences),
      "seconds": run["seconds"],
    }
    text.append(figures_table(summary))
  return "\n".join([*text, f"\npassed: {passed}"])
