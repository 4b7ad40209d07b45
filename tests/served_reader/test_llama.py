"""A real server, llama.cpp's, gives what llama.cpp computes in its process."""

import json
import subprocess
import sys
import time

import httpx
import pytest

from harness.jobs import free_port
from realm_jax.served_reader.scoring import ServedLanguageModel
from realm_jax.training.stages.stage import StepOnHost

pytestmark = pytest.mark.slow
_PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def python(project_dir):
  path = project_dir / ".venv-llama" / "bin" / "python"
  if not (project_dir / ".venv-llama" / "installed").exists():
    pytest.skip("llama.cpp's server is not installed: make llama")
  return str(path)


def test_its_log_likelihoods_are_llamas_own(python, project_dir, tmp_path):
  port = free_port()
  lm = ServedLanguageModel(
    f"http://127.0.0.1:{port}/v1",
    "tiny",
    requests_at_once=2,
    score_cache=tmp_path / "scores.sqlite",
  )
  block = {"title": "Zürich – 東京", "text": "The {text} of the Bären, in  it."}
  texts = [
    lm.text(block, "where is the house?", "in the Engadin"),
    lm.text(block, "wo, ü?", "Zürich, 東京"),
    lm.text(None, "where is the house?", "the"),
    lm.text({**block, "text": "long " * 600}, "where?", "there"),
  ]
  pairs = tmp_path / "pairs.json"
  pairs.write_text(json.dumps(texts[:3]), encoding="utf-8")
  model = tmp_path / "tiny.gguf"
  done = subprocess.run(
    [python, "-m", "harness.peers.llama", str(model), str(pairs)],
    cwd=project_dir,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  wanted = json.loads(done.stdout.splitlines()[-1])
  command = [python, "-m", "llama_cpp.server", "--model", str(model)]
  command += ["--logits_all", "true", "--n_ctx", "512", "--port", str(port)]
  server = subprocess.Popen(
    [*command, "--host", "127.0.0.1"],
    stdout=sys.stderr,
    stderr=subprocess.STDOUT,
  )
  try:
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while True:
      try:
        httpx.get(f"{lm.reader_url}/models")
        break
      except httpx.TransportError:
        assert server.poll() is None and time.monotonic() < give_up_at
        time.sleep(0.1)
    lm.check()
    scored = lm.score(texts, StepOnHost(tmp_path, 0))
  finally:
    server.kill()
    server.wait()
  found = scored.log_likelihoods
  assert found[:3] == pytest.approx(wanted, rel=1e-5)
  # The last one is longer than the model's context.
  assert found[3] == float("-inf")
  assert scored.metrics["missing_scores"] == 1
