#!/bin/sh
# Inside the base image: one engine's environment, with its programs on PATH for every kind of shell.
set -eu
uv venv --quiet --seed --python /usr/bin/python3 /opt/env
uv pip install --quiet --python /opt/env/bin/python --find-links /mnt/share/wheels --requirements /mnt/share/requirements.txt
# Halves the start of Ray and Mars: a non-root pod cannot write its own.
/opt/env/bin/python -m compileall -q -j0 --invalidation-mode unchecked-hash /opt/env/lib || true
# A login shell forgets the image's PATH, so the programs are also where every shell looks.
for program in /opt/env/bin/*; do
  name=$(basename "$program")
  case $name in
    activate*|*.bat|*.py) ;;
    # A link to a venv's python is no longer in the venv.
    python*) printf '#!/bin/sh\nexec %s "$@"\n' "$program" > "/usr/local/bin/$name"; chmod 755 "/usr/local/bin/$name" ;;
    *) ln -sf "$program" "/usr/local/bin/$name" ;;
  esac
done
