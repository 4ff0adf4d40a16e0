"""Specifications in TOML, YAML and JSON: what they mean, and how they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobd_mcp.cli import many
from jobd_mcp.cli.failure import Failure


def read(tmp_path: Path, name: str, text: str) -> many.Specs:
    (tmp_path / name).write_text(text)
    return many.read(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.toml",
            'project = "x"\nenv = {A = "1"}\n[[jobs]]\ncommand = "make"\nenv = {B = "2"}\n[[jobs]]\nargv = ["ls"]\n',
        ),
        ("a.yaml", 'project: x\nenv: {A: "1"}\njobs:\n- command: make\n  env: {B: "2"}\n- argv: [ls]\n'),
        (
            "a.json",
            '{"project": "x", "env": {"A": "1"}, "jobs": [{"command": "make", "env": {"B": "2"}}, {"argv": ["ls"]}]}',
        ),
    ],
)
def test_the_three_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, name, text)
    assert found.specs == [
        {"project": "x", "env": {"A": "1", "B": "2"}, "command": "make"},
        {"project": "x", "env": {"A": "1"}, "argv": ["ls"]},
    ]
    assert not found.alone


def test_a_file_of_one_job_is_one_job_and_lines_of_json_are_many(tmp_path: Path) -> None:
    assert read(tmp_path, "a.json", '{\n "command": "make"\n}').alone
    assert read(tmp_path, "b.json", '{"command": "a"}\n{"command": "b"}\n').places == ["line 1", "line 2"]
    assert read(tmp_path, "c.toml", "command = 'make'\n").specs == [{"command": "make"}]


def test_yaml_is_plain_data(tmp_path: Path) -> None:
    found = read(
        tmp_path, "a.yaml", "command: no\nname: on\ncpus: 1.5\nram_gb: 1e2\nlabels: {a: 0x1F, b: 2026-01-01}\n"
    )
    assert found.specs == [
        {"command": "no", "name": "on", "cpus": 1.5, "ram_gb": 100, "labels": {"a": "0x1F", "b": "2026-01-01"}}
    ]


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", BOMB, "line 1: anchors"),
        ("a.yaml", "command: !!python/object/apply:os.system [true]\n", "line 1: the tag"),
        ("a.yaml", "command: a\ngpus: 1\ncommand: b\n", "line 3: command is given twice"),
        ("a.yaml", "command: [a\n", "line 2"),
        ("a.yaml", "a: 1\n---\nb: 2\n", "line 2"),
        ("a.yaml", "[" * 5000, "nested too deep"),
        ("a.yaml", "- command: a\n", "not a specification"),
        ("a.yaml", "", "has no jobs"),
        ("a.yaml", "jobs:\n- command: a\n- make\n", "job 2 (line 3): not a specification"),
        ("a.toml", "command = \n", "line 1"),
        ("a.toml", "ram_gb = inf\n", "ram_gb: inf is no number"),
        ("a.toml", "jobs = 3\n", "jobs is not a list"),
        ("a.json", '{"command": "a",\n "gpus": }', "line 2"),
        ("a.json", '{"command": "a", "command": "b"}', "command is given twice"),
        ("a.json", '{"command": "a", "cpus": NaN}', "NaN is no number"),
        ("a.json", "null", "has no jobs"),
    ],
)
def test_what_is_no_specification_is_refused_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(Failure) as refused:
        read(tmp_path, name, text)
    assert refused.value.message.startswith(str(tmp_path / name))
    assert said in refused.value.message


def test_a_refusal_of_the_broker_names_the_job_and_its_line(tmp_path: Path) -> None:
    found = read(tmp_path, "a.toml", '[[jobs]]\ncommand = "a"\n\n[[jobs]]\ncommand = "b"\n')
    blamed = found.blamed(Failure("jobs.1.gpsu: there is no such field"))
    assert blamed.message == f"{tmp_path / 'a.toml'}, job 2 (line 4): gpsu: there is no such field"
