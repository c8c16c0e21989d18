// Command training-operator runs the PyTorchJob and TFJob controllers of the Kubeflow training operator without webhooks.
//
// The released program does not compile against the client libraries of the test bed and needs certificates.
package main

import (
	"flag"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"github.com/kubeflow/training-operator/pkg/controller.v1/tensorflow"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	probes := flag.String("health-probe-bind-address", "", "address of /healthz and /readyz")
	qps := flag.Float64("kube-api-qps", 200, "requests per second")
	burst := flag.Int("kube-api-burst", 400, "burst of requests")
	threads := flag.Int("controller-threads", 4, "concurrent reconciliations of each kind")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	if err := run(*probes, float32(*qps), *burst, *threads); err != nil {
		klog.Fatal(err)
	}
}

func run(probes string, qps float32, burst, threads int) error {
	if err := kubeflow.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	rest.QPS = qps
	rest.Burst = burst
	manager, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme:                 scheme.Scheme,
		Metrics:                metrics.Options{BindAddress: "0"},
		HealthProbeBindAddress: probes,
	})
	if err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("readyz", healthz.Ping); err != nil {
		return err
	}
	gang := common.GenNonGangSchedulerSetupFunc()
	if err := pytorch.NewReconciler(manager, gang).SetupWithManager(manager, threads); err != nil {
		return err
	}
	if err := tensorflow.NewReconciler(manager, gang).SetupWithManager(manager, threads); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
