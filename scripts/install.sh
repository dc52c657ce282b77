#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds for a prefix and installs:  scripts/install.sh PREFIX [DESTDIR]
set -eu
cd "$(dirname "$0")/.."
prefix=${1:?usage: scripts/install.sh PREFIX [DESTDIR]}
destdir=${2:-}
if [ -f build-install/build.ninja ]; then
    meson configure build-install -Dprefix="$prefix"
fi
scripts/build.sh build-install -Dprefix="$prefix" -Dbuildtype=release -Dwerror=false -Dtests=false
if [ -n "$destdir" ]; then
    DESTDIR=$destdir meson install -C build-install --no-rebuild
else
    meson install -C build-install --no-rebuild
    # So that programs find the library, if the loader searches the prefix at all.
    if [ "$(id -u)" -eq 0 ] && command -v ldconfig >/dev/null; then
        ldconfig
    fi
fi
