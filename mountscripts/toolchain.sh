#!/usr/bin/env bash
# Makes sure that what the build needs is there, and exports the build's environment. To be sourced, by bash:
#     . mountscripts/toolchain.sh
# Exports NPYFS_CACHE (private files, by default ${XDG_CACHE_HOME:-~/.cache}/npyfs), CARGO_TARGET_DIR (inside it, so that
# a new clone finds the dependencies compiled) and PATH (with a new enough CMake and Rust first).
# Clones share CARGO_TARGET_DIR one after the other; two that build at the same time want two: set it for one of them.
# With apt-get and root or password-less sudo it installs what is missing, and says so; otherwise it says what is missing
# and returns 1. If nothing is missing it is silent.

npyfs_cmake_least=3.26    # what HDF5 asks for
npyfs_cmake_taken=4.4.4   # what is taken from PyPI where the system has nothing new enough

npyfs_say() { printf 'npyfs: %s\n' "$*" >&2; }
npyfs_have() { command -v "$1" >/dev/null 2>&1; }

# npyfs_at_least VERSION WANTED
npyfs_at_least() {
    local -a version wanted
    local i a b
    IFS=. read -ra version <<<"$1"
    IFS=. read -ra wanted <<<"$2"
    [ ${#version[@]} -gt 0 ] || return 1
    for i in 0 1 2; do
        a=${version[i]:-0} b=${wanted[i]:-0}
        a=${a%%[!0-9]*} b=${b%%[!0-9]*}
        [ "${a:-0}" -eq "${b:-0}" ] || { [ "${a:-0}" -gt "${b:-0}" ]; return; }
    done
}

npyfs_as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif npyfs_have sudo && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Whether packages can be installed; the package lists are brought up to date the first time that one must be.
npyfs_apt_ready() {
    npyfs_have apt-get && npyfs_as_root true || return 1
    [ -z "$npyfs_apt_updated" ] || return 0
    npyfs_apt_updated=yes
    npyfs_say "apt-get update"
    npyfs_as_root apt-get update -qq >&2 || npyfs_say "apt-get update failed; going on with the package lists that are here"
}

npyfs_apt_install() {
    local package log
    for package in "$@"; do npyfs_say "installing $package (apt)"; done
    log=$(npyfs_as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-remove --no-install-recommends "$@" 2>&1) && return 0
    printf '%s\n' "$log" | tail -n 20 >&2
    return 1
}

# The first Python that can make virtual environments with pip in them.
npyfs_python() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 && { printf '%s\n' "$python"; return 0; }
    done
    return 1
}

npyfs_cmake_version() {
    local line
    line=$(cmake --version 2>/dev/null) || return 0
    line=${line%%$'\n'*}
    printf '%s\n' "${line##* }"
}

npyfs_cmake_enough() {
    npyfs_at_least "$(npyfs_cmake_version)" "$npyfs_cmake_least" && return 0
    # One that was taken from PyPI before.
    "$npyfs_cmake_dir/bin/cmake" --version >/dev/null 2>&1 || return 1
    PATH=$npyfs_cmake_dir/bin:$PATH
}

npyfs_packages() {
    local missing=()
    npyfs_have fusermount3 || missing+=(fuse3)
    npyfs_have make || missing+=(make)
    cc -E -x c - <<<'#include <stdlib.h>' >/dev/null 2>&1 || missing+=(gcc libc6-dev)
    c++ -E -x c++ - <<<'#include <string>' >/dev/null 2>&1 || missing+=(g++)
    npyfs_cmake_enough || npyfs_python >/dev/null || missing+=(python3 python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! npyfs_apt_ready; then
        npyfs_say "missing: ${missing[*]}"
        if npyfs_have apt-get; then
            npyfs_say "neither root nor password-less sudo is here to install them; do: sudo apt-get install ${missing[*]}"
        else
            npyfs_say "these are Debian's names, but there is no apt-get; install them by your system's own means"
        fi
        return 1
    fi
    npyfs_apt_install "${missing[@]}" || { npyfs_say "apt-get could not install: ${missing[*]}"; return 1; }
}

npyfs_cmake() {
    local here python making from
    npyfs_cmake_enough && return 0
    here=$(npyfs_cmake_version)
    npyfs_say "installing CMake $npyfs_cmake_taken (PyPI) into $npyfs_cmake_dir: HDF5 needs at least $npyfs_cmake_least, here is ${here:-none}"
    python=$(npyfs_python) || { npyfs_say "missing: a python3 with venv and ensurepip"; return 1; }
    mkdir -p "$NPYFS_CACHE" && making=$(mktemp -d "$NPYFS_CACHE/cmake.XXXXXX") || return 1
    # The program is moved out of the finished environment: there is never half of it, it needs no Python, and the
    # environment's python3 does not come before the user's in PATH.
    if "$python" -m venv "$making/venv" >&2 &&
        "$making/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
            "cmake==$npyfs_cmake_taken" >&2 &&
        from=$("$making/venv/bin/python" -c 'import cmake, os; print(os.path.dirname(cmake.CMAKE_BIN_DIR))'); then
        rm -rf -- "$npyfs_cmake_dir"
        mv -T -- "$from" "$npyfs_cmake_dir" || :
    fi
    rm -rf -- "$making"
    npyfs_cmake_enough && return 0
    npyfs_say "missing: CMake >= $npyfs_cmake_least; pip could not install cmake $npyfs_cmake_taken from PyPI"
    return 1
}

# npyfs_version_of PROGRAM: the second word of what it says
npyfs_version_of() {
    local line
    line=$(RUSTUP_AUTO_INSTALL=0 "$1" --version 2>/dev/null) || return 0
    line=${line#* }
    printf '%s\n' "${line%% *}"
}

npyfs_rust_enough() {
    npyfs_at_least "$(npyfs_version_of cargo)" "$npyfs_rust_least" &&
        npyfs_at_least "$(npyfs_version_of rustc)" "$npyfs_rust_least"
}

# rustup's stable toolchain, first in PATH; the user's default stays what it is.
npyfs_rust_stable() {
    local cargo path=$PATH
    cargo=$(RUSTUP_AUTO_INSTALL=0 rustup which --toolchain stable cargo 2>/dev/null) || return 1
    PATH=${cargo%/*}:$PATH
    npyfs_rust_enough && return 0
    PATH=$path
    return 1
}

npyfs_rust() {
    local here script path=$PATH home=${CARGO_HOME:-$HOME/.cargo}
    npyfs_rust_enough && return 0
    # rustup's folder, which a shell that was there before rustup does not know.
    if [ -d "$home/bin" ]; then
        PATH=$home/bin:$PATH
        npyfs_rust_enough && return 0
        PATH=$path:$home/bin
    fi
    npyfs_have rustup && npyfs_rust_stable && return 0

    here=$(npyfs_version_of cargo)
    npyfs_say "Rust $npyfs_rust_least or newer is needed, here is ${here:-none}"
    if npyfs_have rustup; then
        npyfs_say "installing Rust: rustup toolchain install stable"
        rustup toolchain install stable --profile minimal >&2 && npyfs_rust_stable && return 0
    else
        if npyfs_apt_ready && LC_ALL=C apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]'; then
            npyfs_say "installing Rust: package rustup, then rustup default stable"
            npyfs_apt_install rustup && rustup default stable >&2 && npyfs_rust_stable && return 0
            npyfs_say "that failed"
        fi
        npyfs_say "installing Rust: the installer from https://sh.rustup.rs, into $home"
        if npyfs_have curl || { npyfs_apt_ready && npyfs_apt_install curl ca-certificates; }; then
            script=$(curl --proto '=https' --tlsv1.2 -sSf --retry 2 https://sh.rustup.rs) &&
                sh -s -- -y --profile minimal --no-modify-path <<<"$script" >&2 &&
                PATH=$home/bin:$PATH && npyfs_rust_stable && return 0
        else
            npyfs_say "missing: curl"
        fi
    fi
    npyfs_say "missing: Rust >= $npyfs_rust_least, and it could not be installed; get it from https://rustup.rs and run this again"
    return 1
}

# Cargo does not tell two clones in one target folder apart: it looks at the times of the files, and may take what the other
# clone built for its own. So when the clone changes, npyfs itself, and nothing it depends on, is to be built again.
npyfs_same_clone() {
    local profile mark=$CARGO_TARGET_DIR/.npyfs-clone
    [ "$(cat "$mark" 2>/dev/null)" != "$1" ] || return 0
    for profile in "$CARGO_TARGET_DIR"/*/; do
        [ -d "$profile/.fingerprint" ] || continue
        # Cargo's own lock: not in the middle of a build.
        flock "$profile/.cargo-lock" rm -rf -- "$profile"/.fingerprint/npyfs-* || return 1
    done
    mkdir -p "$CARGO_TARGET_DIR" && printf '%s\n' "$1" >"$mark"
}

npyfs_toolchain() {
    local root
    root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P) || return 1
    NPYFS_CACHE=${NPYFS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/npyfs}
    case $NPYFS_CACHE in /*) ;; *) NPYFS_CACHE=$PWD/$NPYFS_CACHE ;; esac
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$NPYFS_CACHE/target}
    case $CARGO_TARGET_DIR in /*) ;; *) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;; esac
    export NPYFS_CACHE CARGO_TARGET_DIR PATH
    local npyfs_apt_updated='' npyfs_cmake_dir=$NPYFS_CACHE/cmake-$npyfs_cmake_taken npyfs_rust_least
    npyfs_rust_least=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
    npyfs_packages && npyfs_cmake && npyfs_rust && npyfs_same_clone "$root"
}

if npyfs_toolchain; then npyfs_toolchain_status=0; else npyfs_toolchain_status=1; fi
unset -f npyfs_say npyfs_have npyfs_at_least npyfs_as_root npyfs_apt_ready npyfs_apt_install npyfs_python npyfs_cmake_version \
    npyfs_cmake_enough npyfs_packages npyfs_cmake npyfs_version_of npyfs_rust_enough npyfs_rust_stable npyfs_rust npyfs_same_clone \
    npyfs_toolchain
unset npyfs_cmake_least npyfs_cmake_taken
[ "$npyfs_toolchain_status" -eq 0 ]
