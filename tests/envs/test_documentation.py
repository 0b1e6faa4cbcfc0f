"""The page on environments: its examples run."""

import re
from pathlib import Path

import lmgym

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"


def test_the_examples_of_the_page_run():
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    game = names["Guess"](split="test")
    game.reset(options={"index": 0})
    assert game.step("3")[0].reply == "No, guess again."
    assert game.step("2")[1:3] == (1.0, True)


def test_the_page_names_every_registered_environment_and_split():
    page = PAGE.read_text(encoding="utf-8")
    ours = [name for name in lmgym.envs.names() if lmgym.envs.find(name).factory.__module__.startswith("lmgym.")]
    for name in ours:
        assert f"`{name}`" in page
        assert all(f"`{split}`" in page for split in lmgym.envs.find(name).splits)
