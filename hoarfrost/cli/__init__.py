"""The `hoarfrost` command. Nothing heavy is imported before a command needs it: help is there at once."""

from hoarfrost.cli.app import app as app
from hoarfrost.cli.app import main as main
