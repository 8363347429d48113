#!/bin/sh
# Install memhook for Claude Code.
#
#   sh install.sh                                    from a checkout: the memhook.py beside this file
#   curl -fsSL https://…/install.sh | sh             fetched; the words I CONSENT are asked for at your terminal
#   MEMHOOK_FROM=/media/stick/memhook.py sh install.sh    offline
#
# Options and environment: sh install.sh --help (usage, below).
# It needs no root, installs no package, and changes only Claude's folder; memhook.py itself tells what, and asks.
set -eu

BASE_URL=${MEMHOOK_BASE_URL:-https://raw.githubusercontent.com/memhook/memhook/main}
SHA256=${MEMHOOK_SHA256-46689d494c4a11029896c3c3c21c1f02ae7598acd924c21684e075dde957aaf9}

tell() { printf '%s\n' "$*" >&2; }

fail() {
    tell "install.sh: $1"
    [ $# -lt 2 ] || tell "            $2"
    exit 1
}

is_python() { # PROGRAM
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1
}

# PYTHON, else the first Python that runs and is 3.9 or newer: a name on PATH may be a stub that only opens a shop.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_python "$PYTHON" || fail "PYTHON=$PYTHON is no Python 3.9 or newer that runs" \
            "name one that does, or leave PYTHON out: then one is looked for on PATH"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python; do
        if is_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.9 or newer was found" "install Python 3, or name one: PYTHON=/path/to/python3 sh install.sh"
}

fetch() { # URL FILE
    if command -v curl >/dev/null 2>&1; then
        curl -fsSL --retry 2 "$1" -o "$2"
    elif command -v wget >/dev/null 2>&1; then
        wget -q "$1" -O "$2"
    else
        "$python" -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])' "$1" "$2"
    fi
}

# The SHA-256 of a file, by the first tool that works.
checksum() { # FILE
    sum=$(sha256sum <"$1" 2>/dev/null) || sum=$(shasum -a 256 <"$1" 2>/dev/null) ||
        sum=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$1")
    printf '%s\n' "${sum%% *}"
}

# Put memhook.py into the temporary folder and say where it came from.
obtain() {
    beside=$(dirname "$0")/memhook.py
    if [ -n "${MEMHOOK_FROM:-}" ]; then
        [ ! -d "$MEMHOOK_FROM" ] || fail "$MEMHOOK_FROM is a folder" "name the file in it: MEMHOOK_FROM=${MEMHOOK_FROM%/}/memhook.py"
        [ -f "$MEMHOOK_FROM" ] || fail "there is no file $MEMHOOK_FROM" "MEMHOOK_FROM names a memhook.py"
        cp "$MEMHOOK_FROM" "$work/memhook.py"
        origin=$MEMHOOK_FROM
    elif [ "$(basename "$0")" = install.sh ] && [ -f "$beside" ]; then
        cp "$beside" "$work/memhook.py"
        origin=$beside
        tell "memhook.py: $origin (this checkout; no checksum was compared)"
        return
    else
        origin=$BASE_URL/memhook.py
        fetch "$origin" "$work/memhook.py" || fail "cannot fetch $origin" "offline? MEMHOOK_FROM=/path/to/memhook.py sh install.sh"
    fi
    if [ -z "$SHA256" ]; then
        tell "memhook.py: $origin (no checksum was compared)"
    elif [ "$(checksum "$work/memhook.py")" = "$SHA256" ]; then
        tell "memhook.py: $origin (SHA-256 as expected)"
    else
        fail "$origin is not the memhook.py that this installer belongs to: its SHA-256 differs" \
            "fetch both files again; for a memhook.py of your own: MEMHOOK_SHA256= sh install.sh"
    fi
}

uninstall() { # [--purge]
    program=${CLAUDE_CONFIG_DIR:-$HOME/.claude}/memhook.py
    [ -f "$program" ] || program=$(dirname "$0")/memhook.py
    if [ ! -f "$program" ]; then
        left=${MEMHOOK_HOME:-${CLAUDE_CONFIG_DIR:-$HOME/.claude}/memhook-data}
        fault="memhook is not installed: there is no ${CLAUDE_CONFIG_DIR:-$HOME/.claude}/memhook.py"
        [ -d "$left" ] || fail "$fault" "there are no memories either, in $left"
        what=memories
        [ ! -e "$left/hub.db" ] || what="memories, and the hub's database (hub.db),"
        fail "$fault" "$what stay in $left; to erase them: rm -r '$(printf '%s' "$left" | sed "s/'/'\\\\''/g")'"
    fi
    "$python" "$program" uninstall "$@"
}

usage() {
    cat >&2 <<'END'
usage: sh install.sh [--dry-run] [--consent PHRASE] [--no-mcp] | --uninstall [--purge]

  --dry-run           say what would be done; do nothing
  --consent PHRASE    the words I CONSENT, where nobody can type them
  --no-mcp            do not offer the MCP server
  --uninstall         remove what install added; memories stay
  --purge             with --uninstall: asks for the word PURGE, then erases them too

environment:
  MEMHOOK_BASE_URL    where memhook.py is fetched from
  MEMHOOK_FROM        a memhook.py to take instead
  MEMHOOK_SHA256      the checksum to expect; empty: none
  MEMHOOK_HOME        where memories are kept (memhook-data in Claude's folder)
  CLAUDE_CONFIG_DIR   Claude's folder (~/.claude)
  PYTHON              the Python to use
END
}

wrong() { # FAULT
    usage
    tell "install.sh: $1"
    exit 2
}

# What memhook.py does not take, in the words of this script.
check_options() {
    what=install
    if [ "${1:-}" = --uninstall ]; then
        what=uninstall
        shift
    fi
    while [ $# -gt 0 ]; do
        case "$what $1" in
        "install --dry-run" | "install --no-mcp" | "install --consent="* | "uninstall --purge") ;;
        "install --consent")
            [ $# -gt 1 ] || wrong "--consent needs a PHRASE after it"
            shift
            ;;
        *) wrong "there is no option $1 to $what" ;;
        esac
        shift
    done
}

main() {
    case " $* " in
    *" -h "* | *" --help "*)
        usage
        exit 0
        ;;
    esac
    check_options "$@"
    python=$(find_python)
    if [ "${1:-}" = --uninstall ]; then
        shift
        uninstall "$@"
        return
    fi
    work=$(mktemp -d "${TMPDIR:-/tmp}/memhook-install.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    obtain
    "$python" "$work/memhook.py" install "$@"
}

# In braces: of a download that was cut anywhere, nothing runs.
{ main "$@"; }
