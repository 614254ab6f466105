"""`millstream certs`: files, output, and errors."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from millstream.console.main import main


def run(*words: str | Path) -> int:
    return main(["certs", *map(str, words)])


def subject_of(path: Path) -> str:
    found = ssl.create_default_context(cafile=str(path)).get_ca_certs()
    return str(found[0]["subject"])


def test_init_makes_an_authority_and_two_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "made"
    assert run("init", directory, "--cluster", "my shop", "--days", "30") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [
        f"{directory}/silo: millstream://my%20shop/silo/silo",
        f"{directory}/client: millstream://my%20shop/client/client",
    ]
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.*"))
    names = ("ca.crt", "tls.crt", "tls.key")
    owned = [f"{owner}/{name}" for owner in ("client", "silo") for name in names]
    assert files == ["ca.crt", "ca.key", *owned]
    assert {path.stat().st_mode & 0o777 for path in directory.rglob("*.key")} == {0o600}
    assert "my shop" in subject_of(directory / "ca.crt")


def test_issue_makes_more_certificates_and_renews_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "made"
    run("init", directory)
    assert run("issue", directory, "--client", "web", "--days", "5") == 0
    first = (directory / "web" / "tls.crt").read_bytes()
    assert run("issue", directory, "--client", "web") == 0
    assert (directory / "web" / "tls.crt").read_bytes() != first
    assert run("issue", directory, "--silo", "berlin-1", "--into", tmp_path / "elsewhere") == 0
    capsys.readouterr()
    assert run("show", tmp_path / "elsewhere") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "name    millstream://dev/silo/berlin-1"
    assert shown[1] == "issuer  CN=authority of dev,O=dev"
    assert shown[3] == "left    364 days"
    assert run("show", directory / "ca.crt") == 0
    assert capsys.readouterr().out.startswith("name    none\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("init", "{made}"), "has files: name a new directory"),
        (("init", "{new}", "--cluster", "a/b"), "'a/b' has a slash"),
        (("init", "{new}", "--cluster", ""), "'' is not a name of 1 to 64"),
        (("issue", "{new}", "--silo", "a"), "ca.crt does not exist: make an authority"),
        (("issue", "{made}", "--silo", "../a"), "has a slash"),
        (("issue", "{made}", "--client", ".."), "'..' is not a name"),
        (("issue", "{broken}", "--client", "a"), "cannot be read"),
        (("show", "{new}"), "No such file"),
        (("show", "{made}/ca.key"), "is not a certificate in PEM"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, broken = tmp_path / "made", tmp_path / "broken"
    run("init", made)
    run("init", broken)
    (broken / "ca.key").write_text("no key")
    before = sorted(made.rglob("*"))
    capsys.readouterr()
    places = {"made": made, "new": tmp_path / "new", "broken": broken}
    assert run(*(word.format(**places) for word in words)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"millstream certs {words[0]}: ") and text in line
    assert sorted(made.rglob("*")) == before


def test_one_owner_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("issue", tmp_path), ("issue", tmp_path, "--silo", "a", "--client", "b")):
        with pytest.raises(SystemExit) as ended:
            run(*words)
        assert ended.value.code == 2
