#!/bin/sh
# Runs tests on each supported version of Python but that of `.venv`, in a `.venv-VERSION` of its own.
# The script skips a version that is not installed, with a message; it fails if MILLSTREAM_REQUIRES
# names that version (python3.11). WHOLE=1: the long tests, too, and all examples of every property.
# docs/decisions/0031-which-tests-run-on-which-python.md says which tests run where, and why.
set -eu
cd "$(dirname "$0")/.."
ALL="not real and not spark and not spark_faults"
QUICK="$ALL and not slow and not spare"
ACTION=${1:-run}
OWN=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

install() { # VERSION EXTRAS: fails if this is the version of `.venv`, or if it is not installed
  [ "$1" != "$OWN" ] || return 1
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
  [ "$ACTION" = run ]
}

run() { # VERSION PROFILE MARKS TESTS...
  python=".venv-$1/bin/python" profile=$2 marks=$3
  shift 3
  "$python" -m pytest -q -n 2 --maxschedchunk 8 --hypothesis-profile "$profile" -p no:cacheprovider \
    -m "$marks" "$@"
}

folders() { # VERSION
  if [ -n "${WHOLE:-}" ]; then
    run "$1" millstream "$ALL" tests/runtime tests/streams tests/providers
  else
    run "$1" fast "$QUICK" tests/runtime tests/streams tests/providers
  fi
}

cancellation() { # VERSION: turns, calls, and every test of a cancellation
  # shellcheck disable=SC2046  # no name of a file has a space
  run "$1" fast "$QUICK" -k "turns or calls or cancel" tests/runtime/turns tests/runtime/calls \
    $(grep -rlE 'def test_\w*cancel' tests/runtime tests/streams tests/providers --include='test_*.py')
}

EXTRAS=bench,connect,http,index,metrics,pipelines,postgres,redis,spark,dev
if install 3.11 $EXTRAS; then folders 3.11; fi
if install 3.12 bench,http,index,postgres,redis,dev; then cancellation 3.12; fi # up to 3.12 a handled TaskGroup leaves its cancellation counted
if install 3.13 $EXTRAS; then folders 3.13; fi
