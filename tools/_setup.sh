# Shared by tools/test and tools/quickstart: makes .venv and keeps it in step with the requirements.
# Sourced, never run. Sets root (the checkout) and python (the interpreter of .venv).
#
# Safe to run again at any time: what is already right is left alone, what an earlier run left half
# done is done anew. A stamp inside .venv says what was installed; it is written last.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
python="$venv/bin/python"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '%s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# apt_install NAME: true if the package is there afterwards.
apt_install() {
    can_apt || return 1
    say "installing $1 with apt-get"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"; } \
        </dev/null >/dev/null
}

# The newest-enough Python to make .venv with; $PYTHON overrides.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    # A .venv that was moved, or whose Python is gone, does not know itself: make it again.
    if "$python" -c 'import os, sys; sys.exit(not os.path.samefile(sys.prefix, sys.argv[1]))' \
        "$venv" 2>/dev/null && "$python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    local base
    base=$(find_python) || die "castore needs Python 3.11 or newer; set PYTHON to one"
    say "making .venv with $("$base" --version)"
    rm -rf "$venv"
    # Debian splits venv off: install it where that is all that is missing.
    "$base" -m venv "$venv" >/dev/null 2>&1 || {
        rm -rf "$venv"
        apt_install python3-venv || true
        "$base" -m venv "$venv" || die "cannot make .venv (on Debian: apt-get install python3-venv)"
    }
}

# quietly WHAT COMMAND...: runs it with its output kept for the case that it fails; on a terminal
# the seconds tick.
quietly() {
    local what=$1 log="$venv/install.log" pid start=$SECONDS status=0
    shift
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    if [ -t 1 ]; then
        while kill -0 "$pid" 2>/dev/null; do
            printf '\r%s (%d s) ' "$what" $((SECONDS - start))
            sleep 0.5
        done
        printf '\r\033[K'
    fi
    wait "$pid" || status=$?
    if [ "$status" != 0 ]; then
        cat "$log" >&2
        die "$what: failed (the output is above)"
    fi
    say "$what: done in $((SECONDS - start)) s"
}

# install_requirements FILE: brings .venv to what FILE (and what it includes) pins, and installs
# castore itself, editable, so that the checkout is what runs.
install_requirements() {
    local file=$1 want stamp="$venv/.stamp-$1"
    make_venv
    # The checkout's own place counts too: scripts and the editable install name it.
    want=$({
        printf '%s\n' "$root"
        cat "$root"/requirements*.txt "$root/pyproject.toml"
    } | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ -x "$venv/bin/castore" ]; then
        return
    fi
    rm -f "$stamp"
    quietly "installing $file" "$python" -m pip install -q -r "$root/$file"
    quietly "installing castore" "$python" -m pip install -q --no-deps -e "$root"
    printf '%s\n' "$want" >"$stamp"
}
