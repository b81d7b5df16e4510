package mountns

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func TestServedBy(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	defer l.Close()
	if pid, err := ServedBy(t.Context(), socket); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v; it is this process, %d", pid, err, os.Getpid())
	}
	if _, err := ServedBy(t.Context(), filepath.Join(dir, "none")); err == nil || !strings.Contains(hint.Of(err), "that the directory of its socket is mounted") {
		t.Error(err)
	}
}

// TestAccount: WriteAccount writes nothing outside of a pod. In a pod, the kubeconfig names the
// pod's own files.
func TestAccount(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "account.kubeconfig")
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	testutil.Must(t, WriteAccount(dir, file, func(k string) string { return env[k] }))
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("outside of a pod something is written: %v", err)
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600))
	testutil.Must(t, WriteAccount(dir, file, func(k string) string { return env[k] }))
	config, err := clientcmd.LoadFromFile(file)
	testutil.Must(t, err)
	if c, a := config.Clusters["cluster"], config.AuthInfos["account"]; c.Server != "https://10.96.0.1:443" || c.CertificateAuthority != PodRoot+dir+"/ca.crt" ||
		a.TokenFile != PodRoot+dir+"/token" || config.CurrentContext != "pod" {
		t.Errorf("%+v %+v", c, a)
	}
}
