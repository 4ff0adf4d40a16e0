"""What the pages name exists: links, files, settings, events, operations, and commands that the real parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode
from broker.wire.settings import FOREIGN_KEYS, known_keys
from jobd_mcp.cli.commands import job
from jobd_mcp.cli.faults import Fault
from support.scripts import ROOT, script
from worker.environment import Identity, Places, environment
from worker.outbox import Outbox

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
NAMED = re.compile(r"(?:job|worker|assignment|token|reclaim)_[a-z_]+")
OPERATORS = frozenset({"|", "&", ";", ">", "<"})

on_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: lower case, dashes for blanks, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def operations() -> frozenset[str]:
    return frozenset(operation.name for operation in script("generate").surface())


def shell_lines(page: Path) -> Iterator[str]:
    for language, text in FENCE.findall(page.read_text()):
        if language == "sh":
            yield from text.replace("\\\n", " ").splitlines()


def words_of_command(line: str) -> list[str]:
    """The words of the first simple command, without comments and settings in front of it."""
    words = []
    for word in shlex.split(line, comments=True):
        if word in OPERATORS:
            break
        if words or not re.fullmatch(r"[A-Z_]+=.*", word):
            words.append(word)
    return words


def parse(arguments: list[str]) -> click.Command:
    """The command that the real parser finds for these arguments. Raises click.UsageError as it would."""
    command: click.Command = job
    context = click.Context(job, info_name="job")
    rest = list(arguments)
    while isinstance(command, click.Group) and (
        not command.invoke_without_command or (rest and not rest[0].startswith("-"))
    ):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no such command: {name}")
        command = found
        context = click.Context(command, parent=context, info_name=name)
    command.make_context(command.name, rest, parent=context.parent)
    return command


@on_each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@on_each_page
def test_files_of_the_source_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"`((?:broker|worker|jobd_mcp|tests|scripts|examples)/[\w/]+\.py)`", prose(page)):
        assert any((root / path).exists() for root in (ROOT, ROOT / "src")), path


@on_each_page
def test_settings_and_variables_that_are_named_exist(page: Path, tmp_path: Path) -> None:
    spec = JobSpec(argv=["true"], count=2)
    places = Places(tmp_path, tmp_path, tmp_path, Outbox(tmp_path))
    of_jobs = environment({}, spec, Identity(1, 1, 0, array_index=0), places, None)
    settings = {f"JOBD_{key.upper()}" for key in known_keys().keys() | FOREIGN_KEYS}
    named = set(re.findall(r"\bJOBD_[A-Z_]*[A-Z]\b", page.read_text()))
    assert named <= settings | of_jobs.keys()


@on_each_page
def test_events_and_operations_that_are_named_exist(page: Path) -> None:
    codes = {code.value for code in (*EventType, *ProblemCode, *Fault)}
    known = operations() | known_keys().keys() | codes
    named = {code for code in CODE.findall(prose(page)) if NAMED.fullmatch(code)}
    assert named <= known


@on_each_page
def test_commands_in_shell_blocks_are_taken_by_the_real_parser(page: Path) -> None:
    for line in shell_lines(page):
        words = words_of_command(line)
        if words[:1] == ["job"]:
            try:
                parse(words[1:])
            except click.UsageError as error:
                pytest.fail(f"{line}: {error.format_message()}")


@on_each_page
def test_commands_that_are_named_in_the_text_exist(page: Path) -> None:
    for code in CODE.findall(prose(page)):
        words = code.split()
        if words[0] == "job" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
            assert words[1] in job.commands or job.get_command(click.Context(job), words[1]), code


@on_each_page
def test_every_block_says_its_language_and_is_closed(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text))
    known = {"sh", "text", "json", "toml", "ini", "mermaid", "python"}
    assert {language for language, _ in FENCE.findall(text)} <= known


@on_each_page
def test_no_code_in_the_text_is_broken_by_the_end_of_a_line(page: Path) -> None:
    assert [line for line in prose(page).splitlines() if line.count("`") % 2] == []


def test_a_command_that_the_parser_does_not_know_is_seen() -> None:
    for line, complaint in [
        ("JOBD_URL=unix:///x job submit --no-such-option 1  # a comment", "--no-such-option"),
        ("job vanish 42 | head", "vanish"),
        ("job status forty-two", "forty-two"),
    ]:
        with pytest.raises(click.UsageError, match=complaint):
            parse(words_of_command(line)[1:])
    assert parse(words_of_command("job submit 'a | b' | tee log")[1:]).name == "submit"


def test_the_transcript_in_the_readme_is_of_the_demonstration_as_it_is() -> None:
    titles = re.findall(r"^== (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    demonstration = (ROOT / "src" / "jobd_mcp" / "demo.py").read_text()
    assert titles
    for title in titles:
        assert f'_title("{title}")' in demonstration


def test_what_was_recorded_is_put_where_the_readme_marks_it() -> None:
    pictures = script("pictures")
    page = "before\n<!-- recorded: demo -->\nold\n<!-- end of recorded -->\nafter\n"
    new = pictures.recorded(page, ["== new", "line"])
    assert new == page.replace("old\n", "\n```text\n== new\nline\n```\n\n")
    assert len(pictures.RECORDED.findall((ROOT / "README.md").read_text())) == 1


def test_a_picture_is_text_that_stands_in_its_cells() -> None:
    pictures = script("pictures")
    drawn = pictures.svg("\x1b[31ma <b\x1b[0m  c\n", "title")
    assert re.findall(r'<text x="([0-9.]+)".*?fill="(#\w+)">(.*?)</text>', drawn) == [
        ("14.0", "#f7768e", "a &lt;b"),
        ("64.4", "#c0caf5", "c"),
    ]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    open_pages = [ROOT / "README.md"]
    while open_pages:
        page = open_pages.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(prose(page)) if "://" not in link)
        open_pages += [(page.parent / link).resolve() for link in links if link]
    assert set(PAGES) <= reached
