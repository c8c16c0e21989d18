"""Build the programs of the test bed from Go modules: `python -m tests.kubernetes.testbed.build`, or `make testbed`.

The result is `${XDG_CACHE_HOME:-~/.cache}/levada-testbed/<key>`, with `bin/` and `manifests/`. The key is a hash of all
inputs: the wrapper modules in `modules/`, the lists below and the version of Go. The directory appears by one rename and
needs neither Go nor Go's caches afterwards, except to compute the key.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODULES = Path(__file__).parent / "modules"
MIN_GO = (1, 26)
KUBERNETES = "1.36.4"
#: Raise it when the functions below write something else for the same inputs.
_LAYOUT = 1

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_VERSION = "k8s.io/component-base/version"
_STAMP = (
    f"-X {_VERSION}.gitVersion=v{KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"
    f" -X {_VERSION}.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES}"
)
_ENVIRONMENT = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}


@dataclass(frozen=True)
class Program:
    """One executable: a main package of a wrapper module, or of a module that it requires."""

    name: str
    module: str
    package: str
    links: tuple[str, ...] = ()
    ldflags: str = ""


PROGRAMS = (
    Program(
        "kubebox",
        "kube",
        "./cmd/kubebox",
        ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
        _STAMP,
    ),
    Program("kwok", "ops", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("mpi-operator", "ops", "./cmd/mpi-operator"),
    Program("training-operator", "ops", "./cmd/training-operator"),
    Program("jobset", "ops", "sigs.k8s.io/jobset"),
    Program("trainer", "ops", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"),
    Program("helm", "ops", "helm.sh/helm/v4/cmd/helm"),
)

#: Files of modules of `ops` that become JSON lists in `manifests/`, by subdirectory.
MANIFESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "crds": {
        "github.com/kubeflow/mpi-operator": ("manifests/base/kubeflow.org_mpijobs.yaml",),
        # Not its MPIJob: the same CRD name, but version v1.
        "github.com/kubeflow/training-operator": (
            "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
            "manifests/base/crds/kubeflow.org_tfjobs.yaml",
        ),
        "sigs.k8s.io/jobset": ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
        "github.com/kubeflow/trainer/v2": (
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        ),
    },
    # Not pod-complete.yaml, which finishes every pod of a Job at once, nor pod-delete.yaml: see manifests.py.
    "stages": {
        "sigs.k8s.io/kwok": (
            "kustomize/stage/node/fast/node-initialize.yaml",
            "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
            "kustomize/stage/pod/fast/pod-ready.yaml",
        ),
    },
    "webhooks/jobset": {"sigs.k8s.io/jobset": ("config/components/webhook/manifests.yaml",)},
    "webhooks/trainer": {"github.com/kubeflow/trainer/v2": ("manifests/base/webhook/manifests.yaml",)},
    "runtimes": {"github.com/kubeflow/trainer/v2": ("manifests/base/runtimes/torch_distributed.yaml",)},
}


class CannotBuild(Exception):
    """The programs cannot be built on this machine; the message is one line that says why."""


def find_built() -> Path | None:
    """The directory of the built test bed, or None; raises `CannotBuild` if Go is missing."""
    folder = _cache() / _key(_go())
    return folder if folder.is_dir() else None


def build() -> Path:
    """Build the test bed unless it is built, and return its directory. A second builder waits for the first."""
    go = _go()
    root = _cache()
    folder = root / _key(go)
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        _lock(lock.fileno())
        if folder.is_dir():
            return folder
        started = time.monotonic()
        for leftover in root.glob("unfinished-*"):
            shutil.rmtree(leftover)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=root))
        try:
            for program in PROGRAMS:
                _compile(go, program, unfinished / "bin")
            _copy_manifests(go, unfinished / "manifests")
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    _say(f"built {folder} in {time.monotonic() - started:.0f} s")
    return folder


def _compile(go: str, program: Program, folder: Path) -> None:
    hint = " (10 CPU minutes with empty caches)" if program.name == "kubebox" else ""
    _say(f"building {program.name}{hint}")
    started = time.monotonic()
    target = folder / program.name
    _run(go, program, "build", "-trimpath", "-o", str(target), "-ldflags", f"-s -w {program.ldflags}", program.package)
    for link in program.links:
        (folder / link).symlink_to(program.name)
    _say(f"built {program.name} in {time.monotonic() - started:.0f} s, {target.stat().st_size / 1e6:.0f} MB")


def _run(go: str, program: Program, *arguments: str) -> None:
    done = subprocess.run(
        ["nice", "-n", "19", go, *arguments],
        cwd=MODULES / program.module,
        env=os.environ | _ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(f"go {arguments[0]} {program.package} failed:\n{done.stdout[-4000:]}")


def _copy_manifests(go: str, target: Path) -> None:
    for folder, modules in MANIFESTS.items():
        (target / folder).mkdir(parents=True)
        for module, names in modules.items():
            source = _module_directory(go, module)
            for name in names:
                documents = [_brief(document) for document in yaml.load_all((source / name).read_text(), _LOADER)]
                (target / folder / f"{Path(name).stem}.json").write_text(json.dumps(documents))


def _brief(value: Any) -> Any:
    """The value without descriptions: they are most of a CRD, and the API server would parse them at every start."""
    if isinstance(value, list):
        return [_brief(element) for element in value]
    if isinstance(value, dict):
        return {
            key: _brief(element)
            for key, element in value.items()
            if not (key == "description" and isinstance(element, str))
        }
    return value


def _module_directory(go: str, module: str) -> Path:
    command = [go, "list", "-m", "-json", module]
    done = subprocess.run(command, cwd=MODULES / "ops", env=os.environ | _ENVIRONMENT, capture_output=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "levada-testbed"


@functools.cache
def _go() -> str:
    needed = ".".join(map(str, MIN_GO))
    advice = (
        f"install Go {needed} or newer in /usr/local/go or on PATH (Debian: golang-{needed}-go, if its release has it)"
    )
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise CannotBuild(f"Go is missing: {advice}")
    version = _version(go)
    numbers = re.search(r"go(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_GO:
        raise CannotBuild(f"Go is too old ({version}): {advice}")
    return go


def _version(go: str) -> str:
    done = subprocess.run([go, "version"], env=os.environ | _ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _key(go: str) -> str:
    digest = hashlib.sha256(repr((_LAYOUT, _version(go), PROGRAMS, MANIFESTS)).encode())
    for path in sorted(MODULES.rglob("*")):
        if path.is_file():
            digest.update(f"\n{path.relative_to(MODULES)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say("waiting for another builder")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _say(text: str) -> None:
    print(f"testbed: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Build and print the directory."""
    try:
        print(build())
    except CannotBuild as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
