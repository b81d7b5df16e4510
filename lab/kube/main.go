// Command bowline-kube is the lab's control plane and its tools in one binary, so that the machine
// links and caches the Kubernetes packages once. The first argument, or the name by which the
// program is called, selects the component.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJob time zones

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

// components maps a component's name to its program, which returns the process's exit status.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          component(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": component(controllers.NewControllerManagerCommand),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              component(proxy.NewProxyCommand),
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := components[name]
	if !ok && len(os.Args) > 1 {
		name = os.Args[1]
		if run, ok = components[name]; ok {
			os.Args = append([]string{name}, os.Args[2:]...)
		}
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: bowline-kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kube-proxy|kubectl [flags]")
		os.Exit(2)
	}
	os.Exit(run())
}

func component(newCommand func() *cobra.Command) func() int {
	return func() int { return cli.Run(newCommand()) }
}

// runEtcd ends through os.Exit on failure, inside etcdmain.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

// runKubectl parses the log level before it builds the command, as kubectl's own main does, because
// building the command already looks for plugins and .kuberc.
func runKubectl() int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
