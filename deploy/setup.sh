#!/bin/sh
# Make .venv with what a command needs, once: sh deploy/setup.sh run|dev
# Or build the wheel, with no environment of ours: sh deploy/setup.sh wheel
#
# Installs again only when pyproject.toml, the interpreter or the wanted extras have
# changed. Says what is missing and how to get it. Nothing is compiled here: of torch alone there
# are thousands of modules that nobody imports, and what is imported is compiled then.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
want=${1:-run}
case $want in
    run) extras=edge,coordinator,plots ;;
    dev) extras=dev ;;
    wheel) ;;
    *) echo "setup: unknown set '$want'; use run, dev or wheel" >&2; exit 2 ;;
esac

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python3.14 python; do
        if command -v "$name" >/dev/null 2>&1 && fits "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "setup: no Python 3.11 or newer; apt install python3.11 python3.11-venv" \
        "(Debian 12, Ubuntu 24.04), or set PYTHON=/path/to/python3.11" >&2
    exit 1
}

can_make_environments() {
    "$1" -c 'import venv, ensurepip' 2>/dev/null && return
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "setup: $1 cannot make environments; apt install python$version-venv" >&2
    exit 1
}

# pip fetches the build backend for itself; Debian lets a system's pip build, only not install.
if [ "$want" = wheel ]; then
    python=$(find_python)
    made=
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        can_make_environments "$python"
        made=$(mktemp -d)
        trap 'rm -rf "$made"' EXIT
        "$python" -m venv "$made"
        python=$made/bin/python
    fi
    rm -f dist/fedagent-*.whl
    if ! "$python" -m pip wheel --quiet --disable-pip-version-check --no-input --no-deps \
        --wheel-dir dist .; then
        echo "setup: the wheel was not built; is the package index reachable? then try again" >&2
        exit 1
    fi
    ls dist/fedagent-*.whl
    exit 0
fi

stamp=$venv/.installed
mark() { cksum <pyproject.toml | tr ' ' '-'; }
have() { [ -f "$stamp" ] && [ -x $venv/bin/fedagent ] && grep -qx "$1 $(mark)" "$stamp"; }
if have dev || have "$want"; then exit 0; fi

if ! [ -x $venv/bin/python ] || ! fits $venv/bin/python; then
    python=$(find_python)
    echo "setup: making $venv with $python" >&2
    can_make_environments "$python"
    "$python" -m venv --clear $venv
fi
install() {
    if ! $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
        --prefer-binary --no-compile "$@"; then
        echo "setup: the installation failed; is the package index reachable? then try again" >&2
        exit 1
    fi
}
echo "setup: installing fedagent[$extras] into $venv" >&2
# What the tests of CI run with is what was locked; people's machines take what fits.
if [ -n "${CI:-}" ] && [ "$want" = dev ]; then install --require-hashes -r deploy/ci.lock; fi
install --editable ".[$extras]"
echo "$want $(mark)" >"$stamp"
