"""The English of pages and docstrings stays plain: a reader understands a sentence at once.

The limits only raise an alarm. If one is exceeded, read the page as a newcomer does, and rewrite
the sentences that you read twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.imports import ROOT
from tests.prose import docstrings_of, field_docs_of, measure, sentences_of

HEADLESS_MAX = 0.01
VAGUE_PER_1000_MAX = 3.0
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md"]
PAGES += [f"docs/{folder}/*.md" for folder in ("concepts", "decisions", "guides", "internals")]
PAGES += ["docs/reference/*.md", "examples/*/README.md"]
PACKAGES = ["runtime", "streams", "balancers", "providers", "console", "benchmarks", "examples"]
PACKAGES += ["tests", "tests/sim"]


@pytest.mark.parametrize("pages", PAGES)
def test_pages_name_their_subjects(pages: str) -> None:
    check(page.read_text() for page in ROOT.glob(pages))


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_their_subjects(package: str) -> None:
    check(text for file in files_of(package) for text in docstrings_of(file.read_text()))


def test_docstrings_of_fields_name_their_subjects() -> None:
    """They are measured apart, because they are a small part of all docstrings."""
    files = [file for package in PACKAGES for file in files_of(package)]
    check(text for file in files for text in field_docs_of(ast.parse(file.read_text())))


def files_of(package: str) -> Iterable[Path]:
    return (ROOT / package).rglob("*.py")


def check(texts: Iterable[str]) -> None:
    prose = measure(texts)
    assert prose.sentences > 5
    assert prose.headless_share < HEADLESS_MAX, "\n".join(prose.headless)
    assert prose.vague_per_1000 < VAGUE_PER_1000_MAX


@pytest.mark.parametrize(
    ("text", "headless", "vague"),
    [
        ("What follows the head. The rest of it comes later.", 1, 1),
        ("Who comes last under a name has it.", 1, 1),
        ("What does the head of a page say?", 0, 1),
        ("The agent reads the events of a queue.", 0, 0),
        ("`Who` is a name. The silo tells what it knows.", 0, 1),
        ("# What is here\n\n| what | who |\n\nThe table names three columns.", 0, 0),
    ],
)
def test_a_sentence_without_a_subject_is_seen(text: str, headless: int, vague: int) -> None:
    prose = measure([text])
    assert (len(prose.headless), prose.vague) == (headless, vague)


def test_a_list_has_a_sentence_for_each_item() -> None:
    text = "It has these parts:\n\n- The first part is here.\n- The second part is there.\n"
    assert list(sentences_of(text)) == [
        "It has these parts:",
        "The first part is here.",
        "The second part is there.",
    ]


def test_a_string_after_a_field_or_constant_is_its_docstring() -> None:
    source = """
LIMIT: int = 4
'''The largest number.'''
print("the text of a call")

class Options:
    '''Options of a queue.'''

    '''a text after no field'''
    name: str
    '''The name of a queue,
    or nothing.'''
    size = 2
"""
    assert sorted(docstrings_of(source)) == [
        "Options of a queue.",
        "The largest number.",
        "The name of a queue,\nor nothing.",
    ]
