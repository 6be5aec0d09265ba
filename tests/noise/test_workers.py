"""The shared pool: every task once, errors come back, nobody else's thread count changes."""

import os
import threading
import time

import pytest
import torch

from hoarfrost import workers


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_new_thread(call):
    answer = []
    thread = threading.Thread(target=lambda: answer.append(call()))
    thread.start()
    thread.join()
    return answer[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_every_task_runs_once(count):
    ran = []
    workers.run([lambda i=i: ran.append(i) for i in range(count)])
    assert sorted(ran) == list(range(count))


def test_tasks_run_side_by_side_in_other_threads():
    """Each task waits for the other: one after the other would never end."""
    barrier = threading.Barrier(2, timeout=10)
    names = []

    def task():
        barrier.wait()
        names.append(threading.get_ident())

    workers.run([task, task])
    assert len(set(names)) == 2
    assert threading.get_ident() not in names


def test_workers_compute_with_one_thread_and_record_no_gradients():
    seen = []
    workers.run([lambda: seen.append((torch.get_num_threads(), torch.is_grad_enabled())) for _ in range(8)])
    assert seen == [(1, False)] * 8


@pytest.mark.parametrize("count", [2, 3])
def test_thread_counts_of_the_caller_and_of_new_threads_are_unchanged(monkeypatch, count):
    monkeypatch.setattr(workers, "_pool", workers._Pool())
    torch.set_num_threads(count)
    workers.run([lambda: None] * 4)
    assert workers._pool.threads == count
    assert torch.get_num_threads() == count
    assert in_a_new_thread(torch.get_num_threads) == count
    assert f"omp_get_max_threads() : {count}" in torch.__config__.parallel_info()


def test_a_caller_with_its_own_count_does_not_impose_it_on_the_process(monkeypatch):
    monkeypatch.setattr(workers, "_pool", workers._Pool())

    def caller_with_three():
        torch.get_num_threads()  # takes up the default, so that the next line is not undone later
        torch.set_num_threads(3)
        in_a_new_thread(lambda: torch.set_num_threads(2))  # the process's default, as before
        workers.run([lambda: None] * 4)
        return torch.get_num_threads()

    assert in_a_new_thread(caller_with_three) == 3
    assert in_a_new_thread(torch.get_num_threads) == 2


def test_a_caller_with_one_thread_runs_tasks_itself():
    torch.set_num_threads(1)
    seen = []
    workers.run([lambda: seen.append(threading.get_ident())] * 3)
    assert seen == [threading.get_ident()] * 3


def test_a_single_task_has_the_callers_threads_or_a_workers_one():
    seen = []
    workers.run([lambda: seen.append((threading.get_ident(), torch.get_num_threads()))])
    workers.run([lambda: seen.append((threading.get_ident(), torch.get_num_threads()))], single_inline=False)
    assert seen[0] == (threading.get_ident(), 2)
    assert seen[1][0] != threading.get_ident()
    assert seen[1][1] == 1


def test_tasks_may_call_run_themselves():
    ran = []
    workers.run([lambda: workers.run([lambda: ran.append(1)] * 3)] * 4)
    assert len(ran) == 12


def test_the_first_error_comes_back_and_tasks_not_begun_are_dropped():
    ran = []

    def fail():
        raise ArithmeticError("a task's own message")

    with pytest.raises(ArithmeticError, match="a task's own message"):
        workers.run([fail] + [lambda: (time.sleep(0.01), ran.append(1))] * 100)
    assert len(ran) < 100
    ran.clear()
    workers.run([lambda: ran.append(1)] * 4)
    assert len(ran) == 4


def test_no_task_is_still_running_when_an_error_comes_back():
    under_way = threading.Event()
    ended = []

    def slow():
        under_way.set()
        time.sleep(0.05)
        ended.append(1)

    def fail():
        under_way.wait(5)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        workers.run([slow, fail])
    assert ended == [1]


def test_a_finished_call_keeps_nothing_alive():
    import weakref

    big = torch.zeros(10)
    gone = weakref.ref(big)
    workers.run([lambda big=big: big.add_(1)] * 2)
    del big
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)  # the last worker lets go just after the caller was told
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_workers_of_its_own():
    workers.run([lambda: None] * 2)
    child = os.fork()
    if child == 0:
        ran = []
        try:
            workers.run([lambda: ran.append(1)] * 4)
        finally:
            os._exit(0 if len(ran) == 4 else 1)
    deadline = time.monotonic() + 10
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for workers that it does not have")
    assert os.waitstatus_to_exitcode(done[1]) == 0


def test_a_call_costs_little():
    workers.run([lambda: None] * 2)
    times = []
    for _ in range(200):
        start = time.perf_counter()
        workers.run([lambda: None] * 2)
        times.append(time.perf_counter() - start)
    assert min(times) < 500e-6  # about 40 µs; this catches polling and threads that are started anew
