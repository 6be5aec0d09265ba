"""Wrong programs: models that are handed what other batches left behind."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.programs.corpus import Rows, refused, wrong
from tests.programs.examples import texts
from tests.programs.right_arguments import Stacked, time_first
from tests.programs.running import MakePrivate


def carrying(rows: Rows, make_private: MakePrivate, keep: Any) -> None:
    model = Stacked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(rows, batch_size=4, collate_fn=time_first)
    model, optimizer, loader = make_private(model, optimizer, loader, batch_size=4, batch_first=False, epochs=3)
    hidden = model.init_hidden(2 * len(rows))
    for _ in range(3):
        for words, y in loader:
            logits, hidden = model(words, hidden[:, : words.shape[1]].contiguous())
            hidden = keep(hidden)
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()
            optimizer.step()


ANEW = refused("returned for another batch", "torch.zeros")


@wrong(texts, ANEW)
def a_hidden_state_that_is_detached_and_carried_along(rows: Rows, make_private: MakePrivate) -> None:
    carrying(rows, make_private, lambda hidden: hidden.detach())


@wrong(texts, ANEW)
def a_hidden_state_whose_data_are_carried_along(rows: Rows, make_private: MakePrivate) -> None:
    carrying(rows, make_private, lambda hidden: hidden.data)


@wrong(texts, ANEW)
def a_copy_of_a_hidden_state_that_is_carried_along(rows: Rows, make_private: MakePrivate) -> None:
    carrying(rows, make_private, lambda hidden: hidden.detach().clone())
