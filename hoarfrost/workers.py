"""A few plain threads that share work which releases the interpreter lock.

Many independent pieces of numerical work go faster as one-thread pieces side by side than as many-thread
pieces one after the other. Each worker therefore computes with a single intra-op thread, without recording
gradients.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

import torch

Task = Callable[[], None]
T = TypeVar("T")


def run(tasks: Sequence[Task], *, single_inline: bool = True) -> None:
    """Run every task, `torch.get_num_threads()` of them at a time, and return when all are done.

    Tasks may run in any order and must not depend on each other. The first exception is raised again here,
    after the tasks already under way have ended; those not yet begun are dropped. With a caller that is
    allowed one thread only (a worker is, so a nested call is safe), they run where they were called. So does
    a single task, on all of the caller's threads, unless `single_inline` is off: for short operations one
    thread is better, above all on a busy machine, where threads that wait for each other wait long.

    Workers know nothing of the caller's autocast or grad mode: gradients are off, autocast is off.

    >>> squares = [0] * 4
    >>> run([lambda i=i: squares.__setitem__(i, i * i) for i in range(4)])
    >>> squares
    [0, 1, 4, 9]
    """
    threads = torch.get_num_threads()
    if threads == 1 or not tasks or (single_inline and len(tasks) == 1):
        with torch.no_grad():
            for task in tasks:
                task()
        return
    _pool.submit(tasks, min(len(tasks), threads))


class _Round:
    """One call of `run`: the tasks still to begin, and who is still at it."""

    def __init__(self, tasks: Sequence[Task], width: int) -> None:
        self.waiting = deque(tasks)  # popleft is atomic, so that taking a task needs no lock
        self.error: BaseException | None = None
        self.active = width
        self.lock = threading.Lock()
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> None:
        """A worker's share: task after task until none is left."""
        try:
            while True:
                try:
                    task = self.waiting.popleft()
                except IndexError:
                    break
                task()
        except BaseException as error:
            self.waiting.clear()
            with self.lock:
                self.error = self.error or error
        with self.lock:
            self.active -= 1
            last = self.active == 0
        if last:
            self.done.release()

    def wait(self) -> None:
        try:
            self.done.acquire()
        except BaseException:  # Ctrl-C: nobody may still write into the caller's buffers when it is raised
            self.waiting.clear()
            self.done.acquire()
            raise
        if self.error is not None:
            raise self.error


class _Pool:
    """Threads that live as long as the process, started when they are first needed."""

    def __init__(self) -> None:
        self.threads = 0
        self.lock = threading.Lock()
        self.rounds: SimpleQueue[_Round] = SimpleQueue()

    def submit(self, tasks: Sequence[Task], width: int) -> None:
        if self.threads < width:
            self.grow(width)
        share = _Round(tasks, width)
        for _ in range(width):
            self.rounds.put(share)
        share.wait()

    def grow(self, width: int) -> None:
        """`set_num_threads` in a thread also sets the default of all that start later: put that back."""
        with self.lock:
            default = _in_a_fresh_thread(torch.get_num_threads)
            while self.threads < width:
                ready = threading.Event()
                threading.Thread(target=self.serve, args=(ready,), name="hoarfrost", daemon=True).start()
                ready.wait()
                self.threads += 1
            _in_a_fresh_thread(lambda: torch.set_num_threads(default))

    def serve(self, ready: threading.Event) -> None:
        torch.get_num_threads()  # a thread takes up the default when it first looks, even after it has set its own
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        rounds = self.rounds
        ready.set()
        while True:
            share = rounds.get()
            share.work()
            del share  # or the last round's tensors would stay alive until the next one


def _in_a_fresh_thread(call: Callable[[], T]) -> T:
    """What `call` says where no thread count has been set yet; it leaves the caller's own count alone."""
    answer: list[T] = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    thread.join()
    return answer[0]


_pool = _Pool()


def _forget() -> None:
    """Threads do not survive a fork: the child starts with none."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
