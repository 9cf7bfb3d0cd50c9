"""Loading specs from text and mappings; every error is one sentence with its position."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from oars import engines
from oars.base.errors import NotFound, SpecError
from oars.base.text import suggest
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from oars.spec.load import Manifest, dump

build = partial(load.build, option_model=engines.option_model)
load_file = partial(load.load_file, option_model=engines.option_model)
load_text = partial(load.load_text, option_model=engines.option_model)

HEADER = "apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nmetadata: {name: demo}\nspec:\n"
GROUPS = HEADER + "  engine: dask\n  workers:\n  - {name: a, cpu: 2}\n  - {name: gpu, gpu: 1}\n"


def under_spec(body: str) -> str:
    return HEADER + "".join(f"  {line}\n" for line in body.splitlines())


def error_of(text: str, sets: tuple[str, ...] = (), **overrides: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_text(text, "c.yaml", sets, overrides)
    return caught.value


def spec_of(text: str, *sets: str, **overrides: Any) -> ClusterSpec:
    return load_text(text, "c.yaml", sets, overrides).spec


# -- loading ---------------------------------------------------------------------------------------------------


def test_manifest_is_loaded_from_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(under_spec("engine: ray\nworkers: 3\nhead: {memory: 2Gi}"))
    manifest = load_file(path)
    assert (manifest.name, manifest.spec.engine, manifest.spec.workers[0].replicas) == ("demo", "ray", 3)
    assert manifest.spec.head.memory == 2 * 2**30


def test_mapping_is_a_spec_or_a_manifest() -> None:
    bare = build({"engine": "dask"})
    whole = build({"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeCluster", "spec": {"engine": "dask"}})
    assert bare == whole == Manifest(None, ClusterSpec(engine="dask"))


def test_anchors_merge_keys_and_dates_are_supported() -> None:
    text = under_spec("engine: dask\nworkers:\n- &w {name: a, cpu: 2}\n- {<<: *w, name: b}\nenv: {DAY: 2026-01-02}")
    spec = spec_of(text)
    assert [(group.name, group.cpu) for group in spec.workers] == [("a", 2), ("b", 2)]
    assert spec.env == {"DAY": "2026-01-02"}


def test_data_of_the_caller_is_not_changed() -> None:
    data = {"engine": "dask", "workers": [{"cpu": 1}]}
    build(data, ["workers[0].cpu=3"], {"packages": ["x"]})
    assert data == {"engine": "dask", "workers": [{"cpu": 1}]}


# -- sets and overrides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("workers=[]", {"workers": []}),
        ("head.cpu=2", {"head": {"cpu": 2.0}}),
        ("head.memory=2Gi", {"head": {"memory": "2Gi"}}),
        ("image=", {}),
        ("dask.config.distributed.x=false", {"dask": {"config": {"distributed": {"x": False}}}}),
        ('head.env."a.b"=c=d', {"head": {"env": {"a.b": "c=d"}}}),
        ("environment.packages[0]=pandas", {"environment": {"packages": ["pandas"]}}),
        ("dask.protocol=tcp", {"dask": {"protocol": "tcp"}}),
    ],
)  # fmt: skip
def test_set_changes_one_value(assignment: str, expected: dict[str, Any]) -> None:
    shown = dump(load_text(GROUPS, "c.yaml", [assignment]))["spec"]
    before = dump(load_text(GROUPS, "c.yaml"))["spec"]
    assert shown == {**before, **expected}


def test_set_workers_changes_the_first_group() -> None:
    assert [(group.replicas, group.cpu) for group in spec_of(GROUPS, "workers=5").workers] == [(5, 2), (1, None)]


@pytest.mark.parametrize("assignment", ["workers.gpu.replicas=3", "workers[1].replicas=3"])
def test_set_changes_one_group(assignment: str) -> None:
    assert [group.replicas for group in spec_of(GROUPS, assignment).workers] == [1, 3]


@pytest.mark.parametrize("workers", ["", "\nworkers: 3", "\nworkers: [{cpu: 2}]"])
@pytest.mark.parametrize(
    "assignment", ["workers=5", "replicas=5", "workers[0].replicas=5", "workers.default.replicas=5"]
)
def test_set_replaces_replicas_in_either_field(workers: str, assignment: str) -> None:
    text = under_spec(f"engine: dask\nreplicas: 3{workers}")
    assert [group.replicas for group in spec_of(text, assignment).workers] == [5]
    assert [group.replicas for group in spec_of(text, workers=5).workers] == [5]


@pytest.mark.parametrize(
    ("workers", "field"), [("4", "workers"), ("[{replicas: 4}]", "workers[0].replicas")], ids=["short", "group"]
)
def test_conflicting_replicas_are_rejected(workers: str, field: str) -> None:
    message = error_of(under_spec(f"engine: dask\nreplicas: 3\nworkers: {workers}")).message
    assert f"replicas is 3, but {field} is 4" in message


def test_set_changes_group_of_the_short_form() -> None:
    spec = spec_of(under_spec("engine: dask\nworkers: 4"), "workers.default.cpu=2")
    assert [(group.replicas, group.cpu) for group in spec.workers] == [(4, 2)]


def test_set_adds_a_group() -> None:
    assert [group.name for group in spec_of(GROUPS, "workers[2].name=c").workers] == ["a", "gpu", "c"]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("workers.gpuu.replicas=3", "no worker group 'gpuu'. Did you mean 'gpu'?"),
        ("workers[7].cpu=1", "spec.workers has 2 entries"),
        ("workers[0].cpu=x", "spec.workers[0].cpu: 'x' is not a number of processors"),
        ("engine.x=1", "spec.engine is not a mapping"),
        ("engine[0]=1", "spec.engine is not a list"),
        ("head.cpuu=1", "did you mean 'cpu'?"),
        ("head.cpu=[", "a bracket is never closed"),
        ("=3", "expected path=value"),
        ("head.cpu", "expected path=value"),
        ("[0]=3", "expected path=value"),
    ],
)
def test_error_names_the_invalid_set(assignment: str, words: str) -> None:
    error = error_of(GROUPS, (assignment,))
    assert error.message.startswith(f"--set {assignment}: ")
    assert words in error.message and error.hint


def test_overrides_change_all_groups() -> None:
    spec = spec_of(GROUPS, engine="ray", workers=4, cpu=3, memory="1Gi", packages=["x"], place=None)
    assert (spec.engine, spec.place, spec.environment.packages) == ("ray", "local", ("x",))
    assert [(g.replicas, g.cpu, g.memory) for g in spec.workers] == [(4, 3, 2**30), (1, 3, 2**30)]


def test_overrides_work_without_a_file() -> None:
    spec = build({}, (), {"engine": "dask", "workers": 0, "cpu": "500m"}).spec
    assert [(group.replicas, group.cpu) for group in spec.workers] == [(0, 0.5)]
    assert build({"engine": "dask", "workers": []}, (), {"workers": 2}).spec.workers[0].replicas == 2


def test_packages_are_added_to_those_of_the_file() -> None:
    text = under_spec("engine: dask\nenvironment: {packages: [a]}")
    assert spec_of(text, packages=("b",)).environment.packages == ("a", "b")


def test_invalid_overrides_are_rejected() -> None:
    assert "Did you mean 'memory'?" in error_of(GROUPS, memroy=1).message
    assert "packages must be a list" in error_of(GROUPS, packages="x").message
    assert error_of(GROUPS, workers="3").message == "workers must be a whole number or a list of groups, not '3'."
    assert error_of(GROUPS, workers=-3).message == "workers must be at least 0, not -3."


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("engine: dask\nworkers:\n- {memroy: 1Gi}",
         "c.yaml:7:6: spec.workers[0].memroy is not a known field; did you mean 'memory'?"),
        ("workers: 1", "c.yaml:4:1: spec.engine is missing."),
        ("engine: dask\nworkers: -1", "c.yaml:6:3: spec.workers must be at least 0, not -1."),
        ("engine: dask\nworkers: x", "c.yaml:6:3: spec.workers must be a whole number or a list of groups, not 'x'."),
        ("engine: dask\nhead:", "c.yaml:6:3: spec.head is empty; set it or remove it."),
        ("engine: dask\nhead: 3", "c.yaml:6:3: spec.head must be a mapping of fields, not 3."),
        ("engine: dask\nenv: {A: 1}", "c.yaml:6:9: spec.env.A must be text, not 1; put it in quotes."),
        ("engine: dask\nworkers: [{gpu: 1.5}]", "c.yaml:6:14: spec.workers[0].gpu must be a whole number, not 1.5."),
        ("engine: dask\nray: {dashboard: maybe}", "c.yaml:6:9: spec.ray.dashboard must be true or false, not 'maybe'."),
        ("engine: dask\nhead: {memory: 1Q}",
         "c.yaml:6:10: spec.head.memory: '1Q' is not an amount of memory; write it like 512Mi or 4Gi."),
        ("engine: dask\ndask: {protocol: tsl}",
         "c.yaml:6:10: spec.dask.protocol is 'tsl', which is not one of tls, tcp; did you mean 'tls'?"),
        ("engine: dask\nworkers: [{name: a}, {name: a}]",
         "c.yaml:4:1: spec: two worker groups have the name 'a'; rename one."),
        ("engine: dask\ndask: {config: {a: .nan}}",
         "c.yaml:6:19: spec.dask.config.a must be a finite number, not nan."),
        ("engine: dask\nworkers: [{resources: {a: 'inf'}}]",
         "c.yaml:6:26: spec.workers[0].resources.a must be a finite number, not 'inf'."),
        ("engine: dask\nenv: {1: a}", "c.yaml:6:3: spec.env has the key 1, which is not text; put it in quotes."),
        ("engine: dask\nengine: ray", "c.yaml:6:3: duplicate key 'engine'; remove one."),
    ],
)  # fmt: skip
def test_error_has_position_path_and_reason(body: str, message: str) -> None:
    error = error_of(under_spec(body))
    assert error.message == message
    assert error.hint


def test_details_list_all_problems() -> None:
    error = error_of(under_spec("enigne: dask\nhead: {cpu: x}"))
    assert error.message == error.details[0]
    assert [line.split(": ")[0] for line in error.details] == ["c.yaml:4:1", "c.yaml:6:10", "c.yaml:5:3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "c.yaml is empty"),
        ("# only a comment\n", "c.yaml is empty"),
        ("[1]", "c.yaml is not a mapping"),
        ("engine: dask", "apiVersion is missing; it must be oars.dev/v1alpha1"),
        ("apiVersion: v1\nkind: Pod", "c.yaml:1:1: apiVersion is 'v1'"),
        (HEADER.replace("ComputeCluster", "Cluster"), "c.yaml:2:1: kind is 'Cluster'; it must be ComputeCluster"),
        (HEADER.replace("ComputeCluster", "ComputeJob"), "is ComputeJob, not a cluster"),
        (HEADER, "c.yaml:4:1: spec must be a mapping"),
        (HEADER.replace("spec:", ""), "spec is missing"),
        (under_spec("engine: dask") + "status: {}", "status is not a known field"),
        (
            under_spec("engine: dask").replace("name: demo", "nmae: a"),
            "metadata.nmae is not a known field; did you mean",
        ),
        (under_spec("engine: dask").replace("demo", "Demo_1"), "'Demo_1' is not a valid name"),
        (under_spec("engine: dask").replace("demo", "1"), "metadata.name must be text"),
        (under_spec("engine: dask").replace("{name: demo}", "3"), "metadata must be a mapping"),
        (
            under_spec("engine: dask\nnamespace: {name: b}").replace("name: demo", "name: demo, namespace: a"),
            "metadata.namespace is 'a', but spec.namespace.name is 'b'; remove one",
        ),
        (under_spec("engine: dask").replace("name: demo", "name: demo, namespace: 3"), "namespace"),
        (under_spec("engine: dask") + "---\n" + HEADER, "c.yaml:6:1: a second document starts here"),
    ],
)
def test_invalid_header_is_rejected(text: str, words: str) -> None:
    error = error_of(text)
    assert words in error.message and error.hint


def test_job_names_the_command_that_runs_it() -> None:
    assert error_of(HEADER.replace("ComputeCluster", "ComputeJob")).hint == "Run it with `oars submit -f c.yaml`."


@pytest.mark.parametrize(
    ("body", "where", "words"),
    [
        ("engine: [a", "6:1", "closing bracket"),
        ("engine: {a: 1", "6:1", "closing bracket"),
        ("engine: 'a", "6:1", "never closed"),
        ("engine: a: b", "5:12", "unexpected ':'"),
        ("engine: a\nhead:\n    cpu: 1\n  memory: 1Gi", "8:5", "indentation"),
        ("engine: *x", "5:11", "anchor"),
        ("engine: &", "5:12", "alphabetic or numeric character"),
        ('engine: "\\q"', "5:12", "'\\'"),
        ("engine: !!python/object:os.system a", "5:11", "not allowed"),
        ("engine: !!int abc", "5:11", "'abc' is not a valid value"),
        ("engine: a\x07", "5:12", "not allowed in YAML"),
        ("engine: {[a]: b}", "5:12", "plain text"),
        ("? {a: b}\n: c", "5:5", "plain text"),
        ("<<: 3", "5:7", "needs a mapping"),
    ],
)
def test_invalid_yaml_is_reported_with_position_and_plain_message(body: str, where: str, words: str) -> None:
    error = error_of(under_spec(body))
    assert error.message.startswith(f"c.yaml:{where}: "), error.message
    assert words in error.message
    assert "\n" not in error.message and "expected <" not in error.message


def test_tab_is_reported() -> None:
    assert "indent with spaces" in error_of(HEADER + "\tengine: dask\n").message


def test_alias_bombs_are_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "expand to too many values" in error_of("\n".join(lines)).message
    assert "expand to too many values" in error_of("a: &a [*a]").message
    assert "nested more than" in error_of("a: " + "[" * 5000).message
    assert "larger than 1 MiB" in error_of("#" * (2**20 + 1)).message


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no file"):
        load_file(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match=r" cannot be read: Is a directory\."):
        load_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(SpecError, match="not a text file"):
        load_file(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * 2**21)
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        load_file(tmp_path / "large")


def test_values_that_yaml_cannot_represent_are_rejected() -> None:
    recursive: dict[str, Any] = {"engine": "dask"}
    recursive["options"] = recursive
    for data in (
        {"engine": {1, 2}},
        {"engine": "a\0"},
        {"engine": 10**5000},
        recursive,
        {"engine": "x", "options": {1: 2}},
    ):
        with pytest.raises(SpecError):
            build(data)


def test_long_values_are_shortened_in_messages() -> None:
    error = error_of(under_spec("engine: dask\nhead: {cpu: " + "x" * 5000 + "}"))
    assert len(error.message) < 400


def test_closest_choice_is_suggested() -> None:
    assert suggest("memroy", ["memory", "cpu"]) == " Did you mean 'memory'?"
    assert suggest("Dask", ["dask", "ray"]) == " Did you mean 'dask'?"
    assert suggest("zzz", ["memory", "cpu"]) == ""


# -- properties ---------------------------------------------------------------------------------------------------

FIELD_NAMES = [
    "engine", "place", "workers", "head", "environment", "packages", "cpu", "memory", "gpu", "name", "replicas",
    "resources", "labels", "env", "pod", "drain", "timeout", "dask", "protocol", "config", "ray", "auth",
    "objectStoreMemory", "object_store_memory", "dashboard", "mars", "distribution", "options", "image",
]  # fmt: skip
WORDS = ["dask", "1Gi", "500m", "2m", "tls", "nan", "9" * 400, "1e999", "pandas", "-x", "a", "\0", 10**400]
names = st.sampled_from(FIELD_NAMES) | st.text(max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.integers(), inner, max_size=4),
    max_leaves=10,
)
groups = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"[a-gi-z][a-z0-9]{0,5}", fullmatch=True),
        "replicas": st.integers(0, 10_000),
        "cpu": st.floats(0.001, 4096) | st.sampled_from(["250m", 2]),
        "memory": st.integers(2**20, 2**50) | st.sampled_from(["1Gi", "1.5Gi", "700MB", None]),
        "gpu": st.integers(0, 1024),
        "resources": st.dictionaries(st.sampled_from(["a", "b_c"]), st.floats(0, 1e300), max_size=2),
        "env": st.dictionaries(st.text(min_size=1, max_size=3), st.text(max_size=3), max_size=2),
    },
)
specs = st.fixed_dictionaries(
    {"engine": st.sampled_from(["dask", "ray", "mars"])},
    optional={
        "place": st.sampled_from(["local", "kubernetes"]),
        "workers": st.integers(0, 100) | st.lists(groups, max_size=3),
        "head": st.fixed_dictionaries({}, optional={"cpu": st.floats(0.001, 64), "memory": st.just("3Gi")}),
        "drain": st.fixed_dictionaries({"timeout": st.floats(0, 1e6) | st.just("1h30m")}),
        "ray": st.fixed_dictionaries({}, optional={"objectStoreMemory": st.integers(2**20, 2**40)}),
        "dask": st.fixed_dictionaries({"config": st.dictionaries(st.text(max_size=4), scalars, max_size=3)}),
        "options": st.dictionaries(names, values, max_size=2),
    },
)


def outcome(make: Any) -> Manifest | None:
    """A valid manifest, or None for a SpecError with message and hint."""
    try:
        manifest = make()
    except SpecError as error:
        assert error.message and error.hint and len(error.message) < 600
        assert "Input should" not in str(error) and "_error" not in str(error)
        return None
    assert isinstance(manifest, Manifest)
    return manifest


def check_round_trip(manifest: Manifest) -> None:
    written = yaml.safe_dump(dump(manifest))
    assert load_text(written, "again") == manifest
    assert build(dump(manifest)) == manifest


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(names, values, max_size=5))
def test_any_mapping_is_loaded_or_rejected(data: dict[str, Any]) -> None:
    for made in (outcome(lambda: build(data)), outcome(lambda: build({"engine": "dask", **data}))):
        if made is not None:
            check_round_trip(made)


@settings(max_examples=150, deadline=None)
@given(specs)
def test_loaded_spec_round_trips(data: dict[str, Any]) -> None:
    made = outcome(lambda: build(data))
    if made is not None:
        check_round_trip(made)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!<>'\"\\#|,.?% \n\t0\x07é", max_size=60))
def test_any_text_is_loaded_or_rejected(text: str) -> None:
    outcome(lambda: load_text(text, "t"))
    outcome(lambda: load_text(HEADER + "  " + text, "t"))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='abw.[]="0123{}:-', max_size=20), st.sampled_from(["", "head.", "workers", "engine", "env."]))
def test_any_set_is_applied_or_rejected(tail: str, start: str) -> None:
    outcome(lambda: load_text(GROUPS, "t", [start + tail]))


def test_infinite_numbers_are_rejected() -> None:
    made = outcome(lambda: build({"engine": "dask", "workers": [{"resources": {"a": "1e999"}}]}))
    assert made is None or math.isfinite(made.spec.workers[0].resources["a"])


def test_namespace_of_metadata_is_used() -> None:
    content = under_spec("engine: dask").replace("name: demo", "name: demo, namespace: team")
    assert load_text(content, "c.yaml").spec.namespace.name == "team"
