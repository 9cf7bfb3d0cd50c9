#!/bin/sh
# Make the root file system of the base image: base.sh TARGET PACKAGE,PACKAGE,…
set -eu
target=$1 packages=$2
mmdebstrap --quiet --variant=minbase --include="$packages" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  bookworm "$target"
chroot "$target" useradd --create-home --uid 1000 --user-group --shell /bin/bash oars
# The container's own is mounted over it; while engines are installed, the machine's is.
rm -f "$target/etc/resolv.conf" && : > "$target/etc/resolv.conf"
: > "$target/etc/hostname"
# As every process of every pod would otherwise compile its own imports again.
chroot "$target" python3 -m compileall -q -j0 /usr/lib/python3 /usr/lib/python3.11 || true
