"""The tutorial "let clients judge the model", as it is written: its recipes."""

import re
from pathlib import Path

import pytest

from fedagent_cli import places
from fedagent_task.recipe import parse_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "opinions.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", blocks("toml"))
def test_the_pages_tables_fit_a_recipe(block: str) -> None:
    digits = places.find_recipe("digits").read_text()
    parse_recipe(f"{digits}\n{block}")
