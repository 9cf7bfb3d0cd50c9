"""Engine environments: the running Python if it has the supported engine, else a cached one built once with uv."""

from oars.envs.build import Environments, PythonEnv
from oars.envs.cache import EnvInfo

__all__ = ["EnvInfo", "Environments", "PythonEnv"]
