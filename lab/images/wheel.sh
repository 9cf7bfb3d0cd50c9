#!/bin/sh
# Inside the builder: compile pymars, whose sources want the tools of their time.
set -eu
uv venv --quiet --seed --python /usr/bin/python3 /tmp/build
uv pip install --quiet --python /tmp/build/bin/python wheel $(grep -E '^(numpy|pandas|scipy|scikit-learn|sqlalchemy|setuptools|cython|cloudpickle|python-dateutil)[=<]' /mnt/share/requirements.txt)
uv pip install --quiet --python /tmp/build/bin/python 'pip<25'
mkdir -p /mnt/share/wheels
# Setuptools compiles one file after the other unless a file that it reads says otherwise.
printf '[build_ext]\nparallel = %s\n' "$(nproc)" > /tmp/build.cfg
export DIST_EXTRA_CONFIG=/tmp/build.cfg
/tmp/build/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /mnt/share/wheels \
  $(grep -E '^pymars==' /mnt/share/requirements.txt)
