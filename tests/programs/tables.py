"""All programs, and those of which it is known that they do not come out as they must yet."""

from __future__ import annotations

from tests.programs import (  # noqa: F401 - their programs register themselves
    features,
    fresh_loops,
    fresh_models,
    fresh_states,
    right_arguments,
    right_backwards,
    right_bare,
    right_batches,
    right_beside,
    right_corners,
    right_data,
    right_loops,
    right_losses,
    right_meetings,
    right_models,
    right_new,
    right_opacus,
    right_parts,
    right_writes,
    shared_lookups,
    wrong_account,
    wrong_arguments,
    wrong_bare,
    wrong_beside,
    wrong_crashes,
    wrong_data,
    wrong_kinks,
    wrong_loops,
    wrong_losses,
    wrong_meetings,
    wrong_models,
    wrong_state,
    wrong_writes,
)
from tests.programs.corpus import RIGHT, WRONG, Program

PROGRAMS: dict[str, Program] = {**RIGHT, **WRONG}

# Right programs that are refused or wrong today, each with the reason. One that comes out right has to leave.
KNOWN_FAILURES: dict[str, str] = {}

# Programs that take seconds: what they import, or compile.
SLOW = {
    "a_model_compiled_afterwards",
    "a_transformers_model_with_its_own_loss",
    "empty_batches_of_a_transformers_model",
}

# Wrong programs that get through today, or get another message, each with the reason. One that comes out right has to
# leave.
KNOWN_GAPS: dict[str, str] = {
    "a_copy_of_a_hidden_state_that_is_carried_along": "what a model returned is recognised by the memory that it lies "
    "in, which a copy does not share; that a loop keeps something is not seen otherwise",
}
