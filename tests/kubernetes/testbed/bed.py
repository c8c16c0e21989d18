"""`Bed`: etcd, a Kubernetes control plane, KWOK and the training operators as processes on loopback."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kubernetes.testbed import manifests
from tests.kubernetes.testbed.api import Api, Object, answers, wait_for
from tests.kubernetes.testbed.process import NotReady, Process, child_environment, free_port

_PREFIX = "levada-testbed-"
_STARTS = 3
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
#: Where controller-runtime looks for the certificate of webhooks, below TMPDIR.
_CERTIFICATES = Path("k8s-webhook-server", "serving-certs")


class Bed:
    """One cluster in a throw-away directory; several run side by side.

    Use it as a context manager. The kernel kills the processes when the thread that entered it ends, so nothing
    outlives the test run. A directory that a killed run left behind is removed by the next bed.
    `elastic_jobsets` turns on the alpha feature of JobSet that lets a running JobSet change its size.
    """

    def __init__(self, built: Path, *, elastic_jobsets: bool = False) -> None:
        self._elastic_jobsets = elastic_jobsets
        self._programs = built / "bin"
        self._manifests = built / "manifests"
        self._processes: dict[str, Process] = {}
        self._ready: dict[str, Callable[[], bool]] = {}

    def __enter__(self) -> Self:
        for attempt in range(1, _STARTS + 1):
            try:
                self._start()
            except NotReady as error:
                self.stop()
                # Another process may have taken a port between the choice and the start.
                if attempt == _STARTS or "address already in use" not in str(error):
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all processes and remove the directory."""
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        shutil.rmtree(self.folder)
        self._lock.close()

    @property
    def pids(self) -> dict[str, int | None]:
        """The process id of each program."""
        return {name: process.pid for name, process in self._processes.items()}

    def process(self, name: str) -> Process:
        """The process of a program, e.g. `kube-scheduler`."""
        return self._processes[name]

    def restart(self, name: str) -> None:
        """Kill a program, start it again and wait until it is ready."""
        self._processes[name].kill()
        self.start(name)

    def start(self, name: str) -> None:
        """Start a program that was killed, and wait until it is ready."""
        self._processes[name].log.unlink(missing_ok=True)
        self._processes[name].start()
        self._processes[name].wait_until(self._ready[name])

    def nodes(self, text: str) -> list[str]:
        """Create fake nodes, e.g. `a100=8x50,v100=8x50`, wait until pods can be scheduled on them, return their names."""
        created = manifests.parse_nodes(text)
        names = {node["metadata"]["name"] for node in created}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: self.api.post("/api/v1/nodes", node), created))
        wait_for(
            lambda: names <= {node["metadata"]["name"] for node in self.api.items("/api/v1/nodes") if _is_usable(node)},
            f"nodes {text} are ready",
        )
        return [node["metadata"]["name"] for node in created]

    def namespace(self, name: str) -> str:
        """Create a namespace and wait until pods can be created in it."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        wait_for(lambda: self.api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "service account")
        return name

    def _start(self) -> None:
        self._prepare()
        self._start_etcd()
        self._start_api_server()
        self._create_crds()
        # The garbage collector looks for new kinds only every 30 s, so the CRDs must exist before it starts.
        self._start_controllers()
        self._start_kwok()
        self._start_operators()
        self._wait_for_all()
        self._install_webhooks()

    def _prepare(self) -> None:
        _remove_leftovers()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = open(self.folder / "new-lock", "w")  # noqa: SIM115 (held until `stop`)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.folder / "new-lock").rename(self.folder / "lock")
        self._ready.clear()
        self.kubeconfig = self.folder / "kubeconfig"
        self._token = secrets.token_hex(16)
        self._certificate = self.folder / _CERTIFICATES / "tls.crt"
        self._key = self.folder / "service-account.key"
        subprocess.run(
            ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self._key)],
            check=True,
            capture_output=True,
        )
        (self.folder / "tokens").write_text(f'{self._token},admin,admin,"system:masters"\n')

    def _add(self, name: str, is_ready: Callable[[Process], bool], *flags: str) -> None:
        environment = child_environment(KUBECONFIG=str(self.kubeconfig), HOME=str(self.folder), TMPDIR=str(self.folder))
        process = Process([str(self._programs / name), *flags], self.folder / f"{name}.log", environment)
        self._processes[name] = process
        self._ready[name] = lambda: is_ready(process)
        process.start()

    def _wait_for_all(self) -> None:
        for name, process in self._processes.items():
            process.wait_until(self._ready[name])

    def _start_etcd(self) -> None:
        clients, peers = free_port(), free_port()
        self._etcd = f"http://127.0.0.1:{clients}"
        peer_url = f"http://127.0.0.1:{peers}"
        self._add(
            "etcd",
            lambda _: answers(clients, "/health"),
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
        )
        self._wait_for_all()

    def _start_api_server(self) -> None:
        port = free_port()
        certificates = self.folder / "certificates"
        # Self-signed: the certificate is its own authority.
        authority = certificates / "apiserver.crt"
        self.api = Api(port, authority, self._token)
        self._add(
            "kube-apiserver",
            lambda _: authority.exists() and self.api.is_ready(),
            f"--etcd-servers={self._etcd}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={certificates}",
            f"--token-auth-file={self.folder / 'tokens'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self._key}",
            f"--service-account-key-file={self._key}",
            "--service-cluster-ip-range=10.96.0.0/16",
        )
        self._wait_for_all()
        _write(self.kubeconfig, manifests.kubeconfig(port, authority, self._token))
        # Webhooks on loopback serve the same certificate.
        self._certificate.parent.mkdir(parents=True)
        shutil.copyfile(authority, self._certificate)
        shutil.copyfile(certificates / "apiserver.key", self._certificate.with_name("tls.key"))

    def _create_crds(self) -> None:
        crds = self._read("crds")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda crd: self.api.post(_CRDS, crd), crds))
        names = {(crd["spec"]["group"], crd["spec"]["names"]["plural"]) for crd in crds}
        wait_for(lambda: all(self.api.serves(*name) for name in names), "the kinds of the CRDs are served")

    def _read(self, folder: str) -> list[Object]:
        files = sorted((self._manifests / folder).iterdir())
        return [document for file in files for document in json.loads(file.read_text())]

    def _start_controllers(self) -> None:
        scheduler = self.folder / "scheduler.json"
        _write(scheduler, manifests.scheduler_config(self.kubeconfig))
        self._add(
            "kube-controller-manager",
            lambda _: self.api.exists("/api/v1/namespaces/default/serviceaccounts/default"),
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self._certificate}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )
        self._add("kube-scheduler", lambda _: True, f"--config={scheduler}", "--secure-port=0")

    def _start_kwok(self) -> None:
        port = free_port()
        stages = [*self._read("stages"), *manifests.pod_stages()]
        config = self.folder / "stages.yaml"
        config.write_text("\n---\n".join(map(json.dumps, stages)))
        self._add(
            "kwok",
            lambda _: answers(port, "/healthz"),
            f"--kubeconfig={self.kubeconfig}",
            f"--config={config}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--server-address=127.0.0.1:{port}",
            "--node-ip=127.0.0.1",
            "--node-lease-duration-seconds=40",
        )

    def _start_operators(self) -> None:
        self._add(
            "mpi-operator",
            lambda process: process.has_logged("Started workers"),
            f"--kubeConfig={self.kubeconfig}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--controller-queue-rate-limit=500",
            "--controller-queue-burst=1000",
            "--threadiness=4",
        )
        health = free_port()
        self._add(
            "training-operator",
            lambda _: answers(health, "/readyz"),
            f"--health-probe-bind-address=127.0.0.1:{health}",
        )
        self._webhooks = {"jobset": free_port(), "trainer": free_port()}
        self._start_configured(
            "jobset", {"ElasticJobSet": self._elastic_jobsets}, certDir=str(self._certificate.parent)
        )
        # Trainer finds the certificate by TMPDIR.
        self._start_configured("trainer", {})

    def _start_configured(self, name: str, features: dict[str, bool], **webhook: str) -> None:
        health = free_port()
        config = self.folder / f"{name}.json"
        _write(config, manifests.operator_config(name, self._webhooks[name], health, features, webhook))
        self._add(name, lambda _: answers(health, "/readyz"), f"--config={config}")

    def _install_webhooks(self) -> None:
        for name, port in self._webhooks.items():
            installed = self._read(f"webhooks/{name}")
            for configuration in manifests.webhook_configurations(installed, name, port, self._certificate):
                self.api.post(f"{_ADMISSION}/{configuration['kind'].lower()}s", configuration)
        for runtime in self._read("runtimes"):
            self.api.post(_RUNTIMES, runtime)


def _is_usable(node: Object) -> bool:
    ready = [each["status"] for each in node["status"].get("conditions", ()) if each["type"] == "Ready"]
    return ready == ["True"] and not node["spec"].get("taints")


def _write(file: Path, content: Object) -> None:
    # JSON is YAML, and every program reads it.
    file.write_text(json.dumps(content, indent=2))
    file.chmod(0o600)


def _remove_leftovers() -> None:
    """Remove directories whose owner was killed: nothing holds their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            with open(folder / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
