"""What is derived from the code stands in the docs, and the guards compare it before anything is written."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.wire.events import EventType
from broker.wire.problems import ProblemCode
from broker.wire.settings import known_keys
from support.scripts import ROOT, script


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the generator reads, to be spoiled."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    target = tmp_path / "src" / "jobd_mcp"
    target.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "jobd_mcp" / "openapi.json", target)
    return tmp_path


@pytest.mark.guarantee("G21")
def test_every_derived_file_is_as_the_code_has_it() -> None:
    assert list(script("generate").differences(ROOT)) == []


def test_a_row_that_was_changed_by_hand_is_found_and_nothing_is_mended(copy: Path) -> None:
    page = copy / "docs" / "configuration.md"
    spoiled = page.read_text().replace("`JOBD_LEASE_S`", "`JOBD_LEASES`")
    page.write_text(spoiled)
    [difference] = script("generate").differences(copy)
    assert "JOBD_LEASES" in difference
    assert page.read_text() == spoiled


def test_an_operation_that_the_shipped_document_lacks_is_found(copy: Path) -> None:
    document = copy / "src" / "jobd_mcp" / "openapi.json"
    document.write_text(document.read_text().replace("job_cancel", "job_abort"))
    assert any("job_abort" in difference for difference in script("generate").differences(copy))


def test_every_kind_of_derived_text_stands_on_some_page() -> None:
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for name in script("generate").REGIONS:
        assert f"<!-- generated: {name} -->" in pages


def test_every_event_setting_and_code_is_documented_with_a_meaning() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    configuration = (ROOT / "docs" / "configuration.md").read_text()
    for event in EventType:
        assert event.means, f"{event.name} says nothing"
        assert f"| `{event}` | {event.means} |" in reference
    for code in ProblemCode:
        assert f"`{code}`" in reference
    for key, meaning in known_keys().items():
        assert meaning, f"the setting {key} says nothing"
        assert f"`JOBD_{key.upper()}`" in configuration or re.search(rf"`\[\[?{key}(\.NAME)?\]\]?`", configuration)


def test_a_requirement_outside_the_lock_is_found() -> None:
    check = script("check_lock")
    lock = {"click": "8.5.1"}
    assert list(check.unmet(["click>=8.2,<9"], lock, "the lock")) == []
    assert list(check.unmet(["click>=9"], lock, "the lock")) == ["the lock: click==8.5.1 does not satisfy >=9"]
    assert "not in the lock" in next(iter(check.unmet(["rich"], lock, "the lock")))


def test_a_lock_entry_without_a_hash_is_found() -> None:
    check = script("check_lock")
    assert check.without_hash("a==1 \\\n    --hash=sha256:00\nb==2\n") == ["b==2"]


def test_the_locks_satisfy_pyproject_and_name_no_address() -> None:
    check = script("check_lock")
    assert [*check.lock_faults(), *check.tool_faults()] == []


def test_a_file_that_names_this_machine_or_a_registry_is_found(tmp_path: Path) -> None:
    words = script("check_words")
    assert words.REGISTRIES.search("see https://py" + "pi.org/simple")
    assert not words.REGISTRIES.search("see https://example.org/simple")
    if words.own_paths().pattern != "(?!)":
        assert words.own_paths().search(f"cd {ROOT}/src")


def test_the_programs_of_the_repository_explain_themselves() -> None:
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    for target in ("demo", "test", "check", "fix", "docs", "lock", "tools", "clean"):
        assert f"make {target}" in done.stdout
