#!/bin/sh
# Inside the base image: Oars itself, where the environment of the operator's image (a layer below) finds it.
set -eu
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
site=/opt/env/lib/python$version/site-packages
mkdir -p "$site" /opt/env/bin
python3 -m zipfile -e /mnt/share/wheels/oars-*.whl "$site"
# The operator's root file system is read-only: it cannot write its own.
python3 -m compileall -q -j0 --invalidation-mode unchecked-hash "$site"
printf '#!/opt/env/bin/python\nfrom oars.cli.entry import main\n\nmain()\n' > /opt/env/bin/oars
chmod 755 /opt/env/bin/oars
ln -sf /opt/env/bin/oars /usr/local/bin/oars
