"""All programs, and those of which it is known that they do not come out as they must yet."""

from __future__ import annotations

from tests.programs import (  # noqa: F401 - their programs register themselves
    right_batches,
    right_loops,
    right_losses,
    right_models,
    right_opacus,
)
from tests.programs.corpus import RIGHT, WRONG, Program

# Right programs that are refused or wrong today, each with the reason. One that comes out right has to leave.
KNOWN_FAILURES: dict[str, str] = {
    "names_by_a_character_lstm_that_is_handed_its_hidden_state": "the probe takes examples along one dimension of all "
    "arguments alike, and runs the model on two words' rows with the hidden state of all of them",
    "pruned_weights": "torch.nn.utils.prune computes the weight in a hook before the module runs, outside of its rule",
}

PROGRAMS: dict[str, Program] = {**RIGHT, **WRONG}
