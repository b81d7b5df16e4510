package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestServedBy(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid, err := servedBy(t.Context(), socket); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v; it is this process, %d", pid, err, os.Getpid())
	}
	if _, err := servedBy(t.Context(), filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "is the directory of its socket mounted?") {
		t.Error(err)
	}
}

// TestAccount: the kubeconfig is taken, and its files are the pod's.
func TestAccount(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "account.kubeconfig")
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	if err := writeAccount(dir, file, func(k string) string { return env[k] }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("outside of a pod something is written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeAccount(dir, file, func(k string) string { return env[k] }); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if c, a := config.Clusters["cluster"], config.AuthInfos["account"]; c.Server != "https://10.96.0.1:443" || c.CertificateAuthority != podRoot+dir+"/ca.crt" ||
		a.TokenFile != podRoot+dir+"/token" || config.CurrentContext != "pod" {
		t.Errorf("%+v %+v", c, a)
	}
}

func TestJoinIsCalledRightly(t *testing.T) {
	for _, args := range [][]string{{"join", "/run/s", "run"}, {"join", "--", "/run/s", "run"}, {"join", "/run/s"}} {
		if _, err := command(t, args...); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// TestChartJoins: the chart looks for what its pod has where it is to be seen.
func TestChartJoins(t *testing.T) {
	made, err := os.ReadFile("../../charts/testdata/local.yaml")
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Split(string(made), "/proc/self/fd/")[1:]
	for _, p := range paths {
		if !strings.HasPrefix("/proc/self/fd/"+p, podRoot+"/") {
			t.Errorf("/proc/self/fd/%.60s", p)
		}
	}
	if !strings.Contains(string(made), podRoot+accountFile) || len(paths) == 0 {
		t.Errorf("the account's file %s%s is not used", podRoot, accountFile)
	}
}
