"""Figures of English text: habits that make a reader stop.

A headless sentence begins with a relative clause that has no noun ("What follows the head."). The
words "what", "who", "whoever" and "whatever" are counted, too, because they often stand in place of
a noun. Code, headings and tables do not count.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.imports import statements_of

NOT_PROSE = re.compile(
    r"```.*?```"  # blocks of code
    r"|^[ \t]*\|[^\n]*$"  # rows of tables
    r"|^#+ [^\n]*$",  # headings
    re.M | re.S,
)
IN_CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?:^|\n)\s*(?:[-*]|\d+\.) |(?<=[.!?])\s+(?=[A-Z\"*])|\n\s*\n")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
HEADLESS = re.compile(r"\W*(?:What|Who|Whoever|Whatever|Where|Which)\b")
VAGUE = frozenset({"what", "who", "whoever", "whatever"})
WORDS_MIN = 4  # a shorter text is a label
OWNERS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
"""Nodes with docstrings."""


@dataclass(frozen=True, slots=True)
class Prose:
    """Counts of a text; `vague` are the words of VAGUE."""

    sentences: int
    words: int
    headless: tuple[str, ...]
    vague: int

    @property
    def headless_share(self) -> float:
        """The share of headless sentences."""
        return len(self.headless) / max(1, self.sentences)

    @property
    def vague_per_1000(self) -> float:
        """Vague words per 1,000 words."""
        return 1_000 * self.vague / max(1, self.words)


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a page or docstring, without code and markup."""
    plain = LINK.sub(r"\1", IN_CODE.sub("CODE", NOT_PROSE.sub("", text)))
    for part in END.split(plain):
        sentence = " ".join(part.split())
        if len(WORD.findall(sentence)) >= WORDS_MIN:
            yield sentence


def measure(texts: Iterable[str]) -> Prose:
    """Measure several texts together."""
    sentences = [sentence for text in texts for sentence in sentences_of(text)]
    words = [word.lower() for sentence in sentences for word in WORD.findall(sentence)]
    return Prose(
        sentences=len(sentences),
        words=len(words),
        headless=tuple(
            sentence
            for sentence in sentences
            if HEADLESS.match(sentence) and not sentence.endswith("?")
        ),
        vague=sum(word in VAGUE for word in words),
    )


def docstrings_of(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions, fields and constants."""
    tree = ast.parse(source)
    for node in statements_of(tree):
        if isinstance(node, OWNERS) and (docstring := ast.get_docstring(node)):
            yield docstring
    yield from field_docs_of(tree)


def field_docs_of(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of fields and constants: each is a string directly after a field."""
    for node in statements_of(tree):
        for before, after in pairwise(node.body if isinstance(node, OWNERS) else ()):
            if isinstance(before, ast.Assign | ast.AnnAssign) and (text := text_of(after)):
                yield inspect.cleandoc(text)


def text_of(statement: ast.stmt) -> str:
    """Return the text of a statement that is only a string; empty for other statements."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        text = statement.value.value
        return text if isinstance(text, str) else ""
    return ""
