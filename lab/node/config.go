package node

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/pki"
)

// Files are the paths of a host's configuration. They are in the lab's directory, which has the
// same path on the machine and in the hosts.
type Files struct {
	Containerd, CRIO, KubeProxy, Kubelet, Sshd string
	NodeKubeconfig                             string // system:node:<name>
	ServingCert, ServingKey                    string // of the kubelet's API, signed by the cluster's CA
	ClientCA                                   string // the CA of the clients that the kubelet's API accepts
}

// Configure writes a host's files. hosts is the number of hosts in the lab, ca the cluster's
// authority.
func Configure(t Tools, h layout.Host, hosts int, ca *pki.Authority) (Files, error) {
	lab := h.Lab
	f := Files{
		Containerd:     h.Path("containerd.toml"),
		CRIO:           h.Path("crio", "crio.conf"),
		KubeProxy:      h.Path("kube-proxy.yaml"),
		Kubelet:        h.Path("kubelet.yaml"),
		Sshd:           h.Path("ssh", "sshd_config"),
		NodeKubeconfig: lab.Kubeconfig(h.Name()),
		ClientCA:       ca.CertFile(),
	}
	var err error
	cert, key, err := ca.Issue(pki.Leaf{Name: h.Name() + "-client",
		CommonName: "system:node:" + h.Name(), Organization: []string{"system:nodes"}})
	if err != nil {
		return f, err
	}
	if err := pki.Kubeconfig(f.NodeKubeconfig, lab.APIURL(), "system:node:"+h.Name(), ca.CertFile(), cert, key); err != nil {
		return f, err
	}
	f.ServingCert, f.ServingKey, err = ca.Issue(ServingLeaf(h))
	if err != nil {
		return f, err
	}
	files := map[string]string{
		f.Containerd: containerdConfig(h, canLowerOOMScore()),
		f.KubeProxy:  kubeProxyConfig(h),
		f.Kubelet:    kubeletConfig(h, f, t.Runtime, canLowerOOMScore()),
		f.Sshd:       sshdConfig(h),
		h.Path("certs.d", layout.Registry, "hosts.toml"): registryHosts(lab),
		h.Path("root/etc/cni/net.d/10-lab.conflist"):     cniConfig(h),
		h.Path("root/etc/hosts"):                         etcHosts(lab, hosts),
		h.Path("root/etc/resolv.conf"):                   "# The lab has no name server but the cluster's own.\nnameserver " + lab.Gateway().String() + "\n",
		h.Path("root/etc/machine-id"):                    fmt.Sprintf("b0b1a6%02x%024x\n", lab.Index, h.Number),
	}
	if t.Runtime == layout.CRIO {
		maps.Copy(files, crioFiles(t, h, f.CRIO))
	}
	for path, content := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return f, err
		}
		if old, err := os.ReadFile(path); err == nil && string(old) == content {
			continue
		}
		// Write in place, not by rename: some of these are bind-mounted over the machine's files.
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return f, err
		}
	}
	if t.Runtime == layout.CRIO {
		if err := os.Chmod(crioRunc(h), 0o755); err != nil {
			return f, err
		}
	}
	return f, sshKeys(h)
}

// ServingLeaf is the serving certificate of the kubelet's API of the host's node. It is valid on
// the host, and on the machine or beside it, for a process that manages the host over SSH.
func ServingLeaf(h layout.Host) pki.Leaf {
	return pki.Leaf{Name: h.Name() + "-serving", CommonName: "system:node:" + h.Name(),
		Organization: []string{"system:nodes"}, DNS: []string{h.Name(), "localhost"},
		IPs: append(append(loopback(), h.IP(), h.Lab.Gateway()), h.Lab.OutsideAddresses()...), Server: true}
}

// canLowerOOMScore reports whether the lab's processes may lower oom_score_adj. Without
// CAP_SYS_RESOURCE in the bounding set, runc fails if it is asked to lower it.
func canLowerOOMScore() bool {
	r, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	return err == nil && r == 1
}

// containerdConfig gives a task 10 s instead of 2 s to report its state: on a machine that runs many
// labs at once, an exec would fail because its shim got no CPU in time.
func containerdConfig(h layout.Host, canLowerOOMScore bool) string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %q

[timeouts]
  'io.containerd.timeout.task.state' = "10s"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = %q

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = %t
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/opt/cni/bin", "/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
`, layout.Containerd.Socket(), layout.Registry+"/pause:lab", h.Path("certs.d"), !canLowerOOMScore)
}

func registryHosts(lab layout.Lab) string {
	return fmt.Sprintf(`server = "http://%[1]s"

[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`, lab.RegistryAddress())
}

func cniConfig(h layout.Host) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "lab",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, h.PodCIDR())
}

func kubeProxyConfig(h layout.Host) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: %q
mode: iptables
hostnameOverride: %s
clusterCIDR: %s
conntrack: # limits of conntrack are read-only outside the first network namespace
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
`, h.Lab.Kubeconfig("kube-proxy"), h.Name(), h.Lab.PodNet())
}

func kubeletConfig(h layout.Host, f Files, r layout.Runtime, canLowerOOMScore bool) string {
	oomScoreAdj := 0
	if canLowerOOMScore {
		oomScoreAdj = -999
	}
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %q}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
clusterDNS: [%s]
clusterDomain: %s
containerRuntimeEndpoint: unix://%s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: %d
serializeImagePulls: false
tlsCertFile: %q
tlsPrivateKeyFile: %q
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`, f.ClientCA, h.Lab.DNSServiceIP(), layout.Domain, r.Socket(), oomScoreAdj, f.ServingCert, f.ServingKey)
}

func etcHosts(lab layout.Lab, hosts int) string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, h := range lab.Hosts(hosts) {
		fmt.Fprintf(&b, "%s %s\n", h.IP(), h.Name())
	}
	return b.String()
}

// sshdConfig sets HOME to /, not to root's home on the machine, because a shell may
// read files there that are no part of a host.
func sshdConfig(h layout.Host) string {
	return fmt.Sprintf(`Port 22
ListenAddress %s
HostKey %s
AuthorizedKeysFile %s
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv HOME=/
StrictModes no
UsePAM no
GatewayPorts clientspecified
Subsystem sftp internal-sftp
`, h.IP(), h.Path("ssh", "host_key"), h.Lab.Path("ssh", "authorized_keys"))
}

// sshKeys makes the host's key, and the lab's own key, which logs into all its hosts.
func sshKeys(h layout.Host) error {
	for _, key := range []string{h.Path("ssh", "host_key"), h.Lab.Path("ssh", "id_ed25519")} {
		if _, err := os.Stat(key + ".pub"); err == nil {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil {
			return err
		}
		_ = os.Remove(key) // half of an earlier attempt; ssh-keygen would ask about it
		cmd := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bowline-lab", "-f", key)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %s", strings.TrimSpace(string(out)))
		}
	}
	public, err := os.ReadFile(h.Lab.Path("ssh", "id_ed25519.pub"))
	if err != nil {
		return err
	}
	authorized := h.Lab.Path("ssh", "authorized_keys")
	if old, err := os.ReadFile(authorized); err == nil && string(old) == string(public) {
		return nil
	}
	return os.WriteFile(authorized, public, 0o644)
}
