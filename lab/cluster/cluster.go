// Package cluster describes the control plane: its keys, its processes, and the objects that every
// lab has from the start.
package cluster

import (
	"net/netip"
	"os"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/pki"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// Keys holds the authority and the paths of the files for the control plane's processes.
type Keys struct {
	CA                                       *pki.Authority // of the cluster
	EtcdCA, FrontProxyCA                     string
	EtcdCert, EtcdKey                        string
	EtcdClientCert, EtcdClientKey            string
	ServerCert, ServerKey                    string
	KubeletClientCert, KubeletClientKey      string // kube-apiserver-kubelet-client
	ProxyClientCert, ProxyClientKey          string
	AdminCert, AdminKey                      string
	ServiceAccountPublic, ServiceAccountKey  string
	ControllerManagerCert, ControllerManager string
	SchedulerCert, Scheduler                 string
}

// MakeKeys makes every key, certificate and kubeconfig of the control plane that does not exist
// yet.
func MakeKeys(lab layout.Lab) (Keys, error) {
	var k Keys
	dir := lab.Path("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return k, err
	}
	ca, err := pki.Open(dir, "ca", "bowline-lab-ca")
	if err != nil {
		return k, err
	}
	etcdCA, err := pki.Open(dir, "etcd-ca", "bowline-lab-etcd-ca")
	if err != nil {
		return k, err
	}
	frontProxyCA, err := pki.Open(dir, "front-proxy-ca", "bowline-lab-front-proxy-ca")
	if err != nil {
		return k, err
	}
	k.CA, k.EtcdCA, k.FrontProxyCA = ca, etcdCA.CertFile(), frontProxyCA.CertFile()

	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), lab.Loopback()}
	var proxyCert, proxyKey string
	for _, issue := range []struct {
		by        *pki.Authority
		leaf      pki.Leaf
		cert, key *string
	}{
		{etcdCA, pki.Leaf{Name: "etcd", CommonName: "etcd", IPs: loopback, Server: true}, &k.EtcdCert, &k.EtcdKey},
		{etcdCA, pki.Leaf{Name: "etcd-client", CommonName: "kube-apiserver-etcd-client"}, &k.EtcdClientCert, &k.EtcdClientKey},
		{frontProxyCA, pki.Leaf{Name: "front-proxy-client", CommonName: "front-proxy-client"}, &k.ProxyClientCert, &k.ProxyClientKey},
		{ca, pki.Leaf{Name: "apiserver", CommonName: "kube-apiserver", Server: true,
			IPs: append(loopback, lab.Gateway(), lab.APIServiceIP()),
			DNS: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + layout.Domain},
		}, &k.ServerCert, &k.ServerKey},
		{ca, pki.Leaf{Name: "apiserver-kubelet-client", CommonName: "kube-apiserver-kubelet-client"}, &k.KubeletClientCert, &k.KubeletClientKey},
		{ca, pki.Leaf{Name: "admin", CommonName: "lab-admin", Organization: []string{"system:masters"}}, &k.AdminCert, &k.AdminKey},
		{ca, pki.Leaf{Name: "controller-manager", CommonName: "system:kube-controller-manager", Server: true, IPs: loopback}, &k.ControllerManagerCert, &k.ControllerManager},
		{ca, pki.Leaf{Name: "scheduler", CommonName: "system:kube-scheduler", Server: true, IPs: loopback}, &k.SchedulerCert, &k.Scheduler},
		{ca, pki.Leaf{Name: "kube-proxy", CommonName: "system:kube-proxy"}, &proxyCert, &proxyKey},
	} {
		if *issue.cert, *issue.key, err = issue.by.Issue(issue.leaf); err != nil {
			return k, err
		}
	}
	if k.ServiceAccountPublic, k.ServiceAccountKey, err = pki.SigningKey(dir, "service-account"); err != nil {
		return k, err
	}
	for user, pair := range map[string][2]string{
		"admin":              {k.AdminCert, k.AdminKey},
		"controller-manager": {k.ControllerManagerCert, k.ControllerManager},
		"scheduler":          {k.SchedulerCert, k.Scheduler},
		"kube-proxy":         {proxyCert, proxyKey},
	} {
		if err := pki.Kubeconfig(lab.Kubeconfig(user), lab.APIURL(), user, ca.CertFile(), pair[0], pair[1]); err != nil {
			return k, err
		}
	}
	return k, nil
}

// Components lists the control plane's processes in the order in which they start.
var Components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// Daemon describes one process of the control plane. self is the lab's program and bin the
// directory of the built ones. audit makes the API server log its requests.
func Daemon(lab layout.Lab, k Keys, self, bin, component string, audit bool) proc.Daemon {
	args := arguments(lab, k, component)
	if audit && component == "kube-apiserver" {
		args = append(args, auditArguments(lab)...)
	}
	return proc.Daemon{
		Name:   component,
		Enter:  []string{self, "_enter", "--cgroup", lab.ControlCgroup(), "--"},
		Args:   append([]string{bin + "/bowline-kube", component}, args...),
		RunDir: lab.Path("run"),
		LogDir: lab.Path("logs"),
	}
}

func arguments(lab layout.Lab, k Keys, component string) []string {
	loopback := lab.Loopback().String()
	switch component {
	case "etcd":
		return []string{
			"--name=lab",
			"--data-dir=" + lab.Path("etcd"),
			"--listen-client-urls=" + lab.EtcdURL(),
			"--advertise-client-urls=" + lab.EtcdURL(),
			"--listen-peer-urls=" + lab.EtcdPeerURL(),
			"--initial-advertise-peer-urls=" + lab.EtcdPeerURL(),
			"--initial-cluster=lab=" + lab.EtcdPeerURL(),
			"--trusted-ca-file=" + k.EtcdCA, "--cert-file=" + k.EtcdCert, "--key-file=" + k.EtcdKey, "--client-cert-auth",
			"--peer-trusted-ca-file=" + k.EtcdCA, "--peer-cert-file=" + k.EtcdCert, "--peer-key-file=" + k.EtcdKey, "--peer-client-cert-auth",
			"--unsafe-no-fsync", // a lab need not survive a power cut
			"--log-level=warn",
		}
	case "kube-apiserver":
		return []string{
			"--advertise-address=" + lab.Gateway().String(),
			"--bind-address=" + lab.Gateway().String(),
			"--secure-port=6443",
			"--allow-privileged=true",
			"--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--client-ca-file=" + k.CA.CertFile(),
			"--tls-cert-file=" + k.ServerCert, "--tls-private-key-file=" + k.ServerKey,
			"--etcd-servers=" + lab.EtcdURL(), "--etcd-cafile=" + k.EtcdCA,
			"--etcd-certfile=" + k.EtcdClientCert, "--etcd-keyfile=" + k.EtcdClientKey,
			"--kubelet-certificate-authority=" + k.CA.CertFile(),
			"--kubelet-client-certificate=" + k.KubeletClientCert, "--kubelet-client-key=" + k.KubeletClientKey,
			"--kubelet-preferred-address-types=InternalIP",
			"--proxy-client-cert-file=" + k.ProxyClientCert, "--proxy-client-key-file=" + k.ProxyClientKey,
			"--requestheader-client-ca-file=" + k.FrontProxyCA, "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-username-headers=X-Remote-User",
			"--service-account-issuer=https://kubernetes.default.svc." + layout.Domain,
			"--service-account-key-file=" + k.ServiceAccountPublic, "--service-account-signing-key-file=" + k.ServiceAccountKey,
			"--service-cluster-ip-range=" + lab.ServiceNet().String(),
			"--enable-aggregator-routing=true", // to a Service's pods: the machine routes to pods and has no kube-proxy
			"--shutdown-delay-duration=0s",
		}
	case "kube-controller-manager":
		kubeconfig := lab.Kubeconfig("controller-manager")
		return []string{
			"--bind-address=" + loopback,
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--tls-cert-file=" + k.ControllerManagerCert, "--tls-private-key-file=" + k.ControllerManager,
			"--allocate-node-cidrs=true", "--cluster-cidr=" + lab.PodNet().String(), "--node-cidr-mask-size=24",
			"--service-cluster-ip-range=" + lab.ServiceNet().String(),
			"--cluster-signing-cert-file=" + k.CA.CertFile(), "--cluster-signing-key-file=" + lab.PKI("ca.key"),
			"--root-ca-file=" + k.CA.CertFile(), "--service-account-private-key-file=" + k.ServiceAccountKey,
			"--requestheader-client-ca-file=" + k.FrontProxyCA,
			"--use-service-account-credentials=true",
			"--leader-elect=false",
			"--kube-api-qps=100", "--kube-api-burst=200",
		}
	case "kube-scheduler":
		kubeconfig := lab.Kubeconfig("scheduler")
		return []string{
			"--bind-address=" + loopback,
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--tls-cert-file=" + k.SchedulerCert, "--tls-private-key-file=" + k.Scheduler,
			"--leader-elect=false",
		}
	}
	panic("no such component: " + component)
}

// HealthURL returns the URL that answers 200, without credentials, once a component works.
func HealthURL(lab layout.Lab, component string) string {
	switch component {
	case "kube-apiserver":
		return lab.APIURL() + "/readyz"
	case "kube-controller-manager":
		return "https://" + lab.Loopback().String() + ":10257/healthz"
	case "kube-scheduler":
		return "https://" + lab.Loopback().String() + ":10259/healthz"
	}
	return ""
}
