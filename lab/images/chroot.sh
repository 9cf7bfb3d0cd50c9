#!/bin/sh
# Run a script on top of a root file system and keep what it changed:
#   chroot.sh LOWER UPPER SHARE SCRIPT
# UPPER gets the changes. SHARE is seen as /mnt/share by the script, and belongs to no image.
# Runs in a mount namespace of its own (unshare --mount), so no mount can outlive it.
set -eu
lower=$1 upper=$2 share=$3 script=$4
scratch=$(mktemp -d "$(dirname "$upper")/scratch.XXXXXX")
mkdir -p "$upper" "$scratch/work" "$scratch/root"
root=$scratch/root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/mnt"
mkdir "$root/mnt/share"
mount --bind "$share" "$root/mnt/share"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/mnt/ca.crt"
cp "$script" "$root/mnt/script"
code=0
env -i PATH=/mnt/share/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 \
  SSL_CERT_FILE=/mnt/ca.crt PIP_CERT=/mnt/ca.crt UV_CACHE_DIR=/mnt/share/uv-cache UV_LINK_MODE=copy \
  chroot "$root" sh /mnt/script || code=$?
umount --recursive --lazy "$root"
rm -rf "$scratch"
exit "$code"
