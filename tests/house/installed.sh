#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty folder, then builds and runs small programs from what is there and nothing else.
#     tests/house/installed.sh BUILD_FOLDER SANITIZER
set -eu
build=$1
sanitizer=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sanitize=""
if [ "$sanitizer" != none ]; then
    sanitize="-fsanitize=$sanitizer"
fi

fail() {
    echo "installed: $1" >&2
    exit 1
}

DESTDIR=$work/root meson install -C "$build" --no-rebuild --quiet >"$work/install.log" 2>&1 || {
    cat "$work/install.log" >&2
    fail "meson install failed"
}
cd "$work"
pc=$(find root -name kvferry.pc)
[ -n "$pc" ] || fail "no kvferry.pc"
prefix=$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_LIBDIR="$work/${pc%/kvferry.pc}"
export PKG_CONFIG_SYSROOT_DIR="$work/root"
libdir=$work/root$(pkg-config --variable=libdir kvferry)
[ -d "$libdir" ] || libdir=$(pkg-config --variable=libdir kvferry)

for file in include/kvferry/kvferry.h bin/kvferry share/man/man1/kvferry.1; do
    [ -s "root$prefix/$file" ] || [ -s "root$prefix/$file.gz" ] || fail "$prefix/$file is not installed"
done
for file in libkvferry.so libkvferry.so.0 libkvferry.a; do
    [ -e "$libdir/$file" ] || fail "$file is not installed"
done
[ "$(ls "root$prefix/include/kvferry")" = "$(ls "$here/../../include/kvferry")" ] ||
    fail "not all headers are installed"
ar -t "$libdir/libkvferry.a" >members || fail "libkvferry.a is no archive"
[ "$(head -c 7 "$libdir/libkvferry.a")" = '!<arch>' ] || fail "libkvferry.a is a thin archive: its objects stay behind"
objdump -p "$libdir/libkvferry.so" | grep -q 'SONAME *libkvferry.so.0$' || fail "the soname is not libkvferry.so.0"

cflags=$(pkg-config --cflags kvferry)
shared=$(pkg-config --libs kvferry)
static=$(pkg-config --static --libs kvferry | sed 's/-lkvferry/-l:libkvferry.a/')
wanted=$(pkg-config --modversion kvferry)
run() { # NAME COMMAND...: builds and runs a program, which must print the version
    name=$1
    shift
    # shellcheck disable=SC2086 # one word per flag
    "$@" $sanitize -o "$name" || fail "$name does not build"
    printed=$(LD_LIBRARY_PATH=$libdir "./$name") || fail "$name fails"
    [ "$printed" = "$wanted" ] || fail "$name printed '$printed', expected '$wanted'"
}
# shellcheck disable=SC2086 # one word per flag
{
    run c-shared gcc -std=c11 -Wall -Wextra -Werror -pedantic $cflags "$here/installed.c" $shared
    run c-static gcc -std=c11 -Wall -Wextra -Werror -pedantic $cflags "$here/installed.c" $static
    cp "$here/installed.c" installed.cc
    run cc-shared g++ -std=c++11 -Wall -Wextra -Werror -pedantic $cflags installed.cc $shared
    run cc-static g++ -std=c++11 -Wall -Wextra -Werror -pedantic $cflags installed.cc $static
}
if ldd c-static | grep -q libkvferry; then
    fail "the static program needs libkvferry.so"
fi
ldd c-shared | grep -q libkvferry.so.0 || fail "the shared program does not need libkvferry.so.0"

program=root$prefix/bin/kvferry
printed=$(LD_LIBRARY_PATH=$libdir "$program" --version) || fail "kvferry --version fails"
case $printed in
    *"$wanted"*) ;;
    *) fail "kvferry --version printed '$printed', without $wanted" ;;
esac
echo "installed: ok"
