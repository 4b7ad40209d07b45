"""Finding tasks by name."""

import sys

import pytest

from realm_jax.inputs.config import TaskError, find_task


def test_an_unknown_name_brings_the_near_ones():
  with pytest.raises(TaskError, match=r"did you mean inverse_cloze.*open_qa"):
    find_task("inverse_close")


@pytest.mark.usefixtures("new_tasks")
def test_a_module_of_the_users_own(tmp_path, monkeypatch):
  (tmp_path / "my_tasks.py").write_text(
    "from functools import partial\n"
    "from realm_jax.text.masking import random_tokens\n"
    "from tasks import masked_sentences\n"
    "masked_sentences.add('half', partial(random_tokens, rate=0.5))\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  assert find_task("half", ["tasks", "my_tasks"]).name == "half"
  sys.modules.pop("my_tasks")


def test_a_module_that_is_not_there_and_one_that_lacks_a_library(
  tmp_path, monkeypatch
):
  with pytest.raises(TaskError, match=r"no module 'nowhere\.at_all'"):
    find_task("open_qa", ["nowhere.at_all"])
  (tmp_path / "needy.py").write_text("import a_library_nobody_has\n")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ModuleNotFoundError, match="a_library_nobody_has"):
    find_task("open_qa", ["needy"])
