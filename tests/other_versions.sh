#!/bin/sh
# Runs tests on the other versions of Python that are supported, each in a .venv-VERSION of its own.
# A version that is not installed is left out with a word; MILLSTREAM_REQUIRES can name it (python3.13).
# WHOLE=1: on 3.13 also the long tests of providers, and all examples of every property.
# docs/decisions/0031-which-tests-run-on-which-python.md says why these.
set -eu
cd "$(dirname "$0")/.."
ALL="not real and not spark and not spark_faults"
QUICK="$ALL and not slow and not spare"

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

run() { # VERSION PROFILE MARKS TESTS...
  python=".venv-$1/bin/python" profile=$2 marks=$3
  shift 3
  "$python" -m pytest -q -n 2 --maxschedchunk 8 --hypothesis-profile "$profile" -p no:cacheprovider \
    -m "$marks" "$@"
}

if install 3.12 dev; then # up to 3.12 a handled TaskGroup leaves its cancellation counted
  run 3.12 fast "$QUICK" tests/runtime/turns tests/runtime/calls
fi
if install 3.13 bench,connect,demo,examples,http,index,pipelines,redis,spark,dev; then
  if [ -n "${WHOLE:-}" ]; then
    run 3.13 millstream "$ALL" tests/runtime tests/streams tests/providers
  else
    run 3.13 fast "$ALL" tests/runtime tests/streams
    run 3.13 fast "$QUICK" tests/providers
  fi
fi
