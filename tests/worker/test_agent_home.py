"""Who a worker is: id, epoch, and that it is alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.backoff import Backoff
from worker.home import Home, HomeTaken
from worker.probe import machine


def test_the_id_stays_and_the_epoch_grows_with_each_start(tmp_path: Path) -> None:
    with Home.take(tmp_path / "worker") as first:
        pass
    with Home.take(tmp_path / "worker") as second:
        pass
    assert len(first.worker_id) == 32
    assert second.worker_id == first.worker_id
    assert (first.epoch, second.epoch) == (1, 2)


def test_a_second_worker_on_the_same_directory_is_refused_and_told_how_to_go_on(tmp_path: Path) -> None:
    with Home.take(tmp_path), pytest.raises(HomeTaken) as caught:
        Home.take(tmp_path)
    assert str(os.getpid()) in str(caught.value)
    assert "JOBD_WORKER_NAME" in str(caught.value)
    Home.take(tmp_path).close()


@pytest.mark.trial("B101")
def test_a_child_that_outlives_the_worker_does_not_keep_the_next_one_out(tmp_path: Path) -> None:
    home = Home.take(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        home.close()
        Home.take(tmp_path).close()
    finally:
        child.communicate(b"\n")


def test_the_directory_is_private_and_not_somebody_elses(tmp_path: Path) -> None:
    Home.take(tmp_path / "own").close()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(PermissionError):
        Home.take(tmp_path / "link")


def test_scratch_directories_without_an_assignment_are_removed_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    with Home.take(tmp_path / "worker") as home:
        for key in ("1.1", "2.1"):
            home.scratch(key).mkdir(parents=True)
        (home.scratch("1.1") / "sub").mkdir()
        (home.scratch("1.1") / "sub" / "link").symlink_to(outside)
        (home.scratch("1.1") / "sub").chmod(0o500)
        home.remove_rooms_except(["2.1"])
        assert not home.scratch("1.1").exists()
        assert home.scratch("2.1").exists()
    assert (outside / "precious").exists()


def test_a_worker_name_is_made_of_any_host_name() -> None:
    assert machine.name_of("gpu-box.example.org") == "gpu-box"
    assert machine.name_of("Ada's MacBook") == "Ada-s-MacBook"
    assert machine.name_of("") == "worker"


def test_this_machine_has_an_identity_and_cores() -> None:
    here = machine.look()
    assert here.identity == machine.look().identity
    assert here.cores >= 1


def test_pauses_between_tries_grow_are_capped_and_differ() -> None:
    backoff = Backoff(first_s=0.1, longest_s=5)
    pauses = [backoff.next_s() for _ in range(200)]
    assert pauses[0] <= 0.1
    assert all(2.5 <= pause <= 5 for pause in pauses[10:])
    assert len({round(pause, 6) for pause in pauses[10:]}) > 50
    backoff.reset()
    assert backoff.next_s() <= 0.1
