#!/bin/sh
# Make .venv with what a command needs, once: sh deploy/setup.sh run|dev
#
# Installs again only when pyproject.toml, the interpreter or the wanted extras have
# changed. Says what is missing and how to get it.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
want=${1:-run}
case $want in
    run) extras=edge,report ;;
    dev) extras=dev ;;
    *) echo "setup: unknown set '$want'; use run or dev" >&2; exit 2 ;;
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

stamp=$venv/.installed
mark() { cksum <pyproject.toml | tr ' ' '-'; }
have() { [ -f "$stamp" ] && [ -x $venv/bin/fedagent ] && grep -qx "$1 $(mark)" "$stamp"; }
if have dev || have "$want"; then exit 0; fi

if ! [ -x $venv/bin/python ] || ! fits $venv/bin/python; then
    python=$(find_python)
    echo "setup: making $venv with $python" >&2
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "setup: $python cannot make environments; apt install python$version-venv" >&2
        exit 1
    fi
    "$python" -m venv --clear $venv
fi
echo "setup: installing fedagent[$extras] into $venv" >&2
if ! $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
    --prefer-binary --editable ".[$extras]"; then
    echo "setup: the installation failed; is the package index reachable? then try again" >&2
    exit 1
fi
echo "$want $(mark)" >"$stamp"
