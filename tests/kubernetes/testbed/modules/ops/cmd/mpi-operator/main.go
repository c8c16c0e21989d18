// Command mpi-operator runs the controller of the Kubeflow MPI operator without leader election and without health server.
//
// The released program serves health on port 8080 of every address, so two test beds could not run side by side.
package main

import (
	"context"
	"flag"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	mpi "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpischeme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	mpiinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	option := options.NewServerOption()
	option.AddFlags(flag.CommandLine)
	flag.Parse()
	if err := run(option); err != nil {
		klog.Fatal(err)
	}
}

func run(option *options.ServerOption) error {
	config, err := clientcmd.BuildConfigFromFlags("", option.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = float32(option.QPS)
	config.Burst = option.Burst
	kubeClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	mpiClient, err := mpi.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := mpischeme.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	kube := informers.NewSharedInformerFactory(kubeClient, 0)
	jobs := mpiinformers.NewSharedInformerFactory(mpiClient, 0)
	ctx := context.Background()
	mpiController, err := controller.NewMPIJobController(ctx, kubeClient, mpiClient, nil, nil,
		kube.Core().V1().ConfigMaps(), kube.Core().V1().Secrets(), kube.Core().V1().Services(),
		kube.Batch().V1().Jobs(), kube.Core().V1().Pods(), kube.Scheduling().V1().PriorityClasses(),
		jobs.Kubeflow().V2beta1().MPIJobs(), option)
	if err != nil {
		return err
	}
	kube.Start(ctx.Done())
	jobs.Start(ctx.Done())
	return mpiController.Run(option.Threadiness, ctx.Done())
}
