"""The page about networks: its figures are the committed ones, its commands and links exist."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command

import network
import pages
from elmesh.cli import app

TEXT = network.PAGE.read_text(encoding="utf-8")
RUNNING = (pages.ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def commands(text: str) -> list[list[str]]:
    lines = [line.strip() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [line.split("#")[0].split() for line in lines if line.startswith("elmesh ")]


def test_its_figures_are_those_of_the_committed_results():
    assert network.filled(TEXT) == TEXT


@pytest.mark.parametrize("words", commands(TEXT) + commands(RUNNING), ids=" ".join)
def test_every_command_and_option_that_is_shown_exists(words):
    command, rest = get_command(app), words[1:]
    while rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command = command.loaded
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("--")} <= known


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)", TEXT + RUNNING))
def test_what_it_links_to_exists(link):
    assert (network.PAGE.parent / link).exists()


def test_goals_that_were_not_reached_are_listed():
    goals = pages.load(pages.RESULTS / "network.json")["goals"]
    missed = [goal for goal, met in goals.items() if not met]
    assert f"Goals not reached: {'; '.join(missed) or 'none'}." in TEXT
