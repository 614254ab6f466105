"""`millstream run`: the meaning of its arguments, and its errors for wrong ones."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from pathlib import Path

import pytest

import millstream.runtime
from millstream.console.main import main
from millstream.runtime import ConfigError, Silo, Tls
from millstream.runtime.run.program import prepare, read_arguments

APP = """
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.runtime import Grain, Silo
from millstream.streams import PersistentStreams

class Counter(Grain):
    async def add(self) -> int:
        return 1

number = 5
silo = Silo(grains=[Counter])
kept = {}

def make(**options):
    kept.update(options)
    return Silo(grains=[Counter], **options)

def plain(name=""):
    return Silo(grains=[Counter], name=name)

def make_ledger(**options):
    streams = PersistentStreams(LedgerQueues("ledger"), balancer=DeploymentBalancer())
    kept.update(options)
    return Silo(grains=[Counter], streams={"default": streams}, **options)

def nothing():
    return None

def named(**options):
    return Silo(cluster="bank", **options)


async def later():
    return Silo(grains=[Counter])

class Box:
    inner = staticmethod(plain)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the test's module. Each test has another name, because modules stay imported."""
    name = f"run_app_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / f"{name}_broken.py").write_text("import no_such_module_inside")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_only_what_was_given_reaches_the_factory() -> None:
    assert read_arguments({}, {}) == {}
    assert read_arguments({"name": "one", "cluster": None}, {"MILLSTREAM_CLUSTER": ""}) == {
        "name": "one"
    }


def test_each_option_has_a_flag_and_a_variable_and_the_flag_wins() -> None:
    flags: dict[str, str | None] = {
        "name": "one",
        "listen": "127.0.0.1:7700",
        "advertise": "localhost:0",
        "cluster": "airports",
        "membership": "sqlite:members",
        "store": "sqlite:state,old=sqlite:more",
        "labels": "zone=a,disk=ssd",
        "insecure": "yes",
        "tls": "/etc/shop",
        "bookie": "yes",
    }
    expected = {
        "name": "one",
        "address": "127.0.0.1:7700",
        "advertise": "localhost:0",
        "cluster": "airports",
        "membership": "sqlite:members",
        "stores": {"default": "sqlite:state", "old": "sqlite:more"},
        "labels": {"zone": "a", "disk": "ssd"},
        "insecure": True,
        "tls": Tls("/etc/shop/tls.crt", "/etc/shop/tls.key", "/etc/shop/ca.crt"),
        "bookie": True,
    }
    variables = {f"MILLSTREAM_{flag.upper()}": text or "" for flag, text in flags.items()}
    assert (
        read_arguments({}, variables)
        == read_arguments(flags, dict.fromkeys(variables, "wrong"))
        == expected
    )


def test_the_factory_makes_the_silo_with_the_options(here: str) -> None:
    silo = prepare(f"{here}:make", {"name": "one", "cluster": "c"})
    assert isinstance(silo, Silo)
    assert importlib.import_module(here).kept == {"name": "one", "cluster": "c"}
    assert isinstance(prepare(f"{here}:Box.inner", {}), Silo)


def test_the_factory_of_a_bookie_does_not_hear_of_it(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"membership": "sqlite:data", "store": "sqlite:data"}
    monkeypatch.setenv("MILLSTREAM_BOOKIE", "yes")
    assert isinstance(prepare(f"{here}:make_ledger", shared), Silo)
    assert importlib.import_module(here).kept == {
        "membership": "sqlite:data",
        "stores": {"default": "sqlite:data"},
    }
    monkeypatch.setenv("MILLSTREAM_BOOKIE", "no")
    assert isinstance(prepare(f"{here}:make", {}), Silo)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["app"], "'app' is not the name of a function: write package.module:function"),
        (["a b:c"], "is not the name of a function"),
        (["no_such:make"], "no module 'no_such' in .* run the command in the module.s directory"),
        (["{}.more:make"], "no module"),
        (
            ["{}:mak"],
            "has no 'mak'; its functions: later, make, make_ledger, named, nothing, plain",
        ),
        (["{}:number"], "is int, not a function"),
        (["{}:silo"], "is a Silo: name a function that returns a Silo"),
        (["{}:nothing"], "returned NoneType, not a Silo"),
        (["{}:later"], "is async: name a plain function"),
        (
            ["{}:named", "--cluster", "x"],
            "sets 'cluster' itself.*: write Silo.*, so that the option",
        ),
        (["{}:plain", "--cluster", "c"], r"takes \(name=''\), and was given cluster: .*'cluster'"),
        (["{}:make", "--listen", "7700"], "--listen: '7700' is not an address: write host:port"),
        (["{}:make", "--insecure", "--cluster", "c", "--listen", "x"], "--listen: 'x' is not"),
        (["{}:make", "--listen", "0.0.0.0:0"], "other machines can reach 0.0.0.0:0"),
        (["{}:make", "--advertise", "x"], "--advertise: 'x' is not an address"),
        (["{}:make", "--store", "sqlit:x"], "--store: 'sqlit:x': no .* installed: .*sqlite"),
        (["{}:make", "--membership", "x"], "--membership: 'x': no .* installed: .*sqlite"),
        (
            ["{}:make", "--bookie"],
            r"--bookie: '.*:make': no part .* has a bookie \(it has no parts\): pass a",
        ),
        (["{}:make_ledger", "--bookie"], "--bookie: .*no other silo can find its bookie: pass"),
        (["{}:make", "--store", "sqlite:a,default=sqlite:b"], "store 'default' is given twice"),
        (["{}:make", "--labels", "zone"], "--labels: 'zone' is no label: write NAME=VALUE"),
        (["{}:make", "--labels", "zone=a,zone=b"], "--labels: label 'zone' is given twice"),
        (
            ["{}:make", "--labels", "zone="],
            "--labels: NAME=VALUE,...: the value of 'zone' of a label",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_line_with_exit_code_2(
    words: list[str], text: str, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *(word.format(here) for word in words)]) == 2
    told = capsys.readouterr().err
    assert re.match(f"millstream run: .*{text}", told) and told.count("\n") == 1, told
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and "cache" not in path.name]


def test_a_variable_that_is_wrong_is_named(
    here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_LISTEN", "nowhere")
    assert main(["run", f"{here}:make"]) == 2
    assert "MILLSTREAM_LISTEN: 'nowhere'" in capsys.readouterr().err


def test_an_error_inside_of_the_module_keeps_its_traceback(
    here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{here}_broken:make"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and "no_such_module_inside" in told


def test_addresses_of_a_silo_are_read_before_anything_is_done() -> None:
    with pytest.raises(ConfigError, match=r"Silo\(advertise=...\): 'here' is not an address"):
        Silo(grains=[], advertise="here")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    version = importlib.metadata.version("millstream")
    assert millstream.runtime.__version__ == version
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == f"millstream {version}\n"
    with pytest.raises(AttributeError, match="no attribute 'more'"):
        _ = millstream.runtime.more  # type: ignore[attr-defined]
