"""The `hoarfrost` command. Heavy imports wait until a command needs them, so that help is fast."""

from hoarfrost.cli.app import app as app
from hoarfrost.cli.app import main as main
