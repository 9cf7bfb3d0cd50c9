#!/bin/sh
# Inside the builder: compile pymars, whose sources want the tools of their time.
set -eu
uv venv --quiet --seed --python /usr/bin/python3 /tmp/build
uv pip install --quiet --python /tmp/build/bin/python wheel $(grep -E '^(numpy|pandas|scipy|scikit-learn|sqlalchemy|setuptools|cython|cloudpickle|python-dateutil)[=<]' /mnt/share/requirements.txt)
uv pip install --quiet --python /tmp/build/bin/python 'pip<25'
mkdir -p /mnt/share/wheels
/tmp/build/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /mnt/share/wheels \
  $(grep -E '^pymars==' /mnt/share/requirements.txt)
