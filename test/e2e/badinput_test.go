package e2e

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Five mistakes give five lines, in one answer.
func TestFiveMistakes(t *testing.T) {
	serial(t)
	out := attempt(t, `apiVersion: bowline.io/v1alpha1
kind: BowlineConfiguration
kubeconfig: /etc/bowline/kubeconfig
maxPods: many
clusterDNS: [10.80.0.300]
unknownField: 1
hosts:
- nodeName: Not_A_Name
  endpoint: tcp://1.2.3.4:5
`)
	if out.Code <= 0 {
		t.Errorf("exit code %d", out.Code)
	}
	lines := strings.Split(strings.TrimSpace(out.Stderr), "\n")
	if !strings.Contains(lines[0], "5 mistakes") || len(lines) != 6 {
		t.Errorf("not five mistakes in five lines:\n%s", out.Stderr)
	}
	for _, field := range []string{"maxPods", "clusterDNS[0]", "unknownField", "hosts[0].nodeName", "hosts[0].endpoint"} {
		equal(t, "mentions of "+field, strings.Count(out.Stderr, "- "+field), 1)
	}
	t.Log(out.Stderr)
}

func TestBadInput(t *testing.T) {
	serial(t)
	dir := hostDir(t)
	good := lab.ConfigYAML(host)
	endpoint := func(socket string) string { return good + "  endpoint: unix://" + socket + "\n" }
	kubeconfig := func(path string) string {
		return strings.Replace(good, lab.Host(host).NodeKubeconfig, path, 1)
	}

	t.Run("no configuration", func(t *testing.T) {
		// An empty file is one mistake, reported as a list.
		if out := attempt(t, ""); out.Code <= 0 || !strings.Contains(out.Stderr, "the document is empty") {
			t.Errorf("exit code %d: %s", out.Code, out.Stderr)
		}
	})
	t.Run("no socket", func(t *testing.T) {
		refused(t, attempt(t, endpoint(dir+"/none.sock")), dir+"/none.sock", "does not answer")
	})
	t.Run("dead socket", func(t *testing.T) {
		socket := dir + "/dead.sock"
		l, err := net.Listen("unix", socket)
		testutil.Must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		testutil.Must(t, l.Close())
		refused(t, attempt(t, endpoint(socket)), socket, "does not answer")
	})
	t.Run("silent socket", func(t *testing.T) {
		socket := dir + "/silent.sock"
		l, err := net.Listen("unix", socket) // the kernel accepts, nothing answers
		testutil.Must(t, err)
		defer l.Close()
		refused(t, attempt(t, endpoint(socket)), socket, "does not answer")
	})
	t.Run("runtime without CRI v1", func(t *testing.T) {
		socket := dir + "/nocri.sock"
		l, err := net.Listen("unix", socket)
		testutil.Must(t, err)
		server := grpc.NewServer() // it serves nothing, like containerd without its CRI plugin
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		defer func() { server.Stop(); <-done }()
		refused(t, attempt(t, endpoint(socket)), socket, "CRI v1")
	})
	t.Run("kubeconfig that is not there", func(t *testing.T) {
		refused(t, attempt(t, kubeconfig(dir+"/none.kubeconfig")), dir+"/none.kubeconfig")
	})
	t.Run("broken kubeconfig", func(t *testing.T) {
		path := dir + "/broken.kubeconfig"
		testutil.Must(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\nclusters: {this is no list\n"), 0o600))
		refused(t, attempt(t, kubeconfig(path)), path)
	})
	t.Run("kubeconfig of no one's server", func(t *testing.T) {
		path := changedKubeconfig(t, dir, "elsewhere", func(c *kubeconfigParts) { c.server = "https://127.0.0.1:1" })
		// A machine that is the node already would wait for the server, as in TestAPIServerAway.
		refused(t, attempt(t, kubeconfig(path)+"  rootDirectory: "+dir+"/new\n"), path, "127.0.0.1:1", "does not answer")
	})
	t.Run("kubeconfig of someone else", func(t *testing.T) {
		path := lab.Status.Cluster.AdminKubeconfig
		refused(t, attempt(t, kubeconfig(path)), path, "system:node:"+host)
	})
	t.Run("expired certificate", func(t *testing.T) {
		path := changedKubeconfig(t, dir, "expired", func(c *kubeconfigParts) {
			c.cert, c.key = selfSigned(t, time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour))
		})
		refused(t, attempt(t, kubeconfig(path)), path, "expired on", "issue a new one")
	})
	t.Run("certificate of an unknown authority", func(t *testing.T) {
		path := changedKubeconfig(t, dir, "unknown", func(c *kubeconfigParts) {
			c.cert, c.key = selfSigned(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		})
		refused(t, attempt(t, kubeconfig(path)), path, "does not accept this credential")
	})
}

// TestBadSSH: mistakes of an operator in the settings of a remote host.
func TestBadSSH(t *testing.T) {
	serial(t)
	dir := hostDir(t)
	h := lab.Host(host)
	lines, err := lab.SSHLines(host, h.SSH.Address)
	testutil.Must(t, err)
	good := lab.ConfigYAML(host, lines...)
	pinned := testutil.ReadFile(t, h.SSH.HostKey)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	other, err := ssh.NewPublicKey(public)
	testutil.Must(t, err)

	t.Run("host key of another machine", func(t *testing.T) {
		config := strings.Replace(good, strings.TrimSpace(string(pinned)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(other))), 1)
		refused(t, attempt(t, config), h.IP, "bowline host scan "+h.IP)
	})
	t.Run("key that the machine does not take", func(t *testing.T) {
		block, err := ssh.MarshalPrivateKey(private, "")
		testutil.Must(t, err)
		file := dir + "/id_other"
		testutil.Must(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
		refused(t, attempt(t, strings.Replace(good, h.SSH.Key, file, 1)), h.IP, "root", ssh.FingerprintSHA256(other), "authorized_keys")
	})
	t.Run("key that is not there", func(t *testing.T) {
		refused(t, attempt(t, strings.Replace(good, h.SSH.Key, dir+"/none", 1)), dir+"/none")
	})
	t.Run("no socket", func(t *testing.T) {
		refused(t, attempt(t, strings.Replace(good, h.RuntimeSocket, "/run/none.sock", 1)), "/run/none.sock", "does not answer")
	})
}

type kubeconfigParts struct {
	server    string
	cert, key []byte // PEM; nil leaves the node's own
}

// changedKubeconfig writes the node's kubeconfig with some parts replaced.
func changedKubeconfig(t *testing.T, dir, name string, change func(*kubeconfigParts)) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(lab.Host(host).NodeKubeconfig)
	testutil.Must(t, err)
	var parts kubeconfigParts
	change(&parts)
	for _, c := range config.Clusters {
		if parts.server != "" {
			c.Server = parts.server
		}
	}
	for _, a := range config.AuthInfos {
		if parts.cert != nil {
			a.ClientCertificate, a.ClientKey = "", ""
			a.ClientCertificateData, a.ClientKeyData = parts.cert, parts.key
		}
	}
	path := filepath.Join(dir, name+".kubeconfig")
	testutil.Must(t, clientcmd.WriteToFile(*config, path))
	return path
}

// selfSigned returns a self-signed client certificate of the node.
func selfSigned(t *testing.T, from, to time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to,
		Subject:  pkix.Name{CommonName: "system:node:" + host, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	testutil.Must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	testutil.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}
