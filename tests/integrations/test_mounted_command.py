"""The `rota` command under the command of another: `flask rota`, or a click group of one's own."""

from __future__ import annotations

import click
from click.testing import CliRunner
from flask import Flask

from rota.cli.main import rota
from rota.errors import AppNotFound


def test_an_error_of_rota_is_a_message_and_an_exit_code_there_too() -> None:
    theirs = click.Group("theirs")
    theirs.add_command(rota)

    said = CliRunner().invoke(theirs, ["rota", "worker", "nowhere_to_be_found:app"])

    assert said.exit_code == AppNotFound.exit_code
    assert said.stderr.startswith("rota: There is no module 'nowhere_to_be_found'")


def test_flask_takes_the_command_as_one_of_its_own() -> None:
    site = Flask(__name__)
    site.cli.add_command(rota)

    said = site.test_cli_runner().invoke(args=["rota", "--help"])

    assert said.exit_code == 0
    assert "Run the jobs of an app in this process." in said.output
