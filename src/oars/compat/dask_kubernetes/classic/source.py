"""Where a pod template comes from: an argument (an object, a dict or a path), or Dask's configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import yaml

from oars.base.errors import SpecError
from oars.compat.dask_kubernetes import checks, config
from oars.compat.dask_kubernetes.common.model import Model
from oars.compat.dask_kubernetes.common.objects import checked_template


def read_template(given: Any, argument: str) -> Model | None:
    """The template that a caller passed. Environment variables in files are expanded."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        return _read(os.fspath(given), argument)
    return checked_template(given, argument)


def configured_template(kind: str) -> Model | None:
    """The template of Dask's configuration for a worker or a scheduler: as data or as a path."""
    data, path = config.get(f"{kind}-template"), config.get(f"{kind}-template-path")
    if data and path:
        raise SpecError(
            f"Dask's configuration has both kubernetes.{kind}-template and kubernetes.{kind}-template-path.",
            "Remove one of them, or pass the template as an argument.",
        )
    if data:
        return checked_template(dask.config.expand_environment_variables(data), f"kubernetes.{kind}-template")
    if not path:
        return None
    key = f"kubernetes.{kind}-template-path"
    return _read(checks.fill(key, str(path), os.environ), key)


def _read(path: str, where: str) -> Model:
    try:
        content = yaml.safe_load(Path(path).expanduser().read_text())
    except OSError as error:
        raise SpecError(f"{where}: cannot read {path}: {error.strerror}.", "Pass the path of a YAML file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        details = tuple(str(error).splitlines()[:4])
        raise SpecError(f"{where}: {path} is not valid YAML.", "Correct the file.", details) from error
    return checked_template(dask.config.expand_environment_variables(content), path)
