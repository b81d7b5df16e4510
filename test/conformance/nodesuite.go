package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// Kubernetes' node suite (test/e2e_node) expects to run on the node's host, beside a kubelet that
// systemd runs, with these ports on loopback. A nodeShim offers them to the suite; with a real kubelet
// the first two are the kubelet's own.
const (
	readOnlyAddress = "127.0.0.1:10255" // the node's API without authentication
	healthzAddress  = "127.0.0.1:10248"
	apiAddress      = "127.0.0.1:8080"  // the API server, with the rights of the admin
	kubeletAddress  = "127.0.0.1:10250" // the node's API; a process inside the host listens there itself
	unitAddress     = "127.0.0.1:10247" // what the scripts that stand for systemctl call
)

// nodeSuite is the suite's program.
const nodeSuite = "e2e_node.test"

// tokenLife is longer than a run.
const tokenLife = 6 * time.Hour

// kubeletUnit is the name of the node's unit; the suite looks for "kubelet-" and a word.
const kubeletUnit = "kubelet-node.service"

// systemSpec requires nothing of the host: what its kernel lacks shows in the kubelet's own run.
const systemSpec = "os: Linux\nkernelSpec: {versions: ['.*']}\n"

// systemctlScript passes a command of systemctl on to the shim; sudoScript just runs one.
const (
	systemctlScript = `#!/bin/sh
exec curl -sSf --max-time 150 --data-urlencode "args=$*" http://` + unitAddress + "/\n"
	sudoScript = "#!/bin/sh\nexec \"$@\"\n"
)

// unit is the process under test, which the suite controls by systemctl.
type unit interface {
	// Start starts the process with this KubeletConfiguration, a YAML or JSON document, or as it was
	// started first if it is nil.
	Start(kubeletConfiguration []byte) error
	Stop() error
	Running() bool
}

// nodeShim stands between the node suite and the node.
type nodeShim struct {
	lab   *labtest.Lab
	host  *labtest.Host
	unit  unit
	token string       // of an account that may do everything
	dir   string       // the suite's program and working directory
	api   *http.Client // with the admin's rights
	ports []net.Listener

	mu sync.Mutex // one systemctl at a time
}

// startShim makes the suite's working directory and serves its ports in the host. kubelet is true if a
// kubelet serves its own, and outside if the process under test runs outside the host.
func startShim(ctx context.Context, lab *labtest.Lab, u unit, dir string, kubelet, outside bool) (*nodeShim, error) {
	token, err := adminToken(ctx, lab.Client)
	if err != nil {
		return nil, fmt.Errorf("make a token for the node suite: %w", err)
	}
	client, err := rest.HTTPClientFor(http1(lab.REST))
	if err != nil {
		return nil, err
	}
	s := &nodeShim{lab: lab, host: &lab.Status.Hosts[0], unit: u, token: token, dir: dir, api: client}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return nil, err
	}
	for name, content := range map[string]string{"bin/systemctl": systemctlScript, "bin/sudo": sudoScript, "system-spec.yaml": systemSpec} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			return nil, err
		}
	}
	// ginkgo runs a suite in the directory of its program, and the suite writes its KubeletConfiguration
	// there.
	if err := os.Symlink(built(nodeSuite), filepath.Join(dir, nodeSuite)); err != nil {
		return nil, err
	}
	apiURL, err := url.Parse(lab.REST.Host)
	if err != nil {
		return nil, err
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(apiURL) }, Transport: client.Transport}
	handlers := map[string]http.Handler{apiAddress: proxy, unitAddress: http.HandlerFunc(s.systemctl)}
	if !kubelet {
		// A kubelet would listen at the address that its own /configz named.
		proxy.ModifyResponse = withReadOnlyPort
		handlers[readOnlyAddress] = http.HandlerFunc(s.nodeAPI)
		handlers[healthzAddress] = http.HandlerFunc(s.healthz)
	}
	for address, handler := range handlers {
		listener, err := s.listen(address)
		if err != nil {
			s.close()
			return nil, err
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = server.Serve(listener) }() // until close
	}
	if outside {
		listener, err := s.listen(kubeletAddress)
		if err != nil {
			s.close()
			return nil, err
		}
		go s.passOn(listener)
	}
	return s, nil
}

// adminToken returns a token of a new account with all rights. The suite shows it to the node itself,
// too, which asks the API server about it.
func adminToken(ctx context.Context, client kubernetes.Interface) (string, error) {
	const name, namespace = "node-suite", "kube-system"
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
	}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	seconds := int64(tokenLife.Seconds())
	request, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return request.Status.Token, nil
}

func (s *nodeShim) close() {
	for _, p := range s.ports {
		_ = p.Close()
	}
}

// systemctl does what the suite asks of systemd: list-units, kill, stop, start, restart and
// reset-failed, of the one unit.
func (s *nodeShim) systemctl(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	args := strings.Fields(r.FormValue("args"))
	if len(args) == 0 {
		http.Error(w, "no command", http.StatusBadRequest)
		return
	}
	var err error
	switch verb := args[0]; verb {
	case "list-units":
		if s.unit.Running() || !slices.Contains(args, "--state=running") {
			fmt.Fprintf(w, "%s loaded active running the node\n", kubeletUnit)
		}
	case "reset-failed", "daemon-reload":
	case "kill", "stop":
		err = s.unit.Stop()
	case "start", "restart":
		if verb == "restart" || !s.unit.Running() {
			err = s.restart()
		}
	default:
		err = fmt.Errorf("no such command here: %q", args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "systemctl", args, ":", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// restart starts the unit with the configuration that the suite has written.
func (s *nodeShim) restart() error {
	if err := s.unit.Stop(); err != nil {
		return err
	}
	written, err := os.ReadFile(filepath.Join(s.dir, "kubelet-config"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return s.unit.Start(written)
}

// command runs the suite in the host. ginkgo is the command without the suite's program and its flags.
func (s *nodeShim) command(ctx context.Context, ginkgo []string) *exec.Cmd {
	argv := append([]string{"env", "-C", s.dir, "PATH=" + filepath.Join(s.dir, "bin") + ":" + built("programs") + ":" + os.Getenv("PATH"),
		"KUBE_TEST_REPO_LIST=" + built("repositories.yaml")}, ginkgo...)
	return s.lab.Exec(ctx, s.host.Name, append(append(argv, filepath.Join(s.dir, nodeSuite), "--"),
		"--host=http://"+apiAddress, "--bearer-token="+s.token, "--node-name="+s.host.Name, "--start-services=false", "--stop-services=false",
		"--prepull-images=false", "--cri-proxy-enabled=true", "--container-runtime-endpoint=unix://"+s.host.RuntimeSocket,
		"--system-spec-file="+filepath.Join(s.dir, "system-spec.yaml"), "--dns-domain="+s.lab.Status.Cluster.Domain)...)
}
