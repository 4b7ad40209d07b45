"""A run in Python, as docs/evaluation.md shows it."""

import json
import re
import shlex
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import gin
from tests import tiny_world


@pytest.mark.slow
def test_the_readme_prints_what_it_says(
  project_dir, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  page = (project_dir / "README.md").read_text()
  section = page.partition("\n## Python\n")[2].partition("\n## ")[0]
  (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
  exec(code, {})
  said = re.findall(r"^# (.*)$", code, re.MULTILINE)
  assert capsys.readouterr().out.splitlines() == said


@pytest.mark.slow
def test_the_page_runs(recorded_run, project_dir, monkeypatch):
  folder = recorded_run("open_qa")
  folder.rename(folder.parent / "qa")
  recorded_run("pretrain").rename(folder.parent / "realm")
  monkeypatch.chdir(folder.parent.parent)
  page = (project_dir / "docs/evaluation.md").read_text()
  before = gin.config_str()
  names: dict = {}
  for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
    exec(code, names)
  assert gin.config_str() == before

  run, best = names["run"], names["best"]
  assert best.block.text[best.start : best.limit] == best.text
  # The two ways to a score.
  for blocks, of_query in zip(names["many"], names["scores"], strict=True):
    own = np.sort(of_query)[::-1][:3]
    np.testing.assert_allclose([hit.score for hit in blocks], own, rtol=1e-5)
  of_sentence = names["explained"]
  assert (of_sentence.answer, of_sentence.answer_is_given) == ("Velt", True)
  assert repr(of_sentence).startswith("<'Ada was born in [MASK].': 'Velt' (")
  assert of_sentence.hits[0].block.row == -1

  # More questions than a batch has; one text is one row, and none is none.
  texts = [question["question"] for question in tiny_world.questions()]
  answered = run.ask([*texts, *texts], num_answers=1)
  assert [one.text for one in answered] == [*texts, *texts]
  assert [o.answer for o in answered[:11]] == [o.answer for o in answered[11:]]
  assert {len(one.answers) for one in answered} == {1}
  assert run.embed(texts[0]).tolist() == run.embed(texts[:1])[0].tolist()
  assert run.embed([]).shape == (0, tiny_world.RETRIEVER.vector_size)
  with pytest.raises(ValueError, match="has no words"):
    run.ask(" ")
  with pytest.raises(TypeError, match="None"):
    run.ask([None])
  with pytest.raises(ValueError, match=r"k=0; .* at most \d+"):
    run.retrieve(texts[0], k=0)


@pytest.mark.slow
def test_the_notebook_teaches_what_it_says(
  project_dir, command_server, command_environment, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  matplotlib.use("Agg")
  # Without any optimization, hundreds of steps are slow.
  flags = command_environment["XLA_FLAGS"].replace("level=0", "level=1")
  environment = {**command_environment, "XLA_FLAGS": flags}
  page = (project_dir / "docs/from_texts_to_answers.ipynb").read_text()
  names: dict = {}
  for cell in json.loads(page)["cells"]:
    source = "".join(cell["source"]).replace("\\\n", "")
    if cell["cell_type"] == "markdown":
      continue
    if not source.startswith("!"):
      exec(source, names)
      continue
    with (tmp_path / "log").open("w+") as log:
      started = [
        command_server.start(
          shlex.split(command.format(python=sys.executable)),
          stdout=log,
          cwd=Path.cwd(),
          env=environment,
        )
        for command in source.removeprefix("!").split(" & ")
      ]
      codes = [one.wait(600.0) for one in started]
      log.seek(0)
      assert codes == [0, 0], log.read()
  assert sum(names["known"]) > 0.8 * len(names["test"])
  assert sum(names["followed"]) > 0.8 * len(names["followed"]) > 40
  block, run = names["block"], names["run"]
  assert run.corpus.block(block.row).text == block.text
  table = names["result"]._repr_html_()
  for answer in names["result"].answers:
    marked = f"<mark>{answer.text}</mark>{answer.block.text[answer.limit :]}"
    assert f"<td>{answer.block.title}<td>" in table and marked in table
