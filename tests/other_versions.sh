#!/bin/sh
# Runs tests on the other versions of Python that are supported, each in a .venv-VERSION of its own.
# A version that is not installed is left out with a word; MILLSTREAM_REQUIRES can name it (python3.13).
set -eu
cd "$(dirname "$0")/.."

install() { # VERSION EXTRAS: fails if there is no such Python
  python=$(tests/find_python "$1") || {
    echo "Python $1 is not installed: its tests were not run"
    case ",${MILLSTREAM_REQUIRES:-}," in *",python$1,"*) exit 1 ;; esac
    return 1
  }
  if [ ! -e ".venv-$1/.installed" ] || [ pyproject.toml -nt ".venv-$1/.installed" ]; then
    "$python" -m venv ".venv-$1"
    ".venv-$1/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$2]"
    touch ".venv-$1/.installed"
  fi
}

run() { # VERSION TESTS...
  python=".venv-$1/bin/python"
  shift
  "$python" -m pytest -q -n 2 --maxschedchunk 8 --hypothesis-profile fast -p no:cacheprovider \
    -m "not real and not spark and not spark_faults and not slow and not spare" "$@"
}

if install 3.12 dev; then # up to 3.12 a handled TaskGroup leaves its cancellation counted
  run 3.12 tests/runtime/turns tests/runtime/calls
fi
if install 3.13 bench,connect,console,demo,examples,http,index,pipelines,redis,spark,dev; then
  run 3.13 tests/runtime tests/streams tests/providers
fi
